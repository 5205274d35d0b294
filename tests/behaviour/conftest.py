"""What must stay true of whole workers however the rooms are arranged: real databases, public names only."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rowlock import Rowlock
from tests.behaviour.exchanges import Exchanges
from tests.consumers.conftest import STORES
from tests.consumers.lab import Lab


@pytest.fixture(params=STORES)
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A database of each kind, as its user sees it."""
    made = Lab(STORES[request.param](request))
    yield made
    made.close()


@pytest.fixture
def app(lab: Lab) -> Rowlock:
    """An app on it."""
    return lab.app()


@pytest.fixture
def exchanges(app: Rowlock, monkeypatch: pytest.MonkeyPatch) -> Exchanges:
    """The exchanges of its workers."""
    return Exchanges(app, monkeypatch)
