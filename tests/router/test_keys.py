"""Key chains of prompts: shared prefixes share keys, whatever separates tenants or models separates keys."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.router.body import Prompt, read_chat, read_completion
from trunkline.router.keys import PromptKeys, Seeds
from trunkline.shared.canonical import Canonical, Message, of_chat, of_prompt
from trunkline.shared.names import PAGE_TOKENS, TEXT_CHUNK
from trunkline.shared.namespace import Namespace

SPACE = Namespace("f00d", "float32", "layout")


def keys(content: Canonical | array, salt: str = "", space: Namespace = SPACE, ratio: float = 4.0) -> list[int]:  # type: ignore[type-arg]
    return memoryview(PromptKeys(Prompt("m", content), salt, Seeds(), ratio).chain(space)).cast("Q").tolist()


def shared(one: list[int], other: list[int]) -> int:
    return next(
        (index for index, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]),
        min(len(one), len(other)),
    )


def test_chats_share_keys_up_to_the_first_difference() -> None:
    system = Message("system", "s" * 1000)
    first, second = (keys(of_chat([system, Message("user", text)])) for text in ("one", "two"))
    assert len(first) == len(second) == -(-1000 // TEXT_CHUNK) + 1
    assert shared(first, second) == len(first) - 1


@pytest.mark.parametrize(
    ("salt", "space"),
    [("aa", SPACE), ("", Namespace("beef", "float32", "layout")), ("", Namespace("f00d", "float16", "layout"))],
)
def test_salt_and_namespace_share_nothing(salt: str, space: Namespace) -> None:
    for content in (of_prompt("x" * 500), array("i", range(100))):
        assert shared(keys(content), keys(content, salt, space)) == 0


def test_token_ids_have_page_keys() -> None:
    tokens = array("i", range(100))
    assert len(keys(tokens)) == 100 // PAGE_TOKENS
    assert shared(keys(tokens), keys(tokens[:40])) == 2
    assert PromptKeys(Prompt("m", tokens), "", Seeds(), 4.0).tokens == 100


@given(st.lists(st.text(max_size=400), min_size=1, max_size=5), st.booleans())
def test_there_is_a_key_for_each_chunk(texts: list[str], chat: bool) -> None:
    content = of_chat([Message("user", text) for text in texts]) if chat else of_prompt("".join(texts))
    prompt = PromptKeys(Prompt("m", content), "", Seeds(), 1.0)
    assert len(prompt.chain(SPACE)) // 8 == len(content.boundaries())
    assert prompt.text_bytes == len("".join(texts).encode())


def test_prompts_of_every_shape_are_read() -> None:
    assert read_completion(b'{"model":"m","prompt":"ab"}').content == of_prompt("ab")
    assert read_completion(b'{"model":"m","prompt":["ab","c"]}').content == of_prompt("ab")
    assert read_completion(b'{"model":"m","prompt":[1,2]}').content == array("i", [1, 2])
    assert read_completion(b'{"model":"m","prompt":[[1,2],[3]]}').content == array("i", [1, 2])


def test_tools_and_template_arguments_are_part_of_the_prompt() -> None:
    plain = read_chat(b'{"model":"m","messages":[{"role":"user","content":"x"}]}')
    tools = read_chat(b'{"model":"m","messages":[{"role":"user","content":"x"}],"tools":[{"type":"function"}]}')
    arguments = read_chat(b'{"model":"m","messages":[{"role":"user","content":"x"}],"chat_template_kwargs":{"a":1}}')
    chains = [keys(prompt.content) for prompt in (plain, tools, arguments)]
    assert all(shared(one, other) == 0 for one in chains for other in chains if one is not other)
