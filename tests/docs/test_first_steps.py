"""The page "First steps" in real web applications: what its views return is JSON in each of them."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.http import HttpRequest

from tests.asgi import request
from tests.django_setup import set_up_django
from tests.docs.blocks import read_blocks, write

PAGE = Path(__file__).parents[2] / "docs" / "first-steps.md"
MODULES = ("tasks", "web", "flask_web", "django_views")


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The modules that the page shows, imported."""
    for block in read_blocks(PAGE.read_text(encoding="utf-8"), PAGE.name):
        if block.title in {f"{name}.py" for name in MODULES}:
            write(block, block.title, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    loaded = {name: importlib.import_module(name) for name in MODULES}
    yield loaded
    loaded["tasks"].app.close()
    for name in MODULES:
        del sys.modules[name]


def test_a_job_with_progress_is_the_same_json_in_every_framework(page: dict[str, Any]) -> None:
    assert request(page["web"].web, "POST", "/orders/17/pay", "email=ann@example.org")[0] == 200
    assert request(page["web"].web, "POST", "/reports/2026")[1]["id"] == 2
    page["tasks"].app.worker().run(until_empty=True)

    status, from_fastapi = request(page["web"].web, "GET", "/jobs/2")
    assert (status, from_fastapi["state"]) == (200, "completed")
    assert from_fastapi["progress"] == {"done": 12, "total": 12, "note": "month 12"}

    answer = page["flask_web"].web.test_client().get("/jobs/2")
    assert (answer.status_code, answer.get_json()) == (200, from_fastapi)

    set_up_django()
    assert json.loads(page["django_views"].look(HttpRequest(), 2).content) == from_fastapi
