"""From logits to tokens, for a batch of sequences that each have their own parameters.

The order is that of vLLM: log probabilities are those of the model itself; then `min_tokens`, penalties, temperature,
min_p, top_k, top_p. A sequence draws one uniform number per token from a generator of its own, so that its seed and
its logits decide, and not what else is in the batch.
"""

import random
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from trunkline.agent.engine.base import SamplingParams
from trunkline.agent.engine.builtin.executor import Sampled

_GREEDY_BELOW = 1e-5
"""Temperatures below it take the most likely token."""

_CANDIDATES = 256
"""Tokens that are sorted at first for top_k and top_p."""


class SamplingState:
    """What sampling remembers of one sequence. The sampler mutates it, once per token."""

    def __init__(self, params: SamplingParams, prompt: Sequence[int], vocab: int, eos_ids: Iterable[int]) -> None:
        """`vocab`: columns of the logits. `eos_ids`: what ends the sequence, besides `params.stop_ids`."""
        self.params = params
        self.generated = 0
        self._random = random.Random(params.seed)  # noqa: S311 - the seed is the user's
        ends = params.stop_ids if params.ignore_eos else params.stop_ids.union(eos_ids)
        self._ends = torch.tensor(sorted(ends), dtype=torch.long) if params.min_tokens else None
        self._counts: Tensor | None = None
        if params.presence_penalty or params.frequency_penalty:
            self._counts = torch.zeros(vocab)
        self._seen: Tensor | None = None
        if params.repetition_penalty != 1.0:
            self._seen = torch.zeros(vocab, dtype=torch.bool)
            self._seen[torch.tensor(prompt, dtype=torch.long)] = True

    @property
    def adjusts(self) -> bool:
        """Whether logits must be changed before the next token is chosen."""
        forbids = self._ends is not None and self.generated < self.params.min_tokens
        return forbids or self._counts is not None or self._seen is not None

    def adjust(self, logits: Tensor) -> None:
        """Changes one row of logits, [vocab] float32, in place: penalties, and no end before `min_tokens`."""
        if self._seen is not None:
            self._seen = self._seen.to(logits.device)
            penalty = self.params.repetition_penalty
            penalized = torch.where(logits > 0, logits / penalty, logits * penalty)
            logits.copy_(torch.where(self._seen, penalized, logits))
        if self._counts is not None:
            self._counts = self._counts.to(logits.device)
            logits -= self.params.frequency_penalty * self._counts
            logits -= self.params.presence_penalty * (self._counts > 0)
        if self._ends is not None and self.generated < self.params.min_tokens:
            logits[self._ends] = -torch.inf

    def draw(self) -> float:
        """Uniform in [0, 1)."""
        return self._random.random()

    def add(self, token: int) -> None:
        """The token was chosen."""
        self.generated += 1
        if self._counts is not None:
            self._counts[token] += 1
        if self._seen is not None:
            self._seen[token] = True


@torch.inference_mode()
def sample(logits: Tensor, states: Sequence[SamplingState]) -> list[Sampled]:
    """One token per row of `logits`, [rows, vocab] float32, which is overwritten. `states[i]` belongs to row i."""
    wanted = [row for row, state in enumerate(states) if state.params.logprobs is not None]
    logprobs = torch.log_softmax(_rows(logits, wanted), -1) if wanted else None
    for row, state in enumerate(states):
        if state.adjusts:
            state.adjust(logits[row])
    drawn = [row for row, state in enumerate(states) if state.params.temperature >= _GREEDY_BELOW]
    tokens: list[int] = logits.argmax(-1).tolist() if len(drawn) < len(states) else [0] * len(states)
    if drawn:
        for row, token in zip(drawn, _draw(_rows(logits, drawn), [states[row] for row in drawn]), strict=True):
            tokens[row] = token
    sampled = [Sampled(token) for token in tokens]
    if logprobs is not None:
        for row, line in zip(wanted, logprobs, strict=True):
            sampled[row] = _with_logprobs(tokens[row], line, states[row].params.logprobs or 0)
    for state, token in zip(states, tokens, strict=True):
        state.add(token)
    return sampled


