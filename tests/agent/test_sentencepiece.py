"""What is built from SentencePiece's pieces says what SentencePiece says."""

import io
from pathlib import Path

import gguf
import pytest
import sentencepiece
from hypothesis import example, given
from hypothesis import strategies as st

from trunkline.agent.engine.builtin.tokenizer import load_tokenizer
from trunkline.agent.engine.text import TextModel

SENTENCES = [
    "The shelf about rivers is behind the shelf about mountains.",
    "It don't rain in 1234 places; the places where it rains are wet.",
    "naïve cafés über straße, naïve cafés über straße",
    "def f(x):\n    return x + 1\n\n    # spaces    and more    spaces",
] * 8
TEXTS = st.one_of(
    st.text(max_size=40),
    st.lists(st.sampled_from([" ", "  ", "the ", "rain", "s", "é", "ß", "🤖", "\n", "12", "shelf", "▁"])).map("".join),
)


def train(**options: bool) -> sentencepiece.SentencePieceProcessor:
    """As Llama's was: nothing is normalized, and what has no piece is written in bytes."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES),
        model_writer=model,
        model_type="bpe",
        vocab_size=400,
        character_coverage=0.98,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        split_digits=True,
        minloglevel=2,
        **options,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def write(path: Path, pieces: sentencepiece.SentencePieceProcessor, *, prefix: bool) -> Path:
    numbers = range(pieces.get_piece_size())
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(512)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([pieces.id_to_piece(number) for number in numbers])
    writer.add_token_scores([pieces.get_score(number) for number in numbers])
    writer.add_token_types(
        [
            2 if pieces.is_unknown(number) else 3 if pieces.is_control(number) else 6 if pieces.is_byte(number) else 1
            for number in numbers
        ]
    )
    writer.add_bos_token_id(pieces.bos_id())
    writer.add_eos_token_id(pieces.eos_id())
    if not prefix:
        writer.add_add_space_prefix(prefix)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module", params=[True, False], ids=["prefix", "plain"])
def both(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[TextModel, sentencepiece.SentencePieceProcessor]:
    pieces = train(add_dummy_prefix=request.param)
    path = write(tmp_path_factory.mktemp("pieces") / "pieces.gguf", pieces, prefix=request.param)
    return load_tokenizer(path), pieces


@given(text=TEXTS)
@example(text="the rains  in\n naïve 🤖 places")
def test_the_same_tokens(both: tuple[TextModel, sentencepiece.SentencePieceProcessor], text: str) -> None:
    model, pieces = both
    assert model.encode(text, add_special=False).ids == pieces.encode(text)
    assert model.encode(text, add_special=True).ids == [pieces.bos_id(), *pieces.encode(text)]


def test_tokens_are_the_bytes_of_the_text(both: tuple[TextModel, sentencepiece.SentencePieceProcessor]) -> None:
    model, pieces = both
    text = "the rains in naïve 🤖 places"
    raw = b"".join(map(model.token_bytes, model.encode(text, add_special=False).ids))
    assert raw.decode().removeprefix(" ") == text
    assert model.eos_ids == {pieces.eos_id()}
    assert model.special_ids == {pieces.bos_id(), pieces.eos_id()}


def test_a_part_of_the_text_that_is_over_keeps_its_tokens(
    both: tuple[TextModel, sentencepiece.SentencePieceProcessor],
) -> None:
    """What text keys rest on: no token reaches over the end of a word."""
    model, _ = both
    short, long = (model.encode(text, add_special=False) for text in ("the rain in", "the rain in places"))
    shared = max(number for number, word in enumerate(short.words) if word < short.words[-1]) + 1
    assert shared > 0
    assert long.ids[:shared] == short.ids[:shared]
    assert list(long.ends[:shared]) == list(short.ends[:shared])
