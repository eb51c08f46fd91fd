"""How long a request waits for pages that come from another node."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from tests.agent.tiers import NAMESPACE
from trunkline.agent.cache.chain import Chain
from trunkline.agent.cache.fetch import Fetch
from trunkline.agent.cache.pull import Pull, Share
from trunkline.shared.names import PAGE_TOKENS

TURN_S = 0.005
"""Between two looks of the engine."""


@given(
    gaps=st.lists(st.floats(0.0, 0.2), max_size=40),
    pages=st.integers(1, 40),
    compute_s=st.floats(0.0005, 0.1),
)
def test_a_pull_costs_no_more_than_a_fifth_of_computing_and_50_ms(
    gaps: list[float], pages: int, compute_s: float
) -> None:
    """Whenever its pages come: as many as there are gaps, and then nothing more."""
    chain = Chain(NAMESPACE, array("i", range(pages * PAGE_TOKENS)))
    pull = Pull("holder", chain, 0, pages, compute_s)
    pull.answered = True
    pull.set_entries(chain, None, pages)
    fetch = Fetch(chain, [], compute_s, Share(pull, 0, pages))
    due = [sum(gaps[: number + 1]) for number in range(min(len(gaps), pages))]
    now = 0.0
    while True:
        while pull.landed < len(due) and due[pull.landed] <= now:
            pull.entries[pull.landed].page = pull.landed
            pull.landed += 1
        more = fetch.take_pulled()
        if (not more and not fetch.missing()) or fetch.is_late(now):
            break
        now += TURN_S
    with_pull = now + (pages - fetch.came) * compute_s
    assert with_pull <= 1.2 * pages * compute_s + 0.05
