"""How torch's threads wait for each other. Free of torch: this must be said before torch is loaded."""

import os

SPINS = "1000"


def spin_briefly() -> None:
    """Threads that wait for the others of a parallel operation sleep after microseconds instead of milliseconds.

    GNU OpenMP's default suits a machine of one's own. When another process has a core, threads that spin use up the
    time of those they wait for: with one busy process beside it on two cores a step took 1.6 times as long as with
    this. Alone it is 5 % slower in decode, and uses 10 % less CPU. What the user has set stays.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
