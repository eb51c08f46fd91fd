"""What is said to OpenMP reaches it, and the user's word counts more."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
import sys
from trunkline.agent.cli import spin_briefly
assert "torch" not in sys.modules
spin_briefly()
import torch
"""


@pytest.mark.parametrize(
    ("environment", "spins"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "77"}, "77"), ({"OMP_WAIT_POLICY": "passive"}, "0")],
)
def test_spin_count_reaches_openmp(environment: dict[str, str], spins: str) -> None:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    shown = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env=inherited | environment | {"OMP_DISPLAY_ENV": "verbose"},
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    assert f"GOMP_SPINCOUNT = '{spins}'" in shown.stderr
