"""One generation on its way from tokens to deltas: how they become text, and end."""

from trunkline.agent.engine.base import Delta, TokenLogprob
from trunkline.agent.engine.builtin.detokenize import Detokenizer
from trunkline.agent.engine.builtin.executor import Sampled
from trunkline.agent.engine.builtin.sequence import Sequence
from trunkline.agent.engine.text import TextModel

MIN_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON has not; OpenAI's number."""


class Job:
    """Belongs to the engine thread."""

    __slots__ = ("_detokenizer", "_ends", "_text", "sequence")

    def __init__(self, sequence: Sequence, text: TextModel) -> None:
        params = sequence.generation.params
        self.sequence = sequence
        self._text = text
        self._detokenizer = Detokenizer(text, params.stop)
        self._ends = params.stop_ids if params.ignore_eos else params.stop_ids | text.eos_ids

    def take(self, sampled: Sampled) -> Delta:
        """Appends the next token to the sequence; what it adds to the text, and whether it is the last."""
        sequence, params = self.sequence, self.sequence.generation.params
        sequence.chain.append(sampled.token)
        text, finish = "", None
        if sampled.token in self._ends:
            finish = "stop"
        else:
            text = self._detokenizer.push(sampled.token)
            if sequence.outputs >= params.max_tokens:
                finish = "length"
        if finish:
            text += self._detokenizer.finish()
        if self._detokenizer.stopped:
            finish = "stop"
        logprobs = () if params.logprobs is None else (self._logprob(sampled),)
        return Delta(text, (sampled.token,), logprobs, finish, sequence.cached_tokens)

    def _logprob(self, sampled: Sampled) -> TokenLogprob:
        top = tuple((token, self._text.token_bytes(token), max(score, MIN_LOGPROB)) for token, score in sampled.top)
        raw = self._text.token_bytes(sampled.token)
        return TokenLogprob(sampled.token, raw, max(sampled.logprob or 0.0, MIN_LOGPROB), top)
