"""Which answers count, and whose turn it is in an open loop."""

import time
from dataclasses import replace

import pytest

from trunkline.loadtest.load.run import WRONG, Check, Run
from trunkline.loadtest.load.server import Server
from trunkline.loadtest.load.settings import Range, Settings
from trunkline.loadtest.load.stream import Answer

SERVER = Server("http://127.0.0.1:1", "m", None, 1.0, 1)
SETTINGS = Settings(turns=Range(2, 2), inputs=Range(100, 100), long_share=0.0, system=50)


def made(settings: Settings = SETTINGS, check: Check | None = None) -> Run:
    return Run(settings, SERVER, check)


def answer(run: Run, due: float = 0.0, took: float = 0.0, **others: object) -> Answer:
    at = run.began + due
    return replace(Answer(at, at, at + took, at + took, prompt_tokens=10, text="yes"), **others)  # type: ignore[arg-type]


def test_what_was_due_in_the_warm_up_does_not_count() -> None:
    run = made(replace(SETTINGS, warm_up=5.0))
    request = run.new_conversation().next()
    run.count(request, answer(run, due=1.0, took=1.0))
    run.count(request, answer(run, due=4.0, took=3.0))
    run.count(request, answer(run, due=6.0, took=1.0))
    assert run.tally.done == 1
    assert run.tally.ended["requests"] == 2, "what ended in the window was carried in it"


def test_the_warm_up_ends_once_every_first_conversation_has_an_answer() -> None:
    run = made(replace(SETTINGS, warm_up=50.0, settle=0.5, window=10.0))
    run.settle(2)
    run.settled()
    assert run.opens == run.began + 50.0
    assert run.summary()["unsettled"] == 1
    run.settled()
    opens = run.opens
    assert run.began + 0.5 <= opens < run.began + 50.0
    assert run.left <= 10.5
    run.settled()
    assert run.opens == opens, "what is answered later changes nothing"
    assert run.summary()["unsettled"] == 0


def test_the_warm_up_never_takes_longer_than_it_may() -> None:
    run = made(replace(SETTINGS, warm_up=0.2, settle=60.0))
    run.settle(1)
    run.settled()
    assert run.opens == run.began + 0.2


def test_a_wrong_answer_is_an_error_and_what_was_given_up_is_none() -> None:
    run = made(check=lambda request, answer: answer.text == "yes")
    request = run.new_conversation().next()
    run.count(request, answer(run))
    run.count(request, answer(run, text="no"))
    run.count(request, answer(run, given_up=True))
    run.count(request, answer(run, text="", error="HTTP 503"))
    summary = run.summary()
    assert (summary["requests"], summary["checked"], summary["given_up"]) == (1, 1, 1)
    assert summary["errors"] == {WRONG: 1, "HTTP 503": 1}


def test_after_the_end_answers_to_what_was_due_before_still_count() -> None:
    run = made()
    request = run.new_conversation().next()
    time.sleep(0.01)
    run.close()
    run.count(request, answer(run, due=0.0, took=60.0))
    run.count(request, answer(run, due=60.0, took=1.0))
    assert run.summary()["requests"] == 1
    assert run.summary()["requests_s"] == 0, "but not as carried in the window"


def test_arrivals_go_on_with_the_conversation_that_has_waited_longest() -> None:
    run = made(replace(SETTINGS, rate=1.0, open_conversations=2))
    first, second = run.idle_conversation(), run.idle_conversation()
    assert first is not second
    for conversation in (second, first):
        conversation.next()
        conversation.answered("yes")
        run.give_back(conversation)
    assert run.idle_conversation() is second
    assert run.idle_conversation() is first
    third = run.idle_conversation()
    assert third not in (first, second), "an arrival waits for nobody"
    for conversation in (first, second):
        conversation.next()
        run.give_back(conversation)
    assert run.idle_conversation() not in (first, second), "they are done"


def test_the_configuration_keeps_keys_to_itself() -> None:
    told = made(replace(SETTINGS, api_keys=("secret-1", "secret-2"))).configuration()
    assert told["settings"]["api_keys"] == 2
    assert "secret" not in str(told)
    assert told["settings"]["turns"] == pytest.approx((2, 2))


def test_a_wrong_answer_counts_whenever_it_came_and_however_much_of_it() -> None:
    run = made(replace(SETTINGS, warm_up=5.0), check=lambda request, answer: answer.text.startswith("y"))
    request = run.new_conversation().next()
    run.count(request, answer(run, due=1.0, text="no"))
    run.count(request, answer(run, due=6.0, text="n", error="broken stream"))
    run.count(request, answer(run, due=6.0, text="y", error="broken stream"))
    run.count(request, answer(run, due=6.0, text="", error="HTTP 503"))
    assert run.summary()["errors"] == {WRONG: 2, "broken stream": 1, "HTTP 503": 1}
