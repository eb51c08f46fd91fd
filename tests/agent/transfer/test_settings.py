"""Who may be lent pages is decided before anything is bound."""

from pathlib import Path

import pytest

from trunkline.agent.transfer.settings import TlsFiles, TransferSettings
from trunkline.shared.errors import ConfigError

FILES = TlsFiles(Path("node.pem"), Path("node.key"), Path("ca.pem"))


SECRET = "a secret of the cluster"
elsewhere = pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "node.example"])


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.9", "::1", "localhost"])
def test_on_loopback_nobody_needs_to_prove_anything(host: str) -> None:
    TransferSettings(host, nixl=True).check(None, anybody=False)


@elsewhere
def test_elsewhere_there_must_be_a_proof_or_a_word(host: str) -> None:
    with pytest.raises(ConfigError, match=f"--transfer-host {host}: .*--cluster-secret-file.*--transfer-open"):
        TransferSettings(host, plain=True).check(None, anybody=False)
    TransferSettings(host, plain=True).check(SECRET, anybody=False)
    TransferSettings(host, tls=FILES).check(None, anybody=False)
    TransferSettings(host).check(None, anybody=True)


@elsewhere
def test_elsewhere_pages_pass_unencrypted_only_when_told(host: str) -> None:
    with pytest.raises(ConfigError, match=f"--transfer-host {host}: .*--transfer-tls, or say --transfer-plain"):
        TransferSettings(host).check(SECRET, anybody=False)


@elsewhere
def test_elsewhere_nixl_needs_a_network_of_the_cluster_s_own(host: str) -> None:
    with pytest.raises(ConfigError, match=f"--transfer-host {host}: NIXL asks nobody"):
        TransferSettings(host, plain=True, nixl=True).check(SECRET, anybody=False)
    TransferSettings(host, nixl=True).check(SECRET, anybody=True)


def test_files_that_are_no_certificates_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--transfer-tls: node\.pem, node\.key and ca\.pem .*No such file"):
        FILES.contexts()
    with pytest.raises(ConfigError, match=r"--transfer-tls: node\.pem, node\.key and ca\.pem .*No such file"):
        FILES.for_pages()
    junk = tmp_path / "junk"
    junk.write_text("no certificate")
    with pytest.raises(ConfigError, match="--transfer-tls"):
        TlsFiles(junk, junk, junk).contexts()
    with pytest.raises(ConfigError, match=r"--transfer-tls: .* cannot be used: key: "):
        TlsFiles(junk, junk, junk).for_pages()
