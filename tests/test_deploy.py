"""The files in deploy/, as far as they can be checked without an engine: do they name what there is?"""

from __future__ import annotations

import fnmatch
import importlib
import importlib.util
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command
from uvicorn.main import main as uvicorn

from rowlock import settings
from rowlock.cli import cli
from rowlock.worker.options import STOP_GRACE

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
DEPLOY = ROOT / "deploy"
COMPOSE = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE)["services"]
OURS = {name: service for name, service in SERVICES.items() if "build" in service}
VARIABLES = dict(
    re.findall(r"^#?([A-Z_]+)=(.*)$", (DEPLOY / ".env.example").read_text(encoding="utf-8"), re.MULTILINE)
)


def instructions() -> list[tuple[str, str]]:
    """The Dockerfile's, each on one line."""
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(line.partition(" ")[0], line.partition(" ")[2]) for line in joined.splitlines()]


def last_stage() -> list[tuple[str, str]]:
    begins = [number for number, (name, _) in enumerate(instructions()) if name == "FROM"]
    return instructions()[begins[-1] :]


def commands() -> list[list[str]]:
    """What our services run, and the image if nobody says otherwise."""
    given = [service["command"] for service in OURS.values()]
    given += [yaml.safe_load(value) for name, value in instructions() if name == "CMD"]
    plain = [command for command in given if command[0] != "sh"]
    scripts = [line for command in given if command[0] == "sh" for line in command[2].splitlines()]
    return [*plain, *(shlex.split(line) for line in scripts if line != "set -e")]


def parse(command: Any, name: str, arguments: Sequence[str]) -> None:
    """Read the arguments as the program would, and run nothing; what it does not know it refuses."""
    context = command.make_context(name, list(arguments))
    if hasattr(command, "resolve_command"):
        rest = [*context._protected_args, *context.args]
        found, sub, left = command.resolve_command(context, rest)
        parse(sub, found, left)


# -- compose.yaml --------------------------------------------------------------------------------


def test_a_worker_the_api_and_the_servers_are_there() -> None:
    assert {"postgres", "redis", "api", "worker"} <= set(SERVICES)
    assert OURS["worker"]["command"][:2] == ["rowlock", "consume"]
    assert OURS["worker"]["command"][-2:] == ["--via", "rq"]


def test_what_a_service_waits_for_can_be_waited_for() -> None:
    for service in SERVICES.values():
        for name, how in service.get("depends_on", {}).items():
            if how["condition"] == "service_healthy":
                assert "healthcheck" in SERVICES[name]
            else:
                assert how["condition"] == "service_completed_successfully"
                assert SERVICES[name]["restart"] == "no"


def test_volumes_and_networks_are_declared() -> None:
    compose = yaml.safe_load(COMPOSE)
    for service in SERVICES.values():
        assert {volume.partition(":")[0] for volume in service.get("volumes", [])} <= set(compose["volumes"])
        assert set(service["networks"]) <= set(compose["networks"])


def test_the_servers_cannot_be_reached_from_outside() -> None:
    compose = yaml.safe_load(COMPOSE)
    for name in ("postgres", "redis"):
        assert "ports" not in SERVICES[name]
        assert all(compose["networks"][network]["internal"] for network in SERVICES[name]["networks"])


def test_the_api_is_told_nothing_of_redis() -> None:
    assert set(SERVICES["api"]["environment"]) == {"ROWLOCK_DATABASE_URL"}
    assert "env_file" not in SERVICES["api"] and SERVICES["worker"]["env_file"] == ".env"


def test_a_worker_has_time_to_give_back_its_run() -> None:
    assert float(SERVICES["worker"]["stop_grace_period"].removesuffix("s")) > STOP_GRACE


