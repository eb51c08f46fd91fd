"""Namespaces that differ have seeds that differ."""

from hypothesis import given
from hypothesis import strategies as st

from trunkline.shared.namespace import Namespace

namespaces = st.builds(Namespace, *(st.text(max_size=4) for _ in range(5)))


@given(namespaces, namespaces)
def test_seeds_are_equal_only_for_equal_namespaces(one: Namespace, other: Namespace) -> None:
    assert (one.page_seed_bytes() == other.page_seed_bytes()) == (one == other)
    assert (one.text_seed_bytes() == other.text_seed_bytes()) == (one == other)
    assert one.page_seed_bytes() != other.text_seed_bytes()


def test_fields_do_not_run_into_each_other() -> None:
    assert Namespace("ab", "c", "").page_seed_bytes() != Namespace("a", "bc", "").page_seed_bytes()


@given(namespaces, st.text(max_size=4))
def test_salted_changes_the_salt_alone(namespace: Namespace, salt: str) -> None:
    salted = namespace.salted(salt)
    assert salted.salt == salt
    assert salted.salted(namespace.salt) == namespace
