"""Tokenizers from GGUF files and folders: what they cut, where tokens end, and what is refused."""

import json
import struct
from array import array
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from trunkline.agent.engine.builtin.tokenizer import load_tokenizer
from trunkline.agent.engine.text import TextModel
from trunkline.shared.canonical import Message
from trunkline.shared.errors import ConfigError, RequestError

TEXTS = st.one_of(
    st.text(max_size=40), st.lists(st.sampled_from([" ", "a", "é", "🤖", "<|im_end|>", "1", "\x04"])).map("".join)
)


def test_the_default_model(text_model: TextModel) -> None:
    assert (text_model.context, text_model.vocab_size) == (8192, 49152)
    assert text_model.eos_ids == {0, 2}
    assert text_model.token_bytes(2) == b"<|im_end|>"
    assert text_model.token_bytes(-1) == text_model.token_bytes(49152) == b""
    assert len(text_model.special_ids) == 17


def test_tokens_of_a_chat(text_model: TextModel) -> None:
    encoded = text_model.encode("<|im_start|>user\nI don't  know 12é🤖<|im_end|>\n", add_special=False)
    texts = [text_model.token_bytes(token) for token in encoded.ids]
    assert b"".join(texts).decode() == "<|im_start|>user\nI don't  know 12é🤖<|im_end|>\n"
    assert texts[:9] == [b"<|im_start|>", b"user", b"\n", b"I", b" don", b"'t", b" ", b" know", b" "]
    assert (encoded.ids[0], encoded.ids[-2]) == (1, 2)
    assert len(set(encoded.words)) == len(encoded.ids) - 2, "the robot's three tokens are one word"


@given(text=TEXTS)
def test_ends_are_where_tokens_end(text_model: TextModel, text: str) -> None:
    encoded = text_model.encode(text, add_special=False)
    assert len(encoded.ids) == len(encoded.ends) == len(encoded.words)
    assert list(encoded.ends) == sorted(encoded.ends)
    assert list(encoded.words) == sorted(encoded.words)
    pieces = [text_model.token_bytes(token) for token in encoded.ids]
    if b"".join(pieces) == text.encode():  # the default model has no tokens for a few control characters
        assert list(encoded.ends) == [len(b"".join(pieces[: i + 1])) for i in range(len(pieces))]
    else:
        assert encoded.ends[-1:] <= array("i", [len(text.encode())])


def test_lone_surrogates_are_refused(text_model: TextModel) -> None:
    with pytest.raises(RequestError, match="Unicode"):
        text_model.encode("a\ud800", add_special=False)


# A folder and a GGUF file of one small tokenizer.

TEXT = "It don't rain in 1234 places: 中文, naïve, x\n\n  y <|end|>"
SPECIALS = ["<|begin|>", "<|end|>", "<|im_end|>"]
TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.content }}<|end|>{% endfor %}"


