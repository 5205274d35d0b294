"""The stores on which consumers have to behave alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.consumers.lab import Lab
from tests.stores.conformance.conftest import sqlite


def postgres(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("postgres_as_new"))


STORES: dict[str, Callable[[pytest.FixtureRequest], str]] = {"sqlite": sqlite, "postgres": postgres}


@pytest.fixture(params=STORES)
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    made = Lab(STORES[request.param](request))
    yield made
    made.close()
