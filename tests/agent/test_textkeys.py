"""The promise of text keys: who shares a key shares its tokens. With the default model's real tokenizer.

Most tests look through a magnifying glass: chunks of one byte and pages of one token, so that every byte of a text is
a boundary and every promised token counts.
"""

import json
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from trunkline.agent.engine.builtin import textkeys, tokenizer_gguf
from trunkline.agent.engine.builtin.textkeys import TextKeys
from trunkline.agent.engine.builtin.tokenizer import TokenizerModel
from trunkline.agent.engine.builtin.tokenizer_parts import TokenizerParts
from trunkline.agent.engine.emulated.text import EmulatedText
from trunkline.agent.engine.text import TextModel
from trunkline.kernels.core import hash64, text_chain
from trunkline.shared import canonical
from trunkline.shared.canonical import Canonical, Message, of_chat, of_prompt
from trunkline.shared.names import PAGE_TOKENS
from trunkline.shared.namespace import Namespace

NAMESPACE = Namespace("model", "float32", "layout")
TRIMMING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n\n{{ m.content | trim }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n\n{% endif %}"
)
PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}A:{% endif %}"

LONG = "It is the policy of this desk to answer in plain words, to quote its sources, and to say so when unsure. " * 12

# Whatever may be cut otherwise when something else follows it.
PIECES = st.sampled_from(
    " |  |   |\t|\r\n|\n|\n\n| \n|a|b|the| the|don't|'|'l|'ll|'re|'v|'S|1|12|1234| 7|é|e\u0301|\u0301|\u0338|=|中文"
    "|🤖|👩‍👧|…|.|..|,|!|?!|<|<\\|im_end\\|>|<\\|im_start\\|>|<repo|_|__|-|--|----|hello| world|://|#|##| #|{|}"
    "|\u00a0|\u3000|\u2028|\x85|\x1c|\x04|\u212b|가|\u1100\u1161|BC|ing| s|user|assistant|You are".replace(
        "\\|", "\0"
    ).split("|")
).map(lambda piece: piece.replace("\0", "|"))
PIECES |= st.sampled_from(["<|", "<|im", "<|im_end|", "|>"])
TEXTS = st.lists(PIECES, max_size=8).map("".join)
MESSAGES = st.lists(st.builds(Message, st.sampled_from(["user", "assistant", "system"]), TEXTS), max_size=2)


def with_template(path: Path, template: str | None, family: str = "smollm") -> TextModel:
    """The default model's vocabulary with another template, and with words cut as another family does."""
    parts = tokenizer_gguf.load(path)
    parts.tokenizer.pre_tokenizer = tokenizer_gguf._pre_tokenizer(family)
    return TokenizerModel(replace(parts, template=template) if template else parts)


def sentencepiece() -> TextModel:
    """A small tokenizer of the kind that cuts no words: spaces are part of the text that is merged."""
    learner = Tokenizer(models.BPE())
    learner.normalizer = normalizers.Replace(" ", "▁")
    learner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    learner.train_from_iterator([LONG, "don't hello  world   user:"], trainers.BpeTrainer(show_progress=False))
    learnt = json.loads(learner.to_str())["model"]
    bytes_and_pieces = [*(f"<0x{byte:02X}>" for byte in range(256)), *learnt["vocab"]]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={piece: index for index, piece in enumerate(bytes_and_pieces)},
            merges=[(left, right) for left, right in learnt["merges"]],
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    return TokenizerModel(TokenizerParts(tokenizer, frozenset(), "", "", 4096, PLAIN))


@pytest.fixture(
    scope="module",
    params=[
        ("smollm", None),
        ("smollm", TRIMMING),
        ("llama3", PLAIN),
        ("qwen2", TRIMMING),
        ("gpt2", PLAIN),
        ("sentencepiece", PLAIN),
        ("emulated", None),
    ],
    ids=lambda param: f"{param[0]}-{'own' if param[1] is None else 'trimming' if param[1] is TRIMMING else 'plain'}",
)
def model(request: pytest.FixtureRequest, model_path: Path) -> TextModel:
    family, template = request.param
    if family == "sentencepiece":
        return sentencepiece()
    if family == "emulated":
        return EmulatedText()
    return with_template(model_path, template, family)


