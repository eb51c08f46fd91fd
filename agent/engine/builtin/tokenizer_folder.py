"""The text side of a model from a folder as Hugging Face lays it out: tokenizer.json and the JSON files beside it."""

from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer

from trunkline.agent.engine.builtin.tokenizer_parts import TokenizerParts, end_ids
from trunkline.shared.errors import ConfigError


def load(path: Path) -> TokenizerParts:
    """Raises ConfigError, naming the file, for one that is missing or damaged."""
    file = path / "tokenizer.json"
    if not file.is_file():
        raise ConfigError(f"model folder {path} has no tokenizer.json")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # noqa: BLE001 - what tokenizers raises for a damaged file
        raise ConfigError(f"{file} cannot be read: {error}") from None
    config = _json(path / "config.json", required=True)
    texts = _json(path / "tokenizer_config.json")
    bos, eos = _special(texts, "bos_token"), _special(texts, "eos_token")
    ends = _ids(config) | _ids(_json(path / "generation_config.json"))
    if (eos_id := tokenizer.token_to_id(eos)) is not None:
        ends.add(eos_id)
    context = config.get("max_position_embeddings")
    if isinstance(context, bool) or not isinstance(context, int) or context < 1:
        raise ConfigError(f"{path / 'config.json'}: max_position_embeddings is no number of tokens: {context!r}")
    return TokenizerParts(tokenizer, end_ids(tokenizer, ends), bos, eos, context, _template(path, texts))


def _json(file: Path, *, required: bool = False) -> dict[str, Any]:
    if not required and not file.is_file():
        return {}
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from None


def _special(texts: dict[str, Any], name: str) -> str:
    """A special token, which is a text or an object with the text in it."""
    match texts.get(name):
        case str(text) | {"content": str(text)}:
            return text
    return ""


def _ids(config: dict[str, Any]) -> set[int]:
    """`eos_token_id`, which is a number or a list of them."""
    found = config.get("eos_token_id")
    ids = found if isinstance(found, list) else [found]
    return {token for token in ids if isinstance(token, int)}


def _template(path: Path, texts: dict[str, Any]) -> str | None:
    """A file of its own, or an entry of the tokenizer's configuration; of several, the one called "default"."""
    file = path / "chat_template.jinja"
    try:
        if file.is_file():
            return file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from None
    match texts.get("chat_template"):
        case str(template):
            return template
        case list(named):
            return next((entry["template"] for entry in named if entry.get("name") == "default"), None)
    return None
