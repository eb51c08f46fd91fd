"""The page's files, as they are in `static/`: read once, served with headers that let a browser load nothing else."""

from hashlib import blake2b
from importlib.resources import files
from typing import NamedTuple

HEADERS = {
    # Scripts and styles of this server alone; nothing inline, so that a name with markup in it stays a name.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


class File(NamedTuple):
    content: bytes
    media_type: str
    etag: str


def load() -> dict[str, File]:
    """By name."""
    found = {}
    for path in files("trunkline.router.ui").joinpath("static").iterdir():
        content = path.read_bytes()
        etag = f'"{blake2b(content, digest_size=12).hexdigest()}"'
        found[path.name] = File(content, _TYPES[path.name.rpartition(".")[2]], etag)
    return found
