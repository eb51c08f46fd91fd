"""Requests of a trace: when they come, how long they are, and which prefixes they share.

Formats: Mooncake JSONL (`timestamp` in ms, `input_length`, `output_length`, `hash_ids`), and Azure CSV arrivals
(TIMESTAMP, ContextTokens, GeneratedTokens), whose prefixes `prefixes.py` makes up.
"""

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import chain as flatten
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from trunkline.loadtest.sim.prefixes import PrefixGenerator
from trunkline.shared.errors import ConfigError
from trunkline.shared.names import PAGE_TOKENS

MAX_TOKENS = 1 << 24
"""Of one prompt, and of one reply."""
_CSV_HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"


class Record(NamedTuple):
    """One request of a trace. `arrival` in seconds from the first one; `session` numbers conversations."""

    arrival: float
    prompt_tokens: int
    output_tokens: int
    blocks: "array[int]"
    """Ids of the blocks of the prompt, `array('q')`: equal ids at equal places are equal text with equal prefix."""
    session: int

    def page_tokens(self, block_tokens: int) -> "array[int]":
        """Pseudo token ids, `array('i')`: one page of 16 for each block, so that real caches and chains can be used.

        A last block that is not full becomes 1 to 15 tokens, which no page key covers.
        """
        full, rest = divmod(self.prompt_tokens, block_tokens)
        tokens = array("i", flatten.from_iterable(map(_block_page, self.blocks[:full])))
        if rest:
            tokens.extend([0] * max(1, rest * PAGE_TOKENS // block_tokens))
        return tokens


@dataclass(frozen=True, slots=True)
class Trace:
    """The requests in order of arrival. `skipped` counts the lines left out; `bad` is the first one's trouble."""

    name: str
    block_tokens: int
    records: tuple[Record, ...]
    skipped: int = 0
    bad: str = ""

    @property
    def seconds(self) -> float:
        """From the first arrival to the last."""
        return self.records[-1].arrival


def load_trace(path: Path, block_tokens: int, *, seed: int = 0, skip_bad: bool | None = None) -> Trace:
    """Reads a trace; a `.csv` has Azure's columns, anything else is Mooncake JSONL.

    `seed` is for the prefixes that are made up for a CSV. Raises ConfigError naming file and line for a line that
    cannot be used, unless `skip_bad`, and for a file that cannot be read or has no usable line. `skip_bad`: None where
    the user has no such choice.
    """
    if block_tokens < PAGE_TOKENS or block_tokens % PAGE_TOKENS:
        raise ConfigError(f"block size {block_tokens}: must be a multiple of {PAGE_TOKENS}")
    arrivals = path.suffix == ".csv"
    parse: Callable[[str], _Line] = _parse_csv if arrivals else partial(_parse_json, block_tokens=block_tokens)
    try:
        lines, skipped, bad = _read(path, parse, header=arrivals, skip_bad=skip_bad)
    except OSError as error:
        raise ConfigError(f"trace {path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"trace {path}: {error}") from None
    if not lines:
        raise ConfigError(f"trace {path}: no usable line" + (f"; the first bad one: {bad}" if bad else ""))
    if arrivals:
        generator = PrefixGenerator(block_tokens, seed)
        made = [generator.next(line.input_length, line.output_length) for line in lines]
    else:
        sessions = _Sessions()
        made = [(line.hash_ids, sessions.of(line.hash_ids[: line.input_length // block_tokens])) for line in lines]
    start = lines[0].timestamp
    records = tuple(
        Record((line.timestamp - start) / 1000, line.input_length, max(1, line.output_length), array("q", ids), session)
        for line, (ids, session) in zip(lines, made, strict=True)
    )
    return Trace(path.stem, block_tokens, records, skipped, bad)


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    timestamp: Annotated[float, msgspec.Meta(ge=0, le=1e15)]
    """Milliseconds."""
    input_length: Annotated[int, msgspec.Meta(ge=1, le=MAX_TOKENS)]
    output_length: Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]
    hash_ids: list[Annotated[int, msgspec.Meta(ge=0, le=2**62 - 1)]] = []


_decode = msgspec.json.Decoder(_Line).decode


def _read(
    path: Path, parse: Callable[[str], _Line], *, header: bool, skip_bad: bool | None
) -> tuple[list[_Line], int, str]:
    """The good lines, the number of bad ones, and what was wrong with the first of them."""
    lines: list[_Line] = []
    skipped, bad = 0, ""
    with path.open(encoding="utf-8-sig", errors="surrogateescape") as file:
        for number, text in _numbered(file, skip=header):
            try:
                line = parse(text)
                if lines and line.timestamp < lines[-1].timestamp:
                    raise ValueError("arrives before the line above it")
            except ValueError as error:
                trouble = f"{path}:{number}: {error}"
                if not skip_bad:
                    advice = " (--skip-bad goes on without such lines)" if skip_bad is not None else ""
                    raise ConfigError(f"{trouble}{advice}") from None
                skipped, bad = skipped + 1, bad or trouble
            else:
                lines.append(line)
    return lines, skipped, bad


def _numbered(file: Iterator[str], *, skip: bool) -> Iterator[tuple[int, str]]:
    for number, text in enumerate(file, start=1):
        text = text.strip()
        if text and not (skip and number == 1 and text == _CSV_HEADER):
            yield number, text


def _parse_json(text: str, block_tokens: int) -> _Line:
    """Raises ValueError."""
    try:
        line = _decode(text)
    except msgspec.DecodeError as error:
        raise ValueError(error) from None
    full = line.input_length // block_tokens
    if not full <= len(line.hash_ids) <= full + 1:
        raise ValueError(
            f"{len(line.hash_ids)} hash_ids do not fit input_length {line.input_length} in blocks of {block_tokens}"
        )
    return line


def _parse_csv(text: str) -> _Line:
    """Raises ValueError."""
    fields = text.split(",")
    if len(fields) != 3:
        raise ValueError(f"{len(fields)} fields, not the 3 of {_CSV_HEADER}")
    # Seven digits of a second are one too many for Python.
    moment = datetime.fromisoformat(fields[0][:26]).replace(tzinfo=None)
    milliseconds = (moment - _EPOCH).total_seconds() * 1000
    raw = {"timestamp": milliseconds, "input_length": int(fields[1]), "output_length": int(fields[2])}
    try:
        return msgspec.convert(raw, _Line)
    except msgspec.ValidationError as error:
        raise ValueError(error) from None


_EPOCH = datetime(1970, 1, 1)  # As naive as the trace's own times; only differences matter.


class _Sessions:
    """Tells conversations apart: a request goes on with the one whose earlier prompt it starts with.

    A prompt of one block marks no conversation: it is a system prompt that many share.
    """

    def __init__(self) -> None:
        self._ended: dict[int, int] = {}
        """Session by the id of the last full block of its latest prompt."""
        self._count = 0

    def of(self, ids: list[int]) -> int:
        session = next((self._ended[block] for block in reversed(ids[1:]) if block in self._ended), None)
        if session is None:
            session = self._count
            self._count += 1
        if len(ids) > 1:
            self._ended[ids[-1]] = session
        return session


def _block_page(block: int) -> tuple[int, ...]:
    return (block & 0x7FFFFFFF, block >> 31) + (0,) * (PAGE_TOKENS - 2)
