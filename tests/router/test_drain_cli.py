"""What `trunkline drain` makes of what a router says."""

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest

from tests.http_server import answering
from trunkline.router.drain_cli import drain
from trunkline.shared.errors import TrunklineError
from trunkline.shared.handover import DrainStatus

BEGUN = DrainStatus(draining=True, running=2, offered=3, over=False)
DONE = DrainStatus(draining=True, running=0, offered=3, handed=3, tokens=48)
SERVING = DrainStatus(draining=False, running=0)


@contextmanager
def router(*statuses: DrainStatus) -> Iterator[str]:
    """Says these one after the other, of whatever node. Its URL."""
    with answering([(200, msgspec.json.encode(status)) for status in statuses]) as (url, _):
        yield url


def test_it_waits_until_nothing_runs(capsys: pytest.CaptureFixture[str]) -> None:
    with router(BEGUN, BEGUN, DONE) as url:
        drain("node", url, undo=False, timeout_s=60, token=None)
    assert "3 of 3 warm prefixes" in (said := capsys.readouterr().out)
    assert "nothing runs on node any more" in said


def test_a_node_that_takes_requests_again_meanwhile_is_not_said_to_be_drained(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with router(BEGUN, SERVING) as url, pytest.raises(TrunklineError, match="node takes requests again"):
        drain("node", url, undo=False, timeout_s=60, token=None)
    assert "nothing runs" not in capsys.readouterr().out


def test_what_runs_too_long_is_said() -> None:
    with router(BEGUN, BEGUN) as url, pytest.raises(TrunklineError, match="2 requests still run on node after 0 s"):
        drain("node", url, undo=False, timeout_s=0, token=None)
