"""`trunkline cache replicate`: a prefix to more nodes, ahead of demand."""

from typing import Annotated

import msgspec
import typer

from trunkline.agent.prefix_cli import PrefixIfAny, read_prefix
from trunkline.shared.ask import ADMIN_URL_VARIABLE, admin_token, asking
from trunkline.shared.errors import UNDECODABLE, ConfigError, TrunklineError
from trunkline.shared.names import REPLICATE_PATH, ROUTER_PORT
from trunkline.shared.replicate import Replicated

ANSWER_S = 10.0
"""For the router's answer, beyond the time that nodes are given."""


def replicate(
    prefix: PrefixIfAny = None,
    key: Annotated[
        str | None, typer.Option(help="Instead of PREFIX: the key that it ends with, as /ui shows it.", metavar="HEX")
    ] = None,
    to: Annotated[int, typer.Option(min=1, help="Nodes more that are to have it: the least busy ones.")] = 1,
    url: Annotated[
        str, typer.Option(envvar=ADMIN_URL_VARIABLE, help="Base URL of a router, or host:port.")
    ] = f"http://127.0.0.1:{ROUTER_PORT}",
    model: Annotated[str | None, typer.Option(help="Where several are served.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Whose pages, where tenants are configured.")] = None,
    timeout: Annotated[float, typer.Option(min=0.1, max=60.0, help="Seconds that nodes are given.")] = 30.0,
) -> None:
    """Have other nodes pull the pages of a prefix from the one that holds them.

    TRUNKLINE_ADMIN_TOKEN is sent along: a router that has one wants it. Exit status 1 if a node did not get all of it.
    """
    if (prefix is None) == (key is None):
        raise ConfigError("either PREFIX or --key says what is meant")
    meant = {"key": key} if prefix is None else read_prefix(prefix)
    body = {**meant, "to": to, "model": model, "tenant": tenant, "timeout": timeout}
    with asking(url, admin_token()) as asker:
        answer = asker.post(REPLICATE_PATH, body, timeout + ANSWER_S)
    try:
        done = msgspec.json.decode(answer.content, type=Replicated)
    except UNDECODABLE:
        raise TrunklineError(f"what answers at {url} is no router") from None
    print(f"{done.holder} has {done.tokens} tokens of it; as much was at {', '.join(done.held_by)}")
    for copy in done.copies:
        came = f"{copy.held} tokens are there, {copy.pulled} came in {copy.seconds:.2f} s"
        print(f"{copy.node}: {copy.error or came}")
    if len(done.copies) < to:
        print(f"no more nodes than these lacked it and can pull it: {len(done.copies)} of {to} asked for")
    if any(copy.held < done.tokens for copy in done.copies):
        raise typer.Exit(1)
