"""What is prepared off the event loop, and what is refused before it costs anything."""

import asyncio
import json
import threading

import pytest

from tests.agent.fake_node import FakeEngine, served
from trunkline.agent.engine.text import TextModel
from trunkline.agent.openai.body import chat_body, completion_body
from trunkline.agent.prepare import Preparer
from trunkline.shared.errors import RequestError
from trunkline.shared.namespace import Namespace

CONTEXT = 100


class Untouched:
    """A text model that tokenizes nothing."""

    longest_token = 10

    def __init__(self, text: TextModel) -> None:
        self.render_chat = text.render_chat
        self.added_texts = text.added_texts

    def encode(self, text: str, *, add_special: bool) -> None:
        raise AssertionError(f"{len(text)} characters were tokenized")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": "a" * 1001}, "prompt"),
        ({"prompt": ["a" * 1001, "b"]}, "prompt.0"),
        ({"messages": [{"role": "user", "content": "a" * 1001}]}, "messages"),
    ],
)
def test_what_can_never_fit_is_not_tokenized(text_model: TextModel, fields: dict[str, object], param: str) -> None:
    raw = json.dumps({"model": "m"} | fields).encode()
    preparer = Preparer(Untouched(text_model), Namespace("f", "float32", "l"), CONTEXT, 1)  # type: ignore[arg-type]
    with pytest.raises(RequestError) as caught:
        asyncio.run(preparer.prompts(chat_body(raw) if "messages" in fields else completion_body(raw), ""))
    preparer.close()
    assert (caught.value.status, caught.value.param) == (400, param)


def test_a_text_that_may_fit_is_tokenized(text_model: TextModel) -> None:
    longest = max(map(text_model.token_bytes, range(text_model.vocab_size)), key=len).decode()
    preparer = Preparer(text_model, Namespace("f", "float32", "l"), 1, 1)
    body = completion_body(json.dumps({"model": "m", "prompt": longest}).encode())
    (prompt,) = asyncio.run(preparer.prompts(body, ""))
    preparer.close()
    assert len(prompt.tokens) == 1


def test_too_many_prompts_are_not_tokenized(text_model: TextModel, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with served(FakeEngine(), text_model) as client:
            monkeypatch.setattr(text_model, "encode", Untouched(text_model).encode)
            for fields in ({"prompt": ["a"] * 65}, {"prompt": ["a"] * 33, "n": 2}, {"prompt": [[1]] * 65}):
                answer = await client.post("/v1/completions", json={"model": "fake"} | fields)
                assert (answer.status_code, answer.json()["error"]["param"]) == (400, "n")

    asyncio.run(main())


def test_other_threads_run_while_a_long_text_is_tokenized(text_model: TextModel) -> None:
    turns = 0
    done = threading.Event()

    def run() -> None:
        nonlocal turns
        while not done.wait(0.001):
            turns += 1

    thread = threading.Thread(target=run)
    thread.start()
    text_model._tokenizer.encode_batch(["warm up"])
    before = turns
    text_model.encode("Words, and more of them. " * 40_000, add_special=False)
    during = turns - before
    done.set()
    thread.join()
    assert during > 20


def test_what_comes_after_the_end_is_refused(text_model: TextModel) -> None:
    preparer = Preparer(text_model, Namespace("f", "float32", "l"), CONTEXT, 1)
    preparer.close()
    with pytest.raises(RequestError, match="closing") as caught:
        asyncio.run(preparer.prompts(completion_body(b'{"model": "m", "prompt": "a"}'), ""))
    assert caught.value.status == 503
