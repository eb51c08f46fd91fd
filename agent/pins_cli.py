"""`trunkline cache pin`, `unpin` and `pins`: prefixes that a running agent keeps."""

from pathlib import Path
from typing import Annotated, TypeVar
from urllib.parse import quote

import httpx
import msgspec
import typer

from trunkline.agent.prefix_cli import Prefix, read_prefix
from trunkline.shared.ask import base_url
from trunkline.shared.errors import UNDECODABLE, ConfigError, TrunklineError
from trunkline.shared.names import AGENT_PORT, HEADER_CLUSTER
from trunkline.shared.pins import MAX_TTL_S, PINS_PATH, PinList, PinStatus
from trunkline.shared.secret import VARIABLE, load_secret

TIMEOUT_S = 60.0

_Node = Annotated[str, typer.Option(help="URL of the agent, or host:port.")]
_Secret = Annotated[Path | None, typer.Option(help=f"Secret of the agent's cluster. Also in ${VARIABLE}.")]
_NODE = f"http://127.0.0.1:{AGENT_PORT}"
_Answer = TypeVar("_Answer")


def pin(
    prefix: Prefix,
    node: _Node = _NODE,
    ttl: Annotated[
        float | None, typer.Option(min=0, max=MAX_TTL_S, help="Seconds that it lasts. [default: for ever]")
    ] = None,
    cluster_secret_file: _Secret = None,
) -> None:
    """Keep the pages of a prefix while others can go."""
    print(_shown(_call("POST", node, "", cluster_secret_file, PinStatus, {**read_prefix(prefix), "ttl": ttl})))


def unpin(
    name: Annotated[str, typer.Argument(help="As `pin` and `pins` say it.", metavar="ID")],
    node: _Node = _NODE,
    cluster_secret_file: _Secret = None,
) -> None:
    """Let the pages of a prefix go as others do."""
    _call("DELETE", node, name, cluster_secret_file, type(None))


def pins(node: _Node = _NODE, cluster_secret_file: _Secret = None) -> None:
    """Show what is pinned."""
    for one in _call("GET", node, "", cluster_secret_file, PinList).pins:
        print(_shown(one))


def _call(
    method: str, node: str, name: str, secret_file: Path | None, kind: type[_Answer], body: object = None
) -> _Answer:
    """What the node answers, of `kind`, if it does what it is asked."""
    secret = load_secret(secret_file)
    node = base_url(node)
    headers = {HEADER_CLUSTER: secret} if secret is not None else {}
    try:
        url = f"{node.rstrip('/')}{PINS_PATH}" + (f"/{quote(name, safe='')}" if name else "")
        answer = httpx.request(method, url, json=body, headers=headers, timeout=TIMEOUT_S)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ConfigError(f"--node {node}: no answer: {error}") from None
    except ValueError as error:  # What JSON and UTF-8 have no way to say: NaN, half a character.
        raise ConfigError(f"this cannot be sent to a node: {error}") from None
    try:
        if answer.is_success:
            return msgspec.json.decode(answer.content or b"null", type=kind)
        reason = str(answer.json()["error"]["message"])
    except UNDECODABLE:
        reason = f"what answers at {url} is no agent"
    except (ValueError, KeyError, TypeError):
        reason = f"status {answer.status_code}"
    raise TrunklineError(f"--node {node}: {reason}")


def _shown(one: PinStatus) -> str:
    left = "for ever" if one.expires_in is None else f"for {one.expires_in:.0f} s"
    lasting = "" if one.lasting else "; a restart forgets it"
    return f"{one.id}: {one.tokens} tokens, {one.held} of {one.pages} pages are there, {left}{lasting}"
