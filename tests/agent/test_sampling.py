"""The sampler against straightforward numpy references, and by its statistics."""

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trunkline.agent.engine.base import SamplingParams
from trunkline.agent.engine.builtin.sampling import SamplingState, sample

VOCAB = 600
EOS = 7
Row = npt.NDArray[np.float64]


def state(prompt: Sequence[int] = (1, 2, 3), **params: object) -> SamplingState:
    return SamplingState(SamplingParams(max_tokens=1000, **params), prompt, VOCAB, [EOS])  # type: ignore[arg-type]


def random_logits(seed: int, rows: int = 1, scale: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * scale


def reference(logits: Row, params: SamplingParams) -> Row:
    """Probabilities of every token: temperature, min_p, top_k, top_p, one after the other."""
    scaled = logits / params.temperature
    p = np.exp(scaled - scaled.max())
    p[p < params.min_p] = 0
    order = np.argsort(-p, kind="stable")
    if params.top_k:
        p[order[params.top_k :]] = 0
    p /= p.sum()
    before = np.cumsum(p[order]) - p[order]
    p[order[before >= params.top_p]] = 0
    result: Row = p / p.sum()
    return result


def draws(logits: torch.Tensor, count: int, **params: object) -> Counter[int]:
    """How often each token comes, drawn in batches by sequences of different seeds."""
    counts: Counter[int] = Counter()
    for start in range(0, count, 250):
        states = [state(seed=start + i, **params) for i in range(250)]
        counts.update(s.token for s in sample(logits.expand(250, -1).clone(), states))
    return counts


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.5},
        {"temperature": 2.0, "top_k": 5},
        {"top_p": 0.7},
        {"top_p": 0.95, "temperature": 10.0},  # flat: more candidates than are sorted at first
        {"min_p": 0.2},
        {"top_k": 300, "temperature": 5.0},
        {"top_k": 20, "top_p": 0.8, "min_p": 0.01, "temperature": 1.5},
    ],
)
def test_tokens_come_as_often_as_they_should(params: dict[str, float]) -> None:
    logits, count = random_logits(1), 5000
    expected = reference(logits[0].double().numpy(), SamplingParams(max_tokens=1, **params))  # type: ignore[arg-type]
    counts = draws(logits, count, **params)
    assert all(expected[token] > 0 for token in counts)
    # Chi-squared over the tokens expected ten times or more, the rest as one; five standard deviations allowed.
    common = [token for token in range(VOCAB) if expected[token] * count >= 10]
    observed = [counts[token] for token in common]
    wanted = [expected[token] * count for token in common]
    rest = count - sum(wanted)
    if rest > 10:
        observed.append(count - sum(observed))
        wanted.append(rest)
    statistic = sum((o - w) ** 2 / w for o, w in zip(observed, wanted, strict=True))
    freedom = len(wanted) - 1
    assert statistic <= freedom + 5 * math.sqrt(2 * freedom)


@given(
    seed=st.integers(0, 1 << 30),
    temperature=st.floats(0.01, 50),
    top_k=st.integers(0, VOCAB + 10),
    top_p=st.floats(0.001, 1),
    min_p=st.floats(0, 1),
)
def test_only_kept_tokens_are_drawn(seed: int, temperature: float, top_k: int, top_p: float, min_p: float) -> None:
    logits = random_logits(seed)
    row = logits[0].double().numpy()
    params = SamplingParams(max_tokens=1, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    # At a limit, rounding decides: the reference gets a little room there.
    roomy = SamplingParams(
        max_tokens=1, temperature=temperature, top_k=top_k, top_p=min(1, top_p * 1.0001), min_p=min_p * 0.9999
    )
    states = [SamplingState(params, [], VOCAB, []) for _ in range(8)]
    tokens = {s.token for s in sample(logits.expand(8, -1).clone(), states)}
    assert all(reference(row, roomy)[token] > 0 for token in tokens)


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"temperature": 1e-9}, {"top_k": 1}, {"top_p": 1e-6}])
def test_the_most_likely_token(params: dict[str, float]) -> None:
    logits = random_logits(2, rows=5)
    expected = logits.argmax(-1).tolist()
    assert [s.token for s in sample(logits, [state(**params) for _ in range(5)])] == expected


