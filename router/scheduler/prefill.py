"""How long prefill takes, learned from what nodes report.

    seconds = slowness of the node * (per_token * tokens + per_pair * pairs)

A pair is a computed token and a token that it attends to, so long prompts and long prefixes cost more per token. Both
prices are the fleet's, from all reports of all nodes; a node has one factor of its own. Were each node priced by its
own few reports alone, chance would make equal nodes look unequal, and requests would crowd on those that look cheap.

What counts is seconds of prefill: every second weighs the same, and evidence fades as more comes in, whatever the clock
says. A report is taken as no more than SURPRISE times what was expected, and no less than its inverse, and as evidence
of a second at most, so a single one moves little.

Nodes report the time from admission to the first token. A step that is shared with other prompts and with decodes is
counted in full for each of them, so prices are above what a prompt costs alone, the more so for short prompts. It is
so on all nodes alike, for work and for wait.
"""

from trunkline.shared.wire import LEAST_RATE

FLEET_MEMORY_S = 100.0
NODE_MEMORY_S = 5.0
"""Seconds of prefill that are looked back on: as long as prices need to be steady, and a node to be found out soon."""
NOTABLE = 1.25
"""A node that differs from the fleet by less than this factor is taken to be like it."""
_PRIOR_S = 0.5
"""Evidence that what was first assumed is worth."""
_MOST_S = 1.0
_SURPRISE = 2.0
_RIDGE = 0.01
"""Pulls `per_pair` to zero while all prompts are alike, which says nothing about it."""
_LEAST = 0.1
"""`per_token` is at least this share of what it would be if pairs cost nothing."""


def pairs(tokens: int, matched: int) -> int:
    """Of so many new tokens after a matched prefix."""
    return tokens * matched + tokens * (tokens + 1) // 2


class Prices:
    """Of the fleet. Seconds per token and pair."""

    __slots__ = (
        "_evidence",
        "_pair_pair",
        "_pair_s",
        "_rate",
        "_token_pair",
        "_token_s",
        "_token_token",
        "per_pair",
        "per_token",
    )

    def __init__(self, rate: float) -> None:
        self._rate = LEAST_RATE
        """The best that a node told, tokens per second."""
        self.assume(rate)

    @classmethod
    def of(cls, per_token: float, per_pair: float) -> "Prices":
        """As they once were."""
        prices = cls(1.0 / per_token)
        prices.per_token, prices.per_pair = per_token, per_pair
        return prices

    def assume(self, rate: float) -> None:
        """Starts from so many tokens per second, and pairs that cost nothing."""
        self.per_token = 1.0 / rate
        self.per_pair = 0.0
        # Weighted sums of products.
        self._token_token = _PRIOR_S * rate * rate
        self._token_s = _PRIOR_S * rate
        self._token_pair = self._pair_pair = self._pair_s = 0.0
        self._evidence = 0.0
        """What was learned since, in seconds."""

    def told(self, rate: float) -> None:
        """A node says how many tokens it computes per second; 0: it does not know.

        Until more is learned than was assumed, the best of what nodes say is. Of a few tokens, such as those that ask
        whether a server is there, it is far too low, for every step has a fixed part.
        """
        if rate > self._rate and self._evidence < _PRIOR_S:
            self._rate = rate
            self.assume(rate)

    def seconds(self, tokens: int, matched: int) -> float:
        """Of prefill of so many new tokens after a matched prefix."""
        return tokens * (self.per_token + self.per_pair * (matched + (tokens + 1) / 2))

    def learn(self, tokens: int, matched: int, seconds: float, evidence: float) -> None:
        """A prefill of at least one token took so long. `evidence`: what that counts for, in seconds."""
        count = pairs(tokens, matched)
        weight = evidence / self.seconds(tokens, matched) ** 2
        keep = 1.0 - evidence / FLEET_MEMORY_S
        self._token_token = self._token_token * keep + weight * tokens * tokens
        self._token_pair = self._token_pair * keep + weight * tokens * count
        self._pair_pair = self._pair_pair * keep + weight * count * count
        self._token_s = self._token_s * keep + weight * tokens * seconds
        self._pair_s = self._pair_s * keep + weight * count * seconds
        self._evidence += evidence
        # Least squares, with neither price below its bound.
        ridged = self._pair_pair * (1.0 + _RIDGE)
        alone = self._token_s / self._token_token
        determinant = self._token_token * ridged - self._token_pair * self._token_pair
        per_token = (self._token_s * ridged - self._token_pair * self._pair_s) / determinant
        self.per_token = min(max(per_token, _LEAST * alone), alone)
        self.per_pair = max(0.0, (self._pair_s - self.per_token * self._token_pair) / ridged)


class Pace:
    """How fast one node is, against the fleet's prices."""

    __slots__ = ("_pairs", "_prices", "_prior", "_seconds", "_tokens", "slowness")

    def __init__(self, prices: Prices) -> None:
        self._prices = prices
        self._tokens = self._pairs = self._seconds = 0.0
        """What was computed lately and how long it took, older reports fading."""
        self._prior = _PRIOR_S
        self.slowness = 1.0

    def learn(self, tokens: int, matched: int, seconds: float) -> None:
        """A prefill of at least one token took so long here; the fleet's prices learn from it as well."""
        expected = self._prices.seconds(tokens, matched) * self._ratio()
        seconds = min(max(seconds, expected / _SURPRISE), expected * _SURPRISE)
        evidence = min(expected, _MOST_S)
        keep, weight = 1.0 - evidence / NODE_MEMORY_S, evidence / expected
        self._prior *= keep
        self._tokens = self._tokens * keep + weight * tokens
        self._pairs = self._pairs * keep + weight * pairs(tokens, matched)
        self._seconds = self._seconds * keep + weight * seconds
        self._prices.learn(tokens, matched, seconds, evidence)
        ratio = self._ratio()
        self.slowness = ratio if ratio > NOTABLE or ratio < 1.0 / NOTABLE else 1.0

    def _ratio(self) -> float:
        expected = self._prices.per_token * self._tokens + self._prices.per_pair * self._pairs
        return (self._seconds + self._prior) / (expected + self._prior)
