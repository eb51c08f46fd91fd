"""A node's link to the other nodes, as far as this router knows what goes over it."""


class Link:
    """In tokens of KV. Each direction carries one pull after the other. Seconds are of the scheduler's clock."""

    __slots__ = ("_in_free_at", "_out_free_at", "rate")

    def __init__(self) -> None:
        self.rate = 0.0
        """In each direction, as last reported; 0: the node neither pulls nor lends."""
        self._in_free_at = self._out_free_at = 0.0

    def report(self, rate: float, pulling: int, lending: int, now: float) -> None:
        """What the node says itself, of other routers' pulls too: so many tokens are still to come and to go."""
        self.rate = rate
        if rate > 0.0:
            self._in_free_at = max(self._in_free_at, now + pulling / rate)
            self._out_free_at = max(self._out_free_at, now + lending / rate)

    def busy_s(self, now: float) -> float:
        """Until what is lent already has gone."""
        return max(0.0, self._out_free_at - now)

    def seconds(self, lender: "Link", tokens: int, now: float) -> float:
        """How long a pull from there would take, if it began now."""
        return max(now, self._in_free_at, lender._out_free_at) - now + tokens / min(self.rate, lender.rate)

    def pull(self, lender: "Link", tokens: int, now: float) -> None:
        """It begins."""
        until = now + self.seconds(lender, tokens, now)
        self._in_free_at = lender._out_free_at = until
