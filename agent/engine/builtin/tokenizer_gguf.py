"""The text side of a model from a GGUF file.

Two of llama.cpp's tokenizer types: "gpt2", byte-level BPE, and "llama", SentencePiece's BPE.
"""

from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from trunkline.agent.engine.builtin import sentencepiece
from trunkline.agent.engine.builtin.tokenizer_parts import TokenizerParts, end_ids
from trunkline.agent.engine.builtin.weights.gguf_file import read_gguf
from trunkline.shared.errors import ConfigError

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
"""llama.cpp's token types of what stands for the unknown, of special tokens, and of added ones that have text."""

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3, _QWEN2, _GPT2, _SMOLLM = "llama3", "qwen2", "gpt2", "smollm"
_FAMILIES = {
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "gpt-2": _GPT2,
    "default": _GPT2,
    "smollm": _SMOLLM,
}
"""Names of pre-tokenizers in `tokenizer.ggml.pre`, and how each cuts words."""


def load(path: Path) -> TokenizerParts:
    """Raises ConfigError, naming the file, for one that is damaged or has another kind of tokenizer."""
    try:
        return _Source(path, read_gguf(path).metadata).parts()
    except (KeyError, IndexError) as error:
        raise ConfigError(f"{path} is damaged or incomplete: no {error} in its head") from None


class _Source:
    def __init__(self, path: Path, metadata: dict[str, Any]) -> None:
        self._path = path
        self._metadata = metadata

    def parts(self) -> TokenizerParts:
        kind = self._text("tokenizer.ggml.model")
        tokens = self._texts("tokenizer.ggml.tokens")
        types = self._per_token("tokenizer.ggml.token_type", len(tokens))
        if kind == "gpt2":
            family = self._family()
            tokenizer, adds_bos = self._byte_level(tokens, family), family == _LLAMA3
        elif kind == "llama":
            tokenizer, adds_bos = self._sentencepiece(tokens, types), True
        else:
            raise self._error(f"tokenizer type {kind!r} is not supported, only 'gpt2' and 'llama': use a folder")
        control = [token for token, kind in zip(tokens, types, strict=True) if kind == _CONTROL]
        defined = [token for token, kind in zip(tokens, types, strict=True) if kind == _USER_DEFINED]
        tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
        tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in defined])
        bos, eos = self._token_id("bos", len(tokens)), self._token_id("eos", len(tokens))
        if bos is not None and self._metadata.get("tokenizer.ggml.add_bos_token", adds_bos) is True:
            tokenizer.post_processor = processors.TemplateProcessing(
                single=f"{tokens[bos]} $A", special_tokens=[(tokens[bos], bos)]
            )
        ends = [self._token_id(name, len(tokens)) for name in ("eos", "eot", "eom")]
        template = self._metadata.get("tokenizer.chat_template")
        return TokenizerParts(
            tokenizer=tokenizer,
            eos_ids=end_ids(tokenizer, (token for token in ends if token is not None)),
            bos_token="" if bos is None else tokens[bos],
            eos_token="" if eos is None else tokens[eos],
            context=self._number(f"{self._text('general.architecture')}.context_length"),
            template=template if isinstance(template, str) else None,
        )

    def _family(self) -> str:
        name = self._text("tokenizer.ggml.pre") if "tokenizer.ggml.pre" in self._metadata else "default"
        if name not in _FAMILIES:
            raise self._error(f"pre-tokenizer {name!r} is not supported, only {', '.join(_FAMILIES)}: use a folder")
        return _FAMILIES[name]

    def _byte_level(self, tokens: list[str], family: str) -> Tokenizer:
        vocab = {token: index for index, token in enumerate(tokens)}
        if len(vocab) != len(tokens):
            raise self._error("two tokens of its vocabulary are equal")
        pairs = (merge.partition(" ") for merge in self._texts("tokenizer.ggml.merges"))
        merges = [(left, right) for left, _, right in pairs]
        try:
            tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=family == _LLAMA3))
        except Exception as error:  # noqa: BLE001 - what tokenizers raises for merges it cannot use
            raise self._error(f"its merges do not fit its vocabulary: {error}") from None
        if family == _QWEN2:
            tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = _pre_tokenizer(family)
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer

    def _sentencepiece(self, tokens: list[str], types: list[Any]) -> Tokenizer:
        scores = self._per_token("tokenizer.ggml.scores", len(tokens))
        if not all(isinstance(score, float) for score in scores):
            raise self._error("tokenizer.ggml.scores is not a list of numbers")
        unknown = next((token for token, kind in zip(tokens, types, strict=True) if kind == _UNKNOWN), None)
        prefix = self._metadata.get("tokenizer.ggml.add_space_prefix", True) is True
        try:
            return sentencepiece.build(tokens, scores, unknown, prefix=prefix)
        except Exception as error:  # noqa: BLE001 - what tokenizers raises for pieces it cannot use
            raise self._error(f"its pieces make no tokenizer: {error}") from None

    def _per_token(self, key: str, count: int) -> list[Any]:
        values = self._metadata[key]
        if not isinstance(values, list) or len(values) != count:
            raise self._error(f"{key} does not have one entry per token")
        return values

    def _token_id(self, name: str, count: int) -> int | None:
        key = f"tokenizer.ggml.{name}_token_id"
        if key not in self._metadata:
            return None
        token = self._number(key)
        if token >= count:
            raise self._error(f"{key} is {token}, but it has {count} tokens")
        return token

    def _number(self, key: str) -> int:
        value = self._metadata[key]
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self._error(f"{key} is not a number that makes sense: {str(value)[:40]!r}")
        return value

    def _text(self, key: str) -> str:
        value = self._metadata[key]
        if not isinstance(value, str):
            raise self._error(f"{key} is not a text: {str(value)[:40]!r}")
        return value

    def _texts(self, key: str) -> list[str]:
        values = self._metadata[key]
        if not isinstance(values, list):
            raise self._error(f"{key} is not a list")
        texts = [value for value in values if isinstance(value, str)]
        if len(texts) != len(values):
            raise self._error(f"{key} is not a list of texts")
        return texts

    def _error(self, reason: str) -> ConfigError:
        return ConfigError(f"{self._path}: {reason}")


def _pre_tokenizer(family: str) -> pre_tokenizers.PreTokenizer:
    if family == _GPT2:
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if family == _SMOLLM:
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    words = _WORDS % ("{1,3}" if family == _LLAMA3 else "")
    split = pre_tokenizers.Split(Regex(words), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