def test_the_worker_with_a_gpu_is_right_when_its_comment_signs_are_gone() -> None:
    begin = COMPOSE.index("  # worker-gpu:")
    block, rest = COMPOSE[begin:].split("\n\n", 1)
    uncommented = re.sub(r"^  # ", "  ", block, flags=re.MULTILINE)
    worker = yaml.safe_load(COMPOSE[:begin] + uncommented + "\n\n" + rest)["services"]["worker-gpu"]
    assert (worker["profiles"], worker["command"]) == (["gpu"], SERVICES["worker"]["command"])
    (device,) = worker["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_every_command_is_one_that_there_is_with_these_options(command: list[str]) -> None:
    program_name, *arguments = command
    if program_name == "python":
        assert importlib.util.find_spec(arguments[1])
        return
    parse({"rowlock": get_command(cli), "uvicorn": uvicorn}[program_name], program_name, arguments)
    for module, _, name in (one.partition(":") for one in arguments if re.fullmatch(r"[\w.]+:\w+", one)):
        assert hasattr(importlib.import_module(module), name)


# -- .env.example --------------------------------------------------------------------------------


def test_the_example_has_the_settings_of_a_relay_and_nothing_else() -> None:
    assert set(VARIABLES) == {
        "ROWLOCK_DATABASE_URL",
        "REDIS_URL",
        "POLLER_INTERVAL_SECONDS",
        "STALE_JOB_TIMEOUT_SECONDS",
        "FAILED_JOB_TIMEOUT_SECONDS",
        "ROWLOCK_PROFILE",
    }


@pytest.mark.parametrize("name", VARIABLES)
def test_rowlock_reads_every_variable_and_takes_its_value(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = settings.load()
    ten_times = "0" if name.endswith("SECONDS") else ""  # some of the values are the defaults
    monkeypatch.setenv(name, VARIABLES[name] + ten_times)
    assert settings.load() != before


def test_compose_names_no_variable_that_is_nowhere() -> None:
    used = re.findall(r"\$\{([A-Z_]+)(:-)?", COMPOSE)
    assert {name for name, default in used if not default} <= set(VARIABLES)
    url = VARIABLES["ROWLOCK_DATABASE_URL"]
    given = SERVICES["postgres"]["environment"]
    assert url == f"postgresql://{given['POSTGRES_USER']}:rowlock@postgres:5432/{given['POSTGRES_DB']}"


# -- Dockerfile ----------------------------------------------------------------------------------


def test_everything_that_is_copied_exists_and_is_not_ignored() -> None:
    copied = [shlex.split(value)[:-1] for name, value in instructions() if name == "COPY"]
    sources = [one for words in copied if not words[0].startswith("--from") for one in words]
    rules = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    allowed = [rule[1:] for rule in rules if rule.startswith("!")]
    assert "*" in rules and sources
    for source in sources:
        assert (ROOT / source).exists()
        assert any(fnmatch.fnmatch(source, rule) for rule in allowed)
    assert sorted(allowed) == sorted(sources)


def test_the_image_does_not_run_as_root() -> None:
    users = [value for name, value in last_stage() if name == "USER"]
    assert users and users[-1].partition(":")[0] not in ("root", "0")
    assert last_stage().index(("USER", users[-1])) > max(
        number for number, (name, _) in enumerate(last_stage()) if name in ("RUN", "COPY")
    )


def test_no_compiler_is_left_in_the_image() -> None:
    assert last_stage()[0][1].endswith("-slim")
    for name, value in last_stage():
        if name == "RUN":
            assert not re.search(r"\b(apt|apt-get|apk|pip|gcc|make|build-essential|cargo)\b", value)


def test_both_stages_have_the_same_python() -> None:
    """The environment that is copied names the interpreter that made it."""
    images = [value.partition(" ")[0] for name, value in instructions() if name == "FROM"]
    assert len(images) == 2 and len(set(images)) == 1


def test_the_image_gets_extras_and_versions_that_the_project_has() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    (installed,) = [value for _, value in instructions() if "install --no-cache-dir" in value]
    named = re.search(r'"\.\[([\w,]+)\]"', installed)
    assert named and set(named[1].split(",")) <= set(extras)
    required = (DEPLOY / "requirements.txt").read_text(encoding="utf-8").splitlines()
    assert {line for line in required if not line.startswith("#")} <= set(extras["examples"])
