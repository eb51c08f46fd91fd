"""What is asked: the same for the same seed, in the lengths and shares of the profile."""

from dataclasses import replace
from itertools import pairwise

import pytest

from trunkline.loadtest.load.conversation import Conversation, Mix, Request
from trunkline.loadtest.load.settings import Range, Settings
from trunkline.loadtest.load.text import Writer

WRITER = Writer(1.25)


def tokens(request: Request) -> float:
    return sum(1.25 * len(message["content"].split()) for message in request.messages)


def talk(conversation: Conversation) -> list[Request]:
    requests = []
    while not conversation.done:
        requests.append(conversation.next())
        conversation.answered("yes")
    return requests


def test_the_same_number_is_the_same_conversation() -> None:
    first, second = (Mix(Settings(), WRITER) for _ in range(2))
    second.conversation(3)
    assert first.conversation(7).next() == second.conversation(7).next()
    assert first.conversation(7).next() != first.conversation(8).next()


def test_the_profile() -> None:
    mix = Mix(Settings(), WRITER)
    requests = [mix.conversation(number).next() for number in range(400)]
    sizes = [tokens(request) for request in requests]
    long = [size for size in sizes if size > 30_000]
    assert len(long) == pytest.approx(40, abs=20)
    assert all(size == pytest.approx(32_768, rel=0.02) for size in long)
    assert all(500 < size < 8300 for size in sizes if size not in long)
    systems = [request.messages[0]["content"] for request in requests]
    most = max(systems, key=systems.count)
    assert systems.count(most) == pytest.approx(320, abs=30)
    assert 1.25 * len(most.split()) == pytest.approx(2048, rel=0.02)
    assert len(set(systems)) == 1 + 400 - systems.count(most), "the others share nothing"


def test_a_conversation_goes_on_with_all_before_it_and_ends_at_its_length() -> None:
    settings = Settings(inputs=Range(6000, 6000), long_share=0.0, turns=Range(4, 4), shared_share=1.0)
    requests = talk(Mix(settings, WRITER).conversation(0))
    assert [len(request.messages) for request in requests] == [2, 4, 6, 8]
    for before, after in pairwise(requests):
        assert after.messages[: len(before.messages)] == before.messages
        assert after.messages[len(before.messages)] == {"role": "assistant", "content": "yes"}
    answers = sum(request.max_tokens for request in requests[:-1])
    assert tokens(requests[-1]) + answers == pytest.approx(6000, rel=0.05)


def test_aged_conversations_are_in_their_midst() -> None:
    mix = Mix(Settings(turns=Range(8, 8), aged=50), WRITER)
    lengths = [len(mix.conversation(number).next().messages) for number in range(60)]
    assert set(lengths[50:]) == {2}
    assert set(lengths[:50]) == {2, 4, 6, 8, 10, 12, 14, 16}
    assert all(len(talk(mix.conversation(number))[-1].messages) == 16 for number in range(60))


def test_an_agent_goes_on_with_results_of_tools() -> None:
    requests = talk(Mix(Settings(turns=Range(3, 3), tool_share=1.0), WRITER).conversation(0))
    assert [message["role"] for message in requests[-1].messages] == ["system", "user", *["assistant", "tool"] * 2]
    assert {request.kind for request in requests} == {"agent"}


def test_tenants_have_their_own_prompts_and_their_popularity() -> None:
    mix = Mix(Settings(tenants=4, zipf=1.0, shared_share=1.0), WRITER)
    requests = [mix.conversation(number).next() for number in range(300)]
    counts = [sum(request.tenant == tenant for request in requests) for tenant in range(4)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == pytest.approx(300 * 12 / 25, abs=35)
    assert len({(request.tenant, request.messages[0]["content"]) for request in requests}) == 4


def test_without_reuse_no_two_requests_begin_alike_and_lengths_stay() -> None:
    settings = Settings(turns=Range(2, 2))
    usual, fresh = Mix(settings, WRITER), Mix(replace(settings, reuse=False), WRITER)
    requests = [request for number in range(20) for request in talk(fresh.conversation(number))]
    assert len({request.messages[0]["content"].split()[0] for request in requests}) == len(requests)
    lengths = [request.max_tokens for number in range(20) for request in talk(usual.conversation(number))]
    assert [request.max_tokens for request in requests] == lengths


def test_another_salt_is_another_text_of_the_same_lengths() -> None:
    ours, theirs = (Mix(Settings(salt=salt), WRITER).conversation(5).next() for salt in ("a", "b"))
    assert tokens(ours) == tokens(theirs)
    assert ours.max_tokens == theirs.max_tokens
    assert all(one["content"] != other["content"] for one, other in zip(ours.messages, theirs.messages, strict=True))


def test_a_share_of_the_clients_gives_up() -> None:
    mix = Mix(Settings(cancel_share=0.25), WRITER)
    given_up = [mix.conversation(number).next().cancel_after for number in range(200)]
    assert sum(after is not None for after in given_up) == pytest.approx(50, abs=20)
