"""Who may ask for /admin and the page."""

import hmac
import ipaddress
import socket

from fastapi import Request
from starlette.exceptions import HTTPException

from trunkline.shared.ask import ADMIN_TOKEN_VARIABLE
from trunkline.shared.errors import RequestError

_OWN_SITE = ("same-origin", "none")


class Guard:
    """Each method raises for who may not."""

    def __init__(self, token: str | None, listener: socket.socket | None) -> None:
        """`listener`: the only one that has /admin and the page. None: every one of the router's."""
        self._token = token
        self._port = listener.getsockname()[1] if listener is not None else None

    async def listener(self, request: Request) -> None:
        """The admin listener; on the others these paths do not exist."""
        if self._port is not None and request.scope["server"][1] != self._port:
            raise HTTPException(404, "Not Found")

    async def privileged(self, request: Request) -> None:
        """Who knows the token; while there is none, clients on this host."""
        await self.listener(request)
        if self._token is not None:
            given = request.headers.get("authorization", "").encode("latin-1", "replace")
            if not hmac.compare_digest(given, f"Bearer {self._token}".encode()):
                raise RequestError("/admin needs the admin token: `Authorization: Bearer TOKEN`", status=401)
            return
        if not _is_same_host(request):
            raise RequestError("/admin is for clients on this host, unless an admin token is set", status=403)
        # A browser on this host is a client on this host, whatever page it shows.
        if request.headers.get("sec-fetch-site", "none") not in _OWN_SITE or not _is_local(request.url.hostname):
            raise RequestError("/admin is not for pages of other sites: ask for it by this host's address", status=403)

    async def acting(self, request: Request) -> None:
        """Who knows the token. While there is none, nobody: to be on this host is enough to look, not to change."""
        await self.privileged(request)
        if self._token is None:
            how = f"start it with --admin-token-file, or with {ADMIN_TOKEN_VARIABLE} set"
            raise RequestError(f"this needs an admin token, and the router has none: {how}", status=403)


def _is_same_host(request: Request) -> bool:
    """By its loopback address, or by the one that this listens at: nobody else sends from there."""
    client, server = request.client, request.scope["server"]
    return client is not None and (ipaddress.ip_address(client.host).is_loopback or client.host == server[0])


def _is_local(host: str | None) -> bool:
    """Whether a browser cannot have been led here by a name that somebody else's DNS server resolves."""
    if host is None or host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
