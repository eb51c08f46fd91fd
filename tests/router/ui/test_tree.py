"""The tree of prefixes, beside a model that looks at every prefix."""

import struct
from collections import defaultdict

from hypothesis import example, given
from hypothesis import strategies as st

from trunkline.router.ui.tree import KEY_BYTES, SAME, Prefix, Request, shared_bytes, tree


def request(path: str, *, tokens: int = 0, matched: int = 0, model: str = "m") -> Request:
    """A key for each letter; it stands for everything before it, as the keys of a chain do."""
    keys = [hash(path[: end + 1]) & (2**64 - 1) for end in range(len(path))]
    return Request(struct.pack(f"<{len(keys)}Q", *keys), len(keys), tokens or 10 * len(path), matched, model)


def shapes(found: list[Prefix]) -> list[tuple[int, int, int]]:
    """Keys, requests and the parent's keys."""
    return [
        (len(one.chain) // KEY_BYTES, one.requests, len(one.parent.chain) // KEY_BYTES if one.parent else 0)
        for one in found
    ]


def test_what_requests_share_is_a_tree() -> None:
    paths = ["system" + tail for tail in ("AAAx", "AAAy", "BBBx", "BBBy", "BBBz", "x", "y")] + ["other", "alone"]
    found = tree([request(path, matched=60) for path in paths], most=10)
    assert sorted(shapes(found)) == [(6, 7, 0), (9, 2, 6), (9, 3, 6)]


def test_a_prefix_after_which_nearly_all_go_on_together_is_shown_as_the_longer_one() -> None:
    paths = ["abc"] + ["abcdef" + tail for tail in "uvwxyz"]
    assert shapes(tree([request(path) for path in paths], most=10)) == [(6, 6, 0)]


def test_tokens_and_savings_are_those_of_the_prefix_alone() -> None:
    found = tree([request("abcdx", matched=0), request("abcdy", matched=40), request("abcdz", matched=50)], most=10)
    (one,) = found
    assert (one.tokens, one.saved, one.requests) == (40, 80, 3)
    assert one.key == f"{hash('abcd') & (2**64 - 1):016x}"


def test_those_that_save_most_are_kept_and_their_parents_with_them() -> None:
    requests = [request(f"{head}{at}{tail}", matched=20) for head in "abc" for at in range(10) for tail in "xy" * 2]
    found = tree(requests, most=5)
    assert len(found) == 5
    for at, one in enumerate(found):
        assert one.parent is None or one.parent in found[:at]


def test_nothing_is_shared() -> None:
    assert tree([], most=5) == []
    assert tree([request("abc"), request("xyz"), Request(b"", 0, 1, 0, "m")], most=5) == []


@given(st.lists(st.text("ab", max_size=7), max_size=40))
@example(["aa"] * 2 + ["ab"] * 8)
def test_every_prefix_is_one_and_its_requests_are_counted(paths: list[str]) -> None:
    requests = [request(path, matched=35) for path in paths]
    counts: defaultdict[bytes, int] = defaultdict(int)
    for one in requests:
        for end in range(KEY_BYTES, len(one.chain) + 1, KEY_BYTES):
            counts[one.chain[:end]] += 1
    found = tree(requests, most=1000)
    for prefix in found:
        assert counts[prefix.chain] == prefix.requests > 1
        assert 0 <= prefix.saved <= prefix.requests * prefix.tokens
        parent = prefix.parent
        if parent is not None:
            assert prefix.chain.startswith(parent.chain)
            assert prefix.requests < parent.requests
    # What is not shown itself is shown as a longer prefix that nearly all of its requests have, at each step.
    for chain, count in counts.items():
        if count > 1:
            longer = [one.requests for one in found if one.chain.startswith(chain)]
            assert longer
            assert max(longer) >= count * SAME ** (7 - len(chain) // KEY_BYTES)


@given(st.text("ab", max_size=6), st.text("ab", max_size=6))
def test_shared_bytes_are_those_of_the_common_beginning(one: str, other: str) -> None:
    same = next((end for end in range(len(one), 0, -1) if other.startswith(one[:end])), 0)
    assert shared_bytes(request(one).chain, request(other).chain) == KEY_BYTES * same
