"""Tokenizers of SentencePiece's BPE type, built from their pieces and scores: Llama 2, Mistral and their kin.

SentencePiece joins, again and again, the two neighbours whose union has the best score. That is BPE with a merge for
every way of splitting a piece into two others, ordered by the piece's score; `tokenizers` knows BPE only in this form.
What no piece stands for is written in bytes.
"""

from collections.abc import Sequence

from tokenizers import Tokenizer, decoders, models, normalizers

SPACE = "\u2581"


def build(pieces: Sequence[str], scores: Sequence[float], unknown: str | None, *, prefix: bool) -> Tokenizer:
    """`unknown`: the piece of what cannot even be written in bytes. `prefix`: whether a text begins with a space more.

    Raises ValueError for pieces that are equal, and what `tokenizers` raises for others that it cannot use.
    """
    vocab = {piece: index for index, piece in enumerate(pieces)}
    if len(vocab) != len(pieces):
        raise ValueError("two of its pieces are equal")
    tokenizer = Tokenizer(
        models.BPE(vocab=vocab, merges=_merges(vocab, scores), unk_token=unknown, fuse_unk=True, byte_fallback=True)
    )
    space = normalizers.Replace(" ", SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), space]) if prefix else space
    tokenizer.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def _merges(vocab: dict[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    ranked = sorted(vocab, key=lambda piece: -scores[vocab[piece]])
    splits = ((piece[:at], piece[at:]) for piece in ranked for at in range(1, len(piece)))
    return [(left, right) for left, right in splits if left in vocab and right in vocab]
