"""Deadlines: each is looked at, whatever comes of the others."""

import pytest

from trunkline.router.ticker import Ticker


class Watched:
    def __init__(self, deadline: float, error: Exception | None = None) -> None:
        self.deadline = deadline
        self.expired = 0
        self._error = error

    def expire(self) -> None:
        self.expired += 1
        if self._error is not None:
            raise self._error

    def abandon(self) -> None: ...


def test_a_deadline_that_fails_is_logged_and_the_others_are_kept(caplog: pytest.LogCaptureFixture) -> None:
    ticker, late = Ticker(), Watched(2.0)
    due = [Watched(1.0, error) for error in (None, ValueError("broken"), None)]
    for one in (*due, late):
        ticker.watch(one)
    ticker.tick(1.0)
    assert [one.expired for one in (*due, late)] == [1, 1, 1, 0]
    assert "broken" in caplog.text
    for one in due:
        ticker.forget(one)
    ticker.tick(2.0)
    assert [one.expired for one in (*due, late)] == [1, 1, 1, 1]
