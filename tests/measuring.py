"""What coverage measures: the tests while they run, and of those that run the same lines only some.

Being measured adds 70 % to what a test computes, and 300 % to what it takes to collect all tests.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from coverage import Coverage

import rowlock

_TESTS = Path(__file__).parent
_OLD_SERVER = {"postgres-old", "old_postgres"}
# The tests of these folders start programs, which are not measured.
_OF_PROGRAMS = {"adoption", "chaos", "docs", "examples"}
# Those of these have many cases on several stores: of each test, one case on each store is measured.
_OF_MANY_CASES = {"consumers", "stores"}
_STORES = {"sqlite", "postgres", "duckdb", "duckdb-file"}


class Measuring:
    """Turns coverage off except while a test runs that is to be measured."""

    _coverage: Coverage

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self, session: pytest.Session) -> Generator[None, Any, Any]:
        if not hasattr(session.config, "workerinput"):
            _import_all()
        self._coverage = session.config.pluginmanager.getplugin("_cov").cov_controller.cov
        # pytest-cov starts two in a process of pytest-xdist, and when one is stopped the other goes on.
        while running := Coverage.current():
            running.stop()
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, Any, Any]:
        if _is_measured(item):
            with _leaving_as_before():
                self._coverage.start()
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Generator[None, Any, Any]:
        with _leaving_as_before():
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, Any, Any]:
        if not _is_measured(item):
            self._coverage.stop()  # pytest-cov has started it again after `no_cover`
        try:
            return (yield)
        finally:
            self._coverage.stop()


@contextmanager
def _leaving_as_before() -> Iterator[None]:
    """Keep `os._exit`, which coverage wraps once more each time that it is started."""
    leave = os._exit
    try:
        yield
    finally:
        os._exit = leave


def _import_all() -> None:
    """Import every module of rowlock, so that the lines that importing it runs are measured."""
    for module in pkgutil.walk_packages(rowlock.__path__, "rowlock."):
        if module.name != "rowlock.__main__":
            importlib.import_module(module.name)


def _is_measured(item: pytest.Item) -> bool:
    return item.get_closest_marker("no_cover") is None


def leave_out_repetitions(items: list[pytest.Item]) -> None:
    """Mark the tests that need not be measured."""
    measured = set()
    for item in items:
        folder = item.path.relative_to(_TESTS).parts[0]
        chosen = getattr(item, "callspec", None)
        values = {str(value) for value in chosen.params.values()} if chosen else set()
        case = (item.path, item.name.partition("[")[0], frozenset(_STORES & values))
        is_repeated = folder in _OF_MANY_CASES and case in measured
        if is_repeated or folder in _OF_PROGRAMS or _OLD_SERVER & values:
            item.add_marker(pytest.mark.no_cover)
        else:
            measured.add(case)
