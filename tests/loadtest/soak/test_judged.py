"""When a soak has failed."""

from typing import Any

from trunkline.loadtest.soak.__main__ import _judged


def summary(checked: int = 5, unfinished: int = 0, **errors: int) -> dict[str, Any]:
    return {
        "checked": checked,
        "unfinished": unfinished,
        "errors": {name.replace("_", " "): n for name, n in errors.items()},
    }


def test_requests_may_fail_while_things_break_but_not_be_answered_wrongly() -> None:
    assert _judged(summary(broken_stream=3), summary()) == []
    assert _judged(summary(wrong_answer=2), summary()) == ["disturbed: 2 wrong answers"]


def test_nothing_may_fail_in_the_quiet_part() -> None:
    assert _judged(summary(), summary(broken_stream=1)) == ["quiet: errors though nothing broke: {'broken stream': 1}"]


def test_nothing_checked_and_requests_without_an_end_are_failures() -> None:
    assert _judged(summary(checked=0), summary(unfinished=2)) == [
        "disturbed: no answer was checked",
        "quiet: 2 requests without an end",
    ]
