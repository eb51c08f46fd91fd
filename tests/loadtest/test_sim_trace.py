from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trunkline.loadtest.sim.prefixes import PrefixGenerator
from trunkline.loadtest.sim.trace import load_trace
from trunkline.shared.errors import ConfigError

GOOD = '{"timestamp": 1000, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]}'
LATER = '{"timestamp": 3500, "input_length": 1024, "output_length": 0, "hash_ids": [0, 9]}'
HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"


def test_mooncake_lines_become_requests_in_seconds_from_the_first(tmp_path: Path) -> None:
    trace = load_trace(_file(tmp_path, GOOD, "", LATER), 512)
    assert [(r.arrival, r.prompt_tokens, r.output_tokens, list(r.blocks)) for r in trace.records] == [
        (0.0, 1100, 5, [0, 1, 2]),
        (2.5, 1024, 1, [0, 9]),  # a reply has at least one token
    ]
    assert (trace.seconds, trace.skipped) == (2.5, 0)


@pytest.mark.parametrize(("tokens", "pages", "rest"), [(1, 0, 1), (511, 0, 15), (512, 1, 0), (513, 1, 1), (1100, 2, 2)])
def test_a_block_is_a_page_and_what_is_left_is_less(tmp_path: Path, tokens: int, pages: int, rest: int) -> None:
    ids = list(range(7, 7 + -(-tokens // 512)))
    line = f'{{"timestamp": 0, "input_length": {tokens}, "output_length": 1, "hash_ids": {ids}}}'
    record = load_trace(_file(tmp_path, line), 512).records[0]
    assert len(record.page_tokens(512)) == 16 * pages + rest


def test_different_blocks_have_different_tokens(tmp_path: Path) -> None:
    ids = [0, 1, 2**31 - 1, 2**31, 2**31 + 1, 2**62 - 1]
    line = f'{{"timestamp": 0, "input_length": {512 * len(ids)}, "output_length": 1, "hash_ids": {ids}}}'
    tokens = load_trace(_file(tmp_path, line), 512).records[0].page_tokens(512)
    assert len({bytes(tokens[at : at + 16]) for at in range(0, len(tokens), 16)}) == len(ids)


@pytest.mark.parametrize(
    ("line", "trouble"),
    [
        ('{"timestamp": 1', "truncated"),
        ("[1, 2]", "Expected `object`"),
        (GOOD.replace("1000", "-1"), "timestamp"),
        (GOOD.replace("1000", "1e300"), "timestamp"),
        (GOOD.replace("1000", '"soon"'), "timestamp"),
        (GOOD.replace("1100", "0"), "input_length"),
        (GOOD.replace("1100", "99999999999"), "input_length"),
        (GOOD.replace("1100", "5000"), "do not fit input_length 5000"),
        (GOOD.replace("[0, 1, 2]", "[0, -1, 2]"), "hash_ids"),
        (GOOD.replace("[0, 1, 2]", "[0, 1, 99999999999999999999]"), "hash_ids"),
        (GOOD.replace("output_length", "outputs"), "outputs"),
        (GOOD.replace("}", ', "colour": "blue"}'), "colour"),
        (GOOD.replace("1000", "999"), "arrives before"),
        ("[" * 100_000, "Expected `object`"),
        ("\udcff", "surrogate"),
    ],
)
def test_a_line_that_cannot_be_used_is_named_or_left_out(tmp_path: Path, line: str, trouble: str) -> None:
    path = _file(tmp_path, GOOD, line, LATER)
    with pytest.raises(ConfigError, match=r"trace\.jsonl:2: ") as caught:
        load_trace(path, 512)
    assert trouble in str(caught.value)
    assert "--skip-bad" not in str(caught.value), "no advice to use what not every command has"
    with pytest.raises(ConfigError, match="--skip-bad"):
        load_trace(path, 512, skip_bad=False)
    trace = load_trace(path, 512, skip_bad=True)
    assert (len(trace.records), trace.skipped) == (2, 1)
    assert trouble in trace.bad


def test_azure_arrivals_get_prefixes(tmp_path: Path) -> None:
    lines = ["2023-11-16 18:17:03.9799600,4808,10", "2023-11-16 18:17:04.0319600,3180,8"]
    trace = load_trace(_file(tmp_path, HEADER, *lines, name="a.csv"), 512)
    assert [record.prompt_tokens for record in trace.records] == [4808, 3180]
    assert trace.seconds == pytest.approx(0.052)
    assert [len(record.blocks) for record in trace.records] == [10, 7]


@pytest.mark.parametrize(
    "line", ["1,2", "yesterday,5,5", "2023-11-16 18:17:04,0,1", "2023-11-16 18:17:04,5,-1", "a,b,c,d"]
)
def test_a_broken_csv_line_is_named(tmp_path: Path, line: str) -> None:
    good = "2023-11-16 18:17:03.9799600,4808,10"
    path = _file(tmp_path, HEADER, good, line, name="a.csv")
    with pytest.raises(ConfigError, match=r"a\.csv:3: "):
        load_trace(path, 512)
    assert load_trace(path, 512, skip_bad=True).skipped == 1


def test_nothing_usable(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no usable line"):
        load_trace(_file(tmp_path, ""), 512)
    with pytest.raises(ConfigError, match=r"no usable line; the first bad one: .*:1: "):
        load_trace(_file(tmp_path, "junk"), 512, skip_bad=True)
    with pytest.raises(ConfigError, match="No such file"):
        load_trace(tmp_path / "absent.jsonl", 512)
    with pytest.raises(ConfigError, match="directory"):
        load_trace(tmp_path, 512)
    with pytest.raises(ConfigError, match="block size 100"):
        load_trace(_file(tmp_path, GOOD), 100)


def test_a_conversation_goes_on_with_what_it_said(tmp_path: Path) -> None:
    prompts = [[0, 1], [0, 5, 6], [0, 1, 2, 3], [0], [0, 7], [0, 1, 2, 3, 4]]
    lines = [
        f'{{"timestamp": 0, "input_length": {512 * len(ids)}, "output_length": 1, "hash_ids": {ids}}}'
        for ids in prompts
    ]
    assert [record.session for record in load_trace(_file(tmp_path, *lines), 512).records] == [0, 1, 0, 2, 3, 0]


_LENGTHS = st.lists(st.tuples(st.integers(1, 4000), st.integers(1, 500)), min_size=1, max_size=60)


@given(_LENGTHS, st.integers(0, 5))
def test_made_up_prefixes_are_those_of_conversations(lengths: list[tuple[int, int]], seed: int) -> None:
    generator, again = PrefixGenerator(64, seed), PrefixGenerator(64, seed)
    before: dict[int, int] = {}
    so_far: dict[int, tuple[int, list[int]]] = {}
    for prompt, output in lengths:
        ids, conversation = generator.next(prompt, output)
        assert (ids, conversation) == again.next(prompt, output)
        assert len(ids) == -(-prompt // 64)
        for parent, block in zip([-1, *ids], ids, strict=False):
            assert before.setdefault(block, parent) == parent
        if conversation in so_far:
            tokens, earlier = so_far[conversation]
            assert prompt > tokens  # what was said, and something new
            assert ids[: len(earlier)] == earlier
        so_far[conversation] = (prompt + output, ids)


def _file(folder: Path, *lines: str, name: str = "trace.jsonl") -> Path:
    path = folder / name
    path.write_bytes("\n".join(lines).encode(errors="surrogateescape"))
    return path