def _with_logprobs(token: int, logprobs: Tensor, count: int) -> Sampled:
    values, indices = logprobs.topk(min(count, len(logprobs)))
    top = tuple(zip(indices.tolist(), values.tolist(), strict=True))
    return Sampled(token, float(logprobs[token]), top)


def _draw(logits: Tensor, states: Sequence[SamplingState]) -> list[int]:
    """One token per row of `logits` [rows, vocab], by each state's temperature, min_p, top_k and top_p."""
    params = [state.params for state in states]
    scaled = logits / _column([p.temperature for p in params], logits)
    if any(p.min_p for p in params):
        floor = scaled.amax(-1, keepdim=True) + _column([p.min_p for p in params], logits).log()
        scaled.masked_fill_(scaled < floor, -torch.inf)
    draws = [state.draw() for state in states]
    tokens = [0] * len(states)
    cut = [row for row, p in enumerate(params) if p.top_k or p.top_p < 1]
    whole = [row for row, p in enumerate(params) if not (p.top_k or p.top_p < 1)]
    if whole:
        places = _invert(_rows(scaled, whole).softmax(-1), [draws[row] for row in whole])
        for row, place in zip(whole, places.tolist(), strict=True):
            tokens[row] = place
    if cut:
        chosen = _draw_cut(_rows(scaled, cut), [params[row] for row in cut], [draws[row] for row in cut])
        for row, token in zip(cut, chosen, strict=True):
            tokens[row] = token
    return tokens


def _draw_cut(
    scaled: Tensor, params: Sequence[SamplingParams], draws: Sequence[float], candidates: int = _CANDIDATES
) -> list[int]:
    """Rows with top_k or top_p. Only `candidates` tokens are sorted; rows for which they do not do try more."""
    vocab = scaled.shape[-1]
    candidates = min(candidates, vocab)
    values, tokens = scaled.topk(candidates)
    top_k = _column([min(p.top_k or vocab, vocab) for p in params], values)
    values = values.masked_fill(torch.arange(candidates, device=values.device) >= top_k, -torch.inf)
    whole = top_k <= candidates  # whether all that top_k leaves is here
    mass = torch.where(whole, values.logsumexp(-1, keepdim=True), scaled.logsumexp(-1, keepdim=True))
    probabilities = (values.double() - mass).exp()
    totals = probabilities.cumsum(-1)
    top_p = _column([p.top_p for p in params], totals)
    places = _invert(probabilities.masked_fill(totals - probabilities >= top_p, 0.0), draws)
    chosen: list[int] = tokens.gather(-1, places.unsqueeze(-1)).squeeze(-1).tolist()
    enough = (whole | ((top_k == vocab) & (totals[:, -1:] >= top_p))).squeeze(-1).tolist()
    again = [row for row, found in enumerate(enough) if not found]
    if again:
        rows = _draw_cut(scaled[again], [params[row] for row in again], [draws[row] for row in again], 8 * candidates)
        for row, token in zip(again, rows, strict=True):
            chosen[row] = token
    return chosen


def _invert(weights: Tensor, draws: Sequence[float]) -> Tensor:
    """For each row of `weights` [rows, n], the first place whose running total exceeds the draw's share of all."""
    totals = weights.cumsum(-1, dtype=torch.float64)
    places = torch.searchsorted(totals, totals[:, -1:] * _column(draws, totals), right=True)
    return places.squeeze(-1).clamp_(max=weights.shape[-1] - 1)


def _column(values: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=like.dtype, device=like.device).unsqueeze(-1)


def _rows(tensor: Tensor, rows: Sequence[int]) -> Tensor:
    """Some rows in ascending order; all of them are not copied."""
    return tensor if len(rows) == len(tensor) else tensor[list(rows)]