@pytest.fixture(scope="module")
def small() -> Tokenizer:
    """Bytes and a few merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [
        ("i", "n"),
        ("Ġ", "p"),
        ("a", "c"),
        ("1", "2"),
        ("Ċ", "Ċ"),
        ("Ġ", "Ġ"),
        ("ä", "¸"),
        ("d", "o"),
        ("do", "n"),
    ]
    tokens = [*SPECIALS, *alphabet, *(left + right for left, right in merges)]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIALS])
    tokenizer.post_processor = processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", 0)])
    return tokenizer


@pytest.fixture
def folder(small: Tokenizer, tmp_path: Path) -> Path:
    small.save(str(tmp_path / "tokenizer.json"))
    write(tmp_path / "config.json", max_position_embeddings=512, eos_token_id=1)
    write(
        tmp_path / "tokenizer_config.json",
        bos_token="<|begin|>",
        eos_token={"content": "<|end|>"},
        chat_template=TEMPLATE,
    )
    return tmp_path


def write(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(values))


def gguf(path: Path, small: Tokenizer, **changes: Any) -> Path:
    """A GGUF file with no tensors. `changes`: metadata to set (with "__" for "."), or None to leave out."""
    model = json.loads(small.to_str())["model"]
    tokens = [token for token, _ in sorted(model["vocab"].items(), key=lambda item: item[1])]
    metadata = {
        "general.architecture": "llama",
        "llama.context_length": 512,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in SPECIALS else 1 for token in tokens],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in model["merges"]],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.chat_template": TEMPLATE,
    } | {key.replace("__", "."): value for key, value in changes.items()}
    metadata = {key: value for key, value in metadata.items() if value is not None}
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, len(metadata))
    path.write_bytes(head + b"".join(_text(key) + _typed(value) for key, value in metadata.items()) + bytes(64))
    return path


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def _typed(value: Any) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<Ii", 5, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    kind = 8 if value and isinstance(value[0], str) else 5
    items = b"".join(_text(item) if kind == 8 else struct.pack("<i", item) for item in value)
    return struct.pack("<IIQ", 9, kind, len(value)) + items


def test_folder_and_gguf_agree(folder: Path, small: Tokenizer, tmp_path: Path) -> None:
    ours, theirs = load_tokenizer(folder), load_tokenizer(gguf(tmp_path / "small.gguf", small))
    for special in (False, True):
        assert ours.encode(TEXT, add_special=special) == theirs.encode(TEXT, add_special=special)
    assert ours.eos_ids == theirs.eos_ids == {1, 2}, "the one that is named, and the well-known one"
    assert ours.context == theirs.context == 512
    messages = [Message("user", "hi")]
    assert ours.render_chat(messages) == theirs.render_chat(messages) == "<|begin|>hi<|end|>"


def test_a_leading_bos_is_not_in_the_text(folder: Path) -> None:
    model = load_tokenizer(folder)
    plain, special = (model.encode(TEXT, add_special=add) for add in (False, True))
    assert special.ids == [0, *plain.ids]
    assert list(special.ends) == [0, *plain.ends]
    assert special.words[0] < special.words[1]


@pytest.mark.parametrize(
    ("pre", "number", "blank"),
    [
        ("gpt-2", " 1234", "\n\n "),
        ("smollm", " |1|2|3|4", "\n\n "),
        ("llama-bpe", " |123|4", "\n\n| "),
        ("qwen2", " |1|2|3|4", "\n\n| "),
    ],
)
def test_words_are_cut_as_the_family_does(pre: str, number: str, blank: str, small: Tokenizer, tmp_path: Path) -> None:
    model = load_tokenizer(gguf(tmp_path / "small.gguf", small, tokenizer__ggml__pre=pre))
    encoded = model.encode(TEXT, add_special=False)
    found: dict[int, bytes] = {}
    for token, word in zip(encoded.ids, encoded.words, strict=True):
        found[word] = found.get(word, b"") + model.token_bytes(token)
    words = f"It| don|'t| rain| in|{number}| places|:| 中文|,| naïve|,| x|{blank}| y| ".split("|")
    assert [word.decode() for word in found.values()] == [*words, "<|end|>"]


def test_qwen_normalizes(small: Tokenizer, tmp_path: Path) -> None:
    model = load_tokenizer(gguf(tmp_path / "small.gguf", small, tokenizer__ggml__pre="qwen2"))
    composed, decomposed = (model.encode(text, add_special=False) for text in ("é.", "e\u0301."))
    assert composed.ids == decomposed.ids
    assert decomposed.ends[-1] == 4


def test_fingerprints_tell_tokenizers_apart(small: Tokenizer, tmp_path: Path) -> None:
    variants = [{}, {}, {"tokenizer__ggml__pre": "qwen2"}, {"tokenizer__chat_template": "x"}]
    prints = [
        load_tokenizer(gguf(tmp_path / f"{i}.gguf", small, **changes)).fingerprint for i, changes in enumerate(variants)
    ]
    assert prints[0] == prints[1]
    assert len(set(prints)) == 3


def test_without_a_template_chats_are_refused(small: Tokenizer, tmp_path: Path) -> None:
    model = load_tokenizer(gguf(tmp_path / "small.gguf", small, tokenizer__chat_template=None))
    with pytest.raises(RequestError, match="no chat template"):
        model.render_chat([Message("user", "hi")])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tokenizer__ggml__model": "bert"}, "tokenizer type 'bert' is not supported"),
        ({"tokenizer__ggml__model": "llama"}, "no 'tokenizer.ggml.scores'"),
        ({"tokenizer__ggml__model": "llama", "tokenizer__ggml__scores": [1]}, "one entry per token"),
        ({"tokenizer__ggml__pre": "strange"}, "pre-tokenizer 'strange' is not supported"),
        ({"tokenizer__ggml__tokens": None}, "tokenizer.ggml.tokens"),
        ({"tokenizer__ggml__tokens": 5}, "is not a list"),
        ({"tokenizer__ggml__tokens": [1, 2]}, "is not a list of texts"),
        ({"tokenizer__ggml__tokens": ["a", "a"], "tokenizer__ggml__token_type": [1, 1]}, "equal"),
        ({"tokenizer__ggml__token_type": [1, 1]}, "one entry per token"),
        ({"tokenizer__ggml__merges": ["x9 y9"]}, "merges do not fit"),
        ({"tokenizer__ggml__eos_token_id": 100000}, "eos_token_id is 100000"),
        ({"tokenizer__ggml__bos_token_id": -1}, "bos_token_id is not a number that makes sense"),
        ({"llama__context_length": "much"}, "context_length is not a number"),
        ({"tokenizer__chat_template": "{% if %}"}, "does not compile"),
    ],
)
def test_bad_gguf_files_give_one_clear_error(
    changes: dict[str, Any], reason: str, small: Tokenizer, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        load_tokenizer(gguf(tmp_path / "small.gguf", small, **changes))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("tokenizer.json", None, "has no tokenizer.json"),
        ("tokenizer.json", "{}", "tokenizer.json cannot be read"),
        ("config.json", None, "config.json cannot be read"),
        ("config.json", "[1]", "config.json cannot be read"),
        ("config.json", "{}", "max_position_embeddings"),
        ("tokenizer_config.json", "{", "tokenizer_config.json cannot be read"),
        ("chat_template.jinja", "{% if %}", "does not compile"),
    ],
)
def test_bad_folders_give_one_clear_error(folder: Path, name: str, content: str | None, reason: str) -> None:
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(content)
    with pytest.raises(ConfigError, match=reason):
        load_tokenizer(folder)


def test_templates_of_a_folder(folder: Path) -> None:
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]
    write(folder / "tokenizer_config.json", chat_template=named)
    assert load_tokenizer(folder).render_chat([Message("user", "hi")]) == "yes"
    (folder / "chat_template.jinja").write_text("file")
    assert load_tokenizer(folder).render_chat([Message("user", "hi")]) == "file"


def test_ends_of_a_folder(folder: Path) -> None:
    write(folder / "config.json", max_position_embeddings=512, eos_token_id=None)
    write(folder / "generation_config.json", eos_token_id=[7, 8])
    assert load_tokenizer(folder).eos_ids == {1, 2, 7, 8}


def test_sentencepiece_bytes(tmp_path: Path) -> None:
    """Tokenizers converted from SentencePiece write spaces and bytes in their own way."""
    tokens = ["<unk>", "<0x0A>", "<0xC3>", "<0xA9>", "▁", "a", "▁a"]
    tokenizer = Tokenizer(
        models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=[("▁", "a")], byte_fallback=True)
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    write(tmp_path / "config.json", max_position_embeddings=64)
    model = load_tokenizer(tmp_path)
    assert [model.token_bytes(token) for token in range(7)] == [b"<unk>", b"\n", b"\xc3", b"\xa9", b" ", b"a", b" a"]
