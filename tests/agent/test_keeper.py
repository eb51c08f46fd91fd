"""Who has the engine's lock when, and what becomes of what comes up meanwhile."""

import threading
from collections.abc import Callable
from queue import Queue

import pytest

from trunkline.agent.engine.builtin.keeper import Keeper

SOON_S = 10.0


def kept(keep: Callable[[], None] = lambda: None) -> tuple[Keeper, "Queue[str]"]:
    """A keeper, and the names of the threads that called `keep`."""
    calls: Queue[str] = Queue()

    def call() -> None:
        calls.put(threading.current_thread().name)
        keep()

    return Keeper(call), calls


def test_what_comes_up_during_a_step_is_done_during_the_step() -> None:
    keeper, calls = kept()
    with keeper:
        for _ in range(3):
            with keeper.computing():
                keeper.stir()
                assert calls.get(timeout=SOON_S) == "keeper"


def test_what_came_up_just_before_a_step_is_too() -> None:
    keeper, calls = kept()
    with keeper:
        keeper.stir()
        with keeper.computing():
            assert calls.get(timeout=SOON_S) == "keeper"


def test_while_the_engine_thread_works_or_waits_it_does_all_itself() -> None:
    keeper, calls = kept()
    with keeper:
        keeper.stir()
        with keeper.waiting():
            keeper.stir()
        with keeper.computing():  # which lets the keeper come to anything that it had missed
            keeper.stir()
            calls.get(timeout=SOON_S)
            while not calls.empty():
                calls.get()
        keeper.stir()
        keeper.stir()
    assert calls.empty()
    assert not keeper._thread.is_alive()


def test_work_that_never_ends_keeps_no_engine_from_its_results() -> None:
    inside = 0

    def keep() -> None:
        nonlocal inside
        inside += 1
        assert inside == 1, "both have the lock"
        inside -= 1
        keeper.stir()

    keeper, calls = kept(keep)
    with keeper:
        for _ in range(100):
            keep()
            with keeper.computing():
                calls.get(timeout=SOON_S)
        keeper.check()


def test_what_fails_is_raised_on_the_engine_thread() -> None:
    def keep() -> None:
        raise ValueError("of the keeper")

    keeper, calls = kept(keep)
    with keeper:
        keeper.check()
        with keeper.computing():
            keeper.stir()
            calls.get(timeout=SOON_S)
        with pytest.raises(ValueError, match="of the keeper"):
            keeper.check()
