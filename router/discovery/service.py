"""A Service of Kubernetes whose endpoints are nodes, and how a pod reaches the API that knows them."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from trunkline.shared.errors import ConfigError

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where Kubernetes puts the account of a pod."""


@dataclass(frozen=True, slots=True)
class ServiceAddress:
    """A headless Service, and how to reach the API that knows its endpoints. `str` is for people."""

    namespace: str
    name: str
    api: str
    """Base URL."""
    account: Path | None = ACCOUNT
    """Folder of `token` and `ca.crt`; None: the API asks for neither."""
    kind: ClassVar = "kubernetes"

    def __str__(self) -> str:
        return f"endpoints of {self.namespace}/{self.name}"


def service_address(text: str, environ: Mapping[str, str] = os.environ, account: Path = ACCOUNT) -> ServiceAddress:
    """Checks a `--kubernetes-service`: NAME, or NAMESPACE/NAME. Raises ConfigError, also outside a pod."""
    *namespaces, name = text.split("/")
    if len(namespaces) > 1 or not name or namespaces == [""]:
        raise ConfigError(f"--kubernetes-service {text!r} is not of the form NAME or NAMESPACE/NAME")
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise ConfigError(f"--kubernetes-service {text}: this is no pod, KUBERNETES_SERVICE_HOST is not set")
    try:
        (account / "token").read_text()
        namespace = namespaces[0] if namespaces else (account / "namespace").read_text().strip()
    except OSError as error:
        raise ConfigError(
            f"--kubernetes-service {text}: the pod has no account to ask with ({error}): "
            "it needs automountServiceAccountToken, and the right to list and watch endpointslices"
        ) from None
    return ServiceAddress(namespace, name, f"https://{f'[{host}]' if ':' in host else host}:{port}", account)
