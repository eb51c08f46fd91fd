"""Chains: keys follow from namespace and tokens, whichever way the tokens came."""

from array import array

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from trunkline.agent.cache.chain import Chain
from trunkline.shared.names import PAGE_TOKENS
from trunkline.shared.namespace import Namespace

NAMESPACE = Namespace("model", "bfloat16", "layout")
TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=70)


@given(st.integers(0, 70), TOKENS)
def test_appending_gives_the_keys_of_the_whole(start: int, tokens: list[int]) -> None:
    grown = Chain(NAMESPACE, tokens[:start])
    for token in tokens[start:]:
        grown.append(token)
    whole = Chain(NAMESPACE, array("i", tokens))
    assert grown.tokens == whole.tokens == array("i", tokens)
    assert grown.keys == whole.keys
    assert len(whole.keys) == len(tokens) // PAGE_TOKENS
    assert list(grown.pages()) == [grown.page(index) for index in range(len(grown.keys))]


def test_keys_chain_as_the_design_says() -> None:
    tokens = array("i", range(100, 135))
    seed = xxhash.xxh3_64_intdigest(NAMESPACE.page_seed_bytes())
    first = xxhash.xxh3_64_intdigest(tokens[:16].tobytes(), seed)
    second = xxhash.xxh3_64_intdigest(tokens[16:32].tobytes(), first)
    assert Chain(NAMESPACE, tokens).keys == [first, second]


def test_namespaces_have_other_keys() -> None:
    tokens = list(range(32))
    assert not set(Chain(NAMESPACE, tokens).keys) & set(Chain(NAMESPACE.salted("aa"), tokens).keys)


def test_tokens_can_grow_while_pages_are_read() -> None:
    chain = Chain(NAMESPACE, range(32))
    pages = chain.pages()
    next(pages)
    chain.append(1)
    assert next(pages) == array("i", range(16, 32)).tobytes()


def test_a_token_that_is_no_int32_is_refused() -> None:
    with pytest.raises(OverflowError):
        Chain(NAMESPACE, [1 << 31])
