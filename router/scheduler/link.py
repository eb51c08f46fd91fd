"""A node's link to the other nodes, as far as this router knows what goes over it."""

from trunkline.shared.wire import LEAST_RATE


class Link:
    """In tokens of KV. Each direction carries one pull after the other. Seconds are of the scheduler's clock."""

    __slots__ = ("in_free_at", "out_free_at", "rate")

    def __init__(self) -> None:
        self.rate = 0.0
        """In each direction, as last reported; 0: the node neither pulls nor lends."""
        self.in_free_at = self.out_free_at = 0.0
        """Of pulls that began."""

    def report(self, rate: float, pulling: int, lending: int, now: float) -> None:
        """What the node says itself, of other routers' pulls too: so many tokens are still to come and to go."""
        self.rate = rate if rate >= LEAST_RATE else 0.0
        if self.rate > 0.0:
            self.in_free_at = max(self.in_free_at, now + pulling / rate)
            self.out_free_at = max(self.out_free_at, now + lending / rate)

    def pull(self, lender: "Link", tokens: int, now: float) -> None:
        """It begins."""
        begins = max(now, self.in_free_at, lender.out_free_at)
        self.in_free_at = lender.out_free_at = begins + tokens / min(self.rate, lender.rate)