def test_greedy_takes_the_first_of_equals() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, [40, 50]] = 1.0
    assert sample(logits, [state(temperature=0.0)])[0].token == 40


def test_a_seed_decides_whatever_else_is_in_the_batch() -> None:
    variants: list[dict[str, object]] = [{}, {"top_p": 0.9}, {"top_k": 30}, {"min_p": 0.1, "temperature": 2.0}]
    steps = [random_logits(100 + step, rows=4) for step in range(30)]
    alone = []
    for row, params in enumerate(variants):
        one = state(seed=5, **params)
        alone.append([sample(logits[row : row + 1].clone(), [one])[0].token for logits in steps])
    together = [state(seed=5, **params) for params in variants]
    others = [state(temperature=0.0, logprobs=1), state(top_k=VOCAB, temperature=3.0)]
    batched: list[list[int]] = [[] for _ in variants]
    for logits in steps:
        rows = torch.cat([logits[:2], random_logits(0), logits[2:], random_logits(1)])
        found = sample(rows, [*together[:2], others[0], *together[2:], others[1]])
        for mine, place in zip(batched, (0, 1, 3, 4), strict=True):
            mine.append(found[place].token)
    assert batched == alone
    assert [sample(steps[0][:1].clone(), [state(seed=6)])[0].token for _ in range(2)] == [
        sample(steps[0][:1].clone(), [state(seed=6)])[0].token
    ] * 2


def test_without_a_seed_sequences_differ() -> None:
    states = [state() for _ in range(50)]
    assert len({s.token for s in sample(torch.zeros(50, VOCAB), states)}) > 20


@given(
    presence=st.floats(-2, 2),
    frequency=st.floats(-2, 2),
    repetition=st.floats(0.1, 10),
    seed=st.integers(0, 1 << 30),
    prompt=st.lists(st.integers(0, VOCAB - 1), max_size=20),
)
def test_penalties(presence: float, frequency: float, repetition: float, seed: int, prompt: list[int]) -> None:
    one = state(
        prompt,
        temperature=0.0,
        presence_penalty=presence,
        frequency_penalty=frequency,
        repetition_penalty=repetition,
    )
    counts: Counter[int] = Counter()
    for step in range(6):
        logits = random_logits(seed + step)
        expected = logits[0].double().numpy().copy()
        for token in {*prompt, *counts}:
            value = expected[token]
            expected[token] = value / repetition if value > 0 else value * repetition
        for token, count in counts.items():
            expected[token] -= frequency * count + presence
        token = sample(logits, [one])[0].token
        assert expected[token] >= expected.max() - 1e-4
        counts[token] += 1


def test_no_end_before_min_tokens() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, EOS], logits[0, 9], logits[0, 11] = 9.0, 8.0, 7.0
    one = state(temperature=0.0, min_tokens=2, stop_ids=frozenset([9]))
    assert [sample(logits.clone(), [one])[0].token for _ in range(4)] == [11, 11, EOS, EOS]
    ignoring = state(temperature=0.0, min_tokens=2, stop_ids=frozenset([9]), ignore_eos=True)
    assert sample(logits.clone(), [ignoring])[0].token == EOS


def test_logprobs_are_those_of_the_model() -> None:
    logits = random_logits(3, rows=4)
    expected = torch.log_softmax(logits.double(), -1)
    states = [
        state(temperature=0.0, logprobs=3, presence_penalty=2.0),
        state(temperature=5.0, seed=1),
        state(temperature=5.0, seed=1, logprobs=0),
        state(temperature=0.0, min_tokens=5, stop_ids=frozenset(logits[3].topk(2).indices.tolist()), logprobs=2),
    ]
    found = sample(logits.clone(), states)
    assert found[1].logprob is None
    assert found[1].top == found[2].top == ()
    for row in (0, 2, 3):
        assert found[row].logprob == pytest.approx(float(expected[row, found[row].token]), abs=1e-4)
    for row, count in ((0, 3), (3, 2)):
        values, tokens = expected[row].topk(count)
        assert [token for token, _ in found[row].top] == tokens.tolist()
        assert [logprob for _, logprob in found[row].top] == pytest.approx(values.tolist(), abs=1e-4)
    assert found[3].token not in {token for token, _ in found[3].top}
