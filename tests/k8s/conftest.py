"""One cluster for all tests of this folder."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.k8s.cluster import cluster


@pytest.fixture(scope="session", autouse=True)
def kubernetes() -> Iterator[None]:
    scripts = os.environ.get("TRUNKLINE_K8S")
    if scripts is None:
        pytest.skip("a real cluster takes minutes: `make test-k8s`")
    with cluster(Path(scripts)):
        yield
