"""Authorities and the certificates that they sign, for benches and tests."""

import subprocess
from pathlib import Path

from trunkline.agent.transfer.settings import TlsFiles


def certificates(folder: Path, authority: str, days: int = 2) -> TlsFiles:
    """Made by `openssl`. `days`: that the node's is good; -1: not any more."""
    here = folder / authority
    here.mkdir()

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=here)

    new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl("req", "-x509", *new, "-keyout", "ca.key", "-out", "ca.pem", "-subj", f"/CN={authority}", "-days", "2")
    openssl("req", *new, "-keyout", "node.key", "-out", "node.csr", "-subj", "/CN=node")
    (here / "node.ext").write_text("basicConstraints = CA:FALSE")  # with an extension it is of X.509 version 3
    sign = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "node.ext")
    openssl("x509", "-req", "-in", "node.csr", *sign, "-out", "node.pem", "-days", str(days))
    return TlsFiles(here / "node.pem", here / "node.key", here / "ca.pem")
