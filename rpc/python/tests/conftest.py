"""Clusters shared by the tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster import Cluster


@pytest.fixture(scope="session")
def single(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One node that all tests of the run share; its pool has 90,000 tokens to give."""
    yield from _run(tmp_path_factory.mktemp("single"), 1)


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Cluster]:
    """Three nodes for one test that kills them."""
    yield from _run(tmp_path, 3)


def _run(root: Path, size: int) -> Iterator[Cluster]:
    cluster = Cluster(root, size)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