@contextmanager
def magnified() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(canonical, "TEXT_CHUNK", 1)
        patch.setattr(textkeys, "TEXT_CHUNK", 1)
        patch.setattr(textkeys, "PAGE_TOKENS", 1)
        yield


class Known(NamedTuple):
    """A prompt's tokens, the depths that are published for its keys, and the keys it is looked up by."""

    ids: list[int]
    depths: dict[int, int]
    chain: set[int]


def unpack(keys: bytes, depths: bytes) -> dict[int, int]:
    pairs = zip(struct.iter_unpack("<Q", keys), struct.iter_unpack("<I", depths), strict=True)
    return {key: depth for (key,), (depth,) in pairs}


def chain(framed: Canonical) -> list[int]:
    seed = hash64(NAMESPACE.text_seed_bytes())
    packed = text_chain(seed, framed.frames, framed.texts, canonical.TEXT_CHUNK, closed=framed.closed)
    return [key for (key,) in struct.iter_unpack("<Q", packed)]


def of_text(model: TextModel, framed: Canonical, text: str) -> Known:
    encoded = model.encode(text, add_special=False)
    depths = unpack(*TextKeys(model).of_prompt(NAMESPACE, framed, text, encoded))
    return Known(encoded.ids, depths, set(chain(framed)))


def of_messages(model: TextModel, messages: list[Message]) -> Known:
    return of_text(model, of_chat(messages), model.render_chat(messages))


def promised(holder: Known, asking: Known) -> int:
    """Checks the holder's promises to who asks, and returns how many tokens it promises."""
    depth = max((holder.depths[key] for key in holder.depths.keys() & asking.chain), default=0)
    assert holder.ids[:depth] == asking.ids[:depth]
    return depth


@settings(max_examples=60)
@given(before=MESSAGES, shared=TEXTS, one=TEXTS, other=TEXTS, after=MESSAGES)
@example(before=[], shared="I don'l", one="l see", other="ike", after=[])
@example(before=[], shared="so it ends <|im_en", one="d|>", other="ough", after=[])
@example(before=[], shared="so it ends  ", one=" x", other="x", after=[])
@example(before=[], shared="a b e", one="\u0301", other="f", after=[])
@example(before=[], shared="a b \u3000", one="\u3000c", other="c", after=[])
@example(before=[], shared="one two   ", one="three", other="", after=[])
def test_chats_with_a_shared_key_share_its_tokens(
    model: TextModel, before: list[Message], shared: str, one: str, other: str, after: list[Message]
) -> None:
    chats = ([*before, Message("user", shared + rest), *after] for rest in (one, other))
    with magnified():
        ours, theirs = (of_messages(model, chat) for chat in chats)
    promised(ours, theirs)
    promised(theirs, ours)


@settings(max_examples=60)
@given(shared=TEXTS, one=TEXTS, other=TEXTS)
@example(shared="I don'l", one="l see", other="ike")
@example(shared="well<|im_star", one="t|>", other="e")
def test_prompts_with_a_shared_key_share_its_tokens(model: TextModel, shared: str, one: str, other: str) -> None:
    with magnified():
        ours, theirs = (of_text(model, of_prompt(text), text) for text in (shared + one, shared + other))
    promised(ours, theirs)
    promised(theirs, ours)


def test_all_but_the_last_words_are_promised(text_model: TextModel) -> None:
    system = Message("system", "You are a terse assistant, and you answer in one word.")
    with magnified():
        ours, theirs = (of_messages(text_model, [system, Message("user", text)]) for text in ("Who is it?", "Are we?"))
    until_the_end = text_model.encode("<|im_start|>system\n" + str(system.content), add_special=False).ids
    assert promised(ours, theirs) == len(until_the_end) - 2


def test_what_follows_a_changed_message_has_no_depth(model_path: Path) -> None:
    shouting = with_template(model_path, "{% for m in messages %}[{{ m.content | upper }}]{% endfor %}")
    with magnified():
        messages = [Message("user", "ONE AND TWO AND"), Message("user", "three AND FOUR AND FIVE")]
        known = of_messages(shouting, messages)
    first = shouting.encode("[ONE AND TWO AND]", add_special=False).ids
    assert 0 < max(known.depths.values()) < len(first)


def test_keys_are_those_of_the_chain(text_model: TextModel) -> None:
    messages = [Message("system", LONG), Message("user", "What is it?")]
    keys, expected = list(of_messages(text_model, messages).depths), chain(of_chat(messages))
    assert keys == expected[: len(keys)]
    assert len(keys) >= len(expected) - 2


