"""Where a node lends its pages to others, and to whom."""

import ssl
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from trunkline.kernels.core import Tls
from trunkline.shared.errors import ConfigError


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files: this node's certificate and key, and the authority that signs those of the cluster."""

    certificate: Path
    key: Path
    authority: Path

    def contexts(self) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        """For those who ask this node, and for asking others. Raises ConfigError.

        Both sides must show a certificate. Who signed it counts, and no host name: nodes are reached by address.
        """
        made = []
        for protocol in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT):
            context = ssl.SSLContext(protocol)
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.check_hostname = False
            context.verify_mode = ssl.CERT_REQUIRED
            try:
                context.load_cert_chain(self.certificate, self.key)
                context.load_verify_locations(self.authority)
            except OSError as error:
                raise self._useless(error) from None
            made.append(context)
        return made[0], made[1]

    def for_pages(self) -> Tls:
        """The same for connections that pages pass. Raises ConfigError."""
        try:
            return Tls(self.certificate.read_bytes(), self.key.read_bytes(), self.authority.read_bytes())
        except (OSError, ValueError) as error:
            raise self._useless(error) from None

    def _useless(self, error: Exception) -> ConfigError:
        files = f"{self.certificate}, {self.key} and {self.authority}"
        return ConfigError(f"--transfer-tls: {files} cannot be used: {error}")


@dataclass(frozen=True, slots=True)
class TransferSettings:
    """Of the control channel, and of the pages themselves."""

    host: str = "127.0.0.1"
    port: int = 0
    """0: any free one."""
    tls: TlsFiles | None = None
    plain: bool = False
    """Whether pages may pass unencrypted; they do then, also with `tls`."""
    rate: int = 0
    """Bytes per second that are lent over TCP, to all readers together; 0: as fast as it goes."""
    nixl: bool = False
    """Whether NIXL is used too."""

    def check(self, secret: str | None, *, anybody: bool) -> None:
        """Raises ConfigError where whoever reaches the ports, or sees what passes, could read what others' prompts
        left in the cache, unless told that `anybody` there may, or that pages may pass there unencrypted."""
        if anybody or is_loopback(self.host):
            return
        where = f"--transfer-host {self.host}"
        if secret is None and self.tls is None:
            raise ConfigError(
                f"{where}: pages would be lent to whoever asks. Give a --cluster-secret-file or --transfer-tls, or say "
                "--transfer-open where only the cluster reaches this network"
            )
        if self.nixl:
            raise ConfigError(
                f"{where}: NIXL asks nobody for a proof. Leave --transfer-nixl out, or say --transfer-open where only "
                "the cluster reaches this network"
            )
        if self.tls is None and not self.plain:
            raise ConfigError(
                f"{where}: pages would pass there unencrypted. Give --transfer-tls, or say --transfer-plain where "
                "nobody else sees this network"
            )


def is_loopback(host: str) -> bool:
    """Whether only this machine is reached there; an address of IPv6 may be in brackets."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
