"""The public surface as mypy and pyright see it: right calls pass, wrong calls are refused, line by line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

CASES = Path(__file__).with_name("cases.py")
WRONG = {number for number, line in enumerate(CASES.read_text().splitlines(), 1) if line.endswith("# wrong")}


def check(*command: str) -> str:
    done = subprocess.run([sys.executable, "-m", *command], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def test_mypy_refuses_exactly_the_wrong_calls() -> None:
    # With the cache of `make lint`: from nothing it takes nine seconds.
    output = check("mypy", "--strict", "--no-error-summary", str(CASES))
    errors = {int(match[1]) for match in re.finditer(r"cases\.py:(\d+): error", output) if match}
    assert errors == WRONG, output


def test_pyright_refuses_exactly_the_wrong_calls() -> None:
    output = check("pyright", "--outputjson", "--pythonpath", sys.executable, str(CASES))
    found = json.loads(output)["generalDiagnostics"]
    errors = {one["range"]["start"]["line"] + 1 for one in found if one["severity"] == "error"}
    assert errors == WRONG, output