def test_depths_are_whole_pages_that_grow_with_the_text(text_model: TextModel) -> None:
    known = of_messages(text_model, [Message("system", LONG), Message("user", "What is it?")])
    depths = list(known.depths.values())
    assert depths == sorted(depths)
    assert all(depth % PAGE_TOKENS == 0 for depth in depths)
    assert len(known.ids) - depths[-1] < 3 * PAGE_TOKENS
    assert depths.count(depths[-1]) == 1, "keys that promise nothing new are left out"


def test_a_short_first_message_leaves_no_hole(text_model: TextModel) -> None:
    known = of_messages(text_model, [Message("system", "Be brief."), Message("user", LONG)])
    depths = list(known.depths.values())
    assert depths[0] == 0
    assert depths[-1] > len(known.ids) - 4 * PAGE_TOKENS


def test_a_prompt_that_settles_nothing_has_no_keys(text_model: TextModel) -> None:
    assert of_text(text_model, of_prompt("Hello"), "Hello").depths == {}
    assert of_text(text_model, of_prompt(" " * 5000), " " * 5000).depths == {}


def test_namespaces_share_no_keys(text_model: TextModel) -> None:
    encoded = text_model.encode(LONG, add_special=False)
    ours = TextKeys(text_model).of_prompt(NAMESPACE, of_prompt(LONG), LONG, encoded)
    theirs = TextKeys(text_model).of_prompt(NAMESPACE.salted("07"), of_prompt(LONG), LONG, encoded)
    assert ours[1] == theirs[1]
    assert not unpack(*ours).keys() & unpack(*theirs).keys()


@settings(max_examples=40)
@given(
    before=MESSAGES, question=TEXTS, reply=TEXTS, after=st.lists(st.builds(Message, st.just("user"), TEXTS), max_size=2)
)
def test_the_next_turn_shares_the_tokens_of_the_reply(
    model: TextModel, before: list[Message], question: str, reply: str, after: list[Message]
) -> None:
    asked = [*before, Message("user", question)]
    prompt = model.encode(model.render_chat(asked), add_special=False).ids
    tokens = prompt + model.encode(reply, add_special=False).ids
    with magnified():
        keys = unpack(*TextKeys(model).of_reply(NAMESPACE, asked, b"", b"", reply, tokens))
        next_turn = of_messages(model, [*asked, Message("assistant", reply), *after])
    assert max(keys.values(), default=0) <= len(tokens)
    promised(Known(tokens, keys, set()), next_turn)


def test_the_reply_is_promised_to_the_next_turn(text_model: TextModel) -> None:
    asked = [Message("system", LONG), Message("user", "What is it?")]
    prompt = text_model.encode(text_model.render_chat(asked), add_special=False).ids
    reply = "It is what the desk says that it is, and it has said so before. " * 5
    tokens = prompt + text_model.encode(reply, add_special=False).ids
    keys = unpack(*TextKeys(text_model).of_reply(NAMESPACE, asked, b"", b"", reply, tokens))
    next_turn = of_messages(text_model, [*asked, Message("assistant", reply), Message("user", "Sure?")])
    assert promised(Known(tokens, keys, set()), next_turn) > len(tokens) - 2 * PAGE_TOKENS


def test_a_reply_in_other_tokens_is_promised_up_to_them(text_model: TextModel) -> None:
    asked = [Message("user", "Spell it.")]
    prompt = text_model.encode(text_model.render_chat(asked), add_special=False).ids
    reply = LONG
    spelt = [token for character in reply for token in text_model.encode(character, add_special=False).ids]
    keys = unpack(*TextKeys(text_model).of_reply(NAMESPACE, asked, b"", b"", reply, prompt + spelt))
    assert max(keys.values()) <= len(prompt) + 1


def test_words_start_at_spaces_where_none_are_cut() -> None:
    model = sentencepiece()
    encoded = model.encode("to quote its sources", add_special=False)
    starts = [
        index for index in range(len(encoded.ids)) if index == 0 or encoded.words[index] != encoded.words[index - 1]
    ]
    assert [model.token_bytes(encoded.ids[index]) for index in starts] == [b" to", b" quote", b" its", b" sources"]
