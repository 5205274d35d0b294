"""Settings: arguments, then ROWLOCK_ names, then plain names, then the profile, then defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rowlock import ConfigurationError, Rowlock
from rowlock.settings import load, sources, without_password
from rowlock.stores.postgres.url import parse


def test_the_defaults_are_those_of_the_design() -> None:
    settings = load()
    assert (settings.database_url, settings.poll_interval, settings.lease) == (
        "sqlite:///rowlock.db",
        1.0,
        60.0,
    )
    assert (settings.failed_after, settings.concurrency) == (0.0, 4)
    assert (settings.keep_completed_days, settings.keep_failed_days) == (7.0, 30.0)
    assert settings.max_payload_bytes == 1024 * 1024


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("POLLER_INTERVAL_SECONDS", "poll_interval"),
        ("STALE_JOB_TIMEOUT_SECONDS", "lease"),
        ("FAILED_JOB_TIMEOUT_SECONDS", "failed_after"),
    ],
)
def test_names_work_with_and_without_the_prefix_which_wins(
    monkeypatch: pytest.MonkeyPatch, name: str, field: str
) -> None:
    monkeypatch.setenv(name, "7")
    assert getattr(load(), field) == 7
    monkeypatch.setenv(f"ROWLOCK_{name}", "8")
    assert getattr(load(), field) == 8
    assert getattr(load(**{field: 9.0}), field) == 9


@pytest.mark.parametrize(
    "name", ["ROWLOCK_STALE_JOB_TIMEOUT_SECONDS", "STALE_JOB_TIMEOUT_SECONDS", "ROWLOCK_LEASE"]
)
def test_a_setting_is_told_with_the_variable_that_it_comes_from(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "30")
    assert load().lease == 30
    assert sources(load(), {})["lease"] == name
    assert sources(load(), {})["poll_interval"] == "default"
    assert sources(load(lease=20.0), {"lease": 20.0})["lease"] == "argument"


@pytest.mark.parametrize(("profile", "timings"), [("dev", (5, 60, 0)), ("prod", (30, 600, 0))])
def test_a_profile_sets_poll_and_lease_and_lets_no_job_fail(
    monkeypatch: pytest.MonkeyPatch, profile: str, timings: tuple[float, ...]
) -> None:
    monkeypatch.setenv("ROWLOCK_PROFILE", profile)
    settings = load()
    assert (settings.poll_interval, settings.lease, settings.failed_after) == timings
    monkeypatch.setenv("STALE_JOB_TIMEOUT_SECONDS", "45")
    assert (load().lease, load().poll_interval) == (45, timings[0])
    assert load(poll_interval=0.5).poll_interval == 0.5


@pytest.mark.parametrize(("profile", "seconds"), [("dev", 120), ("prod", 3600), ("", 0)])
def test_in_a_relay_a_profile_also_says_when_a_job_is_overdue(
    monkeypatch: pytest.MonkeyPatch, profile: str, seconds: float
) -> None:
    monkeypatch.setenv("ROWLOCK_PROFILE", profile)
    assert load().failed_after_in_relay == seconds
    assert load(failed_after=7.0).failed_after_in_relay == 7
    monkeypatch.setenv("FAILED_JOB_TIMEOUT_SECONDS", "0")
    assert load().failed_after_in_relay == 0


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("STALE_JOB_TIMEOUT_SECONDS", "soon", "STALE_JOB_TIMEOUT_SECONDS='soon'.*valid number"),
        ("ROWLOCK_POLLER_INTERVAL_SECONDS", "0", "ROWLOCK_POLLER_INTERVAL_SECONDS='0'.*greater than 0"),
        ("FAILED_JOB_TIMEOUT_SECONDS", "-1", "FAILED_JOB_TIMEOUT_SECONDS='-1'.*greater than or equal to 0"),
        ("ROWLOCK_PROFILE", "test", "ROWLOCK_PROFILE='test'.*'dev' or 'prod'"),
        ("ROWLOCK_CONCURRENCY", "many", "ROWLOCK_CONCURRENCY='many'"),
        ("ROWLOCK_LEASE", "x", "ROWLOCK_LEASE='x'"),
        ("ROWLOCK_POLL_INTERVAL", "x", "ROWLOCK_POLL_INTERVAL='x'"),
        ("ROWLOCK_MAX_PAYLOAD_BYTES", "1", "ROWLOCK_MAX_PAYLOAD_BYTES='1'"),
    ],
)
def test_a_bad_value_is_refused_with_the_variables_name(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=message):
        load()


def test_a_bad_database_is_refused_with_the_variables_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROWLOCK_DATABASE_URL", "mysql://localhost/x")
    with pytest.raises(ConfigurationError, match="ROWLOCK_DATABASE_URL: 'mysql' is not a kind of database"):
        Rowlock().jobs()


def test_an_empty_variable_counts_as_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROWLOCK_DATABASE_URL", "")
    monkeypatch.setenv("STALE_JOB_TIMEOUT_SECONDS", "")
    assert (load().database_url, load().lease) == ("sqlite:///rowlock.db", 60)


def test_a_bad_argument_is_refused_by_its_name() -> None:
    with pytest.raises(ConfigurationError, match=r"lease=-3"):
        _ = Rowlock("sqlite:///jobs.db", lease=-3).settings


def test_the_database_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ROWLOCK_DATABASE_URL", f"sqlite:///{tmp_path}/env.db")
    app = Rowlock()
    app.enqueue("work")
    assert (tmp_path / "env.db").exists()
    app.close()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://localhost/x", "'mysql' is not a kind of database"),
        ("sqlite+pysqlcipher:///x.db", "'sqlite.pysqlcipher' is not a kind of database"),
        ("postgresql+gauss://me:secret@localhost/x", "'postgresql.gauss' is not a kind of database"),
        ("postgresql://localhost/x?pooler=session", "pooler='session': must be transaction"),
        ("postgresql://localhost/x?schema=a-b", "schema='a-b': must be a plain name"),
        ("postgresql://localhost/x?pool_size=1", "pool_size='1': must be a whole number from 2"),
        ("postgresql://localhost:port/x", "is not a PostgreSQL URL"),
        ("duckdb:///:memory:", "has to outlive its process"),
        ("duckdb://host/x.duckdb", "a DuckDB file has none"),
        ("jobs.db", "is not a database URL"),
        ("sqlite://", "names no file"),
        ("sqlite:///", "names no file"),
        ("sqlite:///:memory:", "names no file"),
        ("sqlite://host/jobs.db", "names a host"),
        ("sqlite:///jobs.db?mode=ro", "takes no options"),
        (5, "is not a database URL"),
        ("sqlite://[x", "is not a database URL"),
    ],
)
def test_a_url_that_cannot_work_is_refused_where_it_is_written(url: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Rowlock(url)


def test_paths_may_hold_spaces_and_escapes(tmp_path: Path) -> None:
    folder = tmp_path / "my jobs é #1"
    folder.mkdir()
    from urllib.parse import quote

    app = Rowlock("sqlite:///" + quote(str(folder / "queue 100%.db")))
    app.enqueue("work")
    assert (folder / "queue 100%.db").exists()
    app.close()


@pytest.mark.parametrize("scheme", ["sqlite+pysqlite", "sqlite+aiosqlite", "SQLite+AioSQLite"])
def test_sqlalchemys_urls_of_a_file_name_the_same_database(tmp_path: Path, scheme: str) -> None:
    assert (
        Rowlock(f"{scheme}:///{tmp_path}/a.db").store.url == Rowlock(f"sqlite:///{tmp_path}/a.db").store.url
    )


@pytest.mark.parametrize(
    ("given", "same"),
    [
        ("postgresql+psycopg://me:pw@host/db", "postgresql://me:pw@host/db"),
        ("postgresql+psycopg_async://me:pw@host/db", "postgresql://me:pw@host/db"),
        ("postgresql+psycopg2://me@host/db?sslmode=require", "postgresql://me@host/db?sslmode=require"),
        ("postgresql+asyncpg://me@host/db?ssl=require", "postgresql://me@host/db?sslmode=require"),
        ("postgresql+asyncpg://me@host/db?ssl=true", "postgresql://me@host/db?sslmode=require"),
        ("postgresql+asyncpg://me@host/db?ssl=False", "postgresql://me@host/db?sslmode=disable"),
        ("postgresql+asyncpg://me@host/db?prepared_statement_cache_size=0", "postgresql://me@host/db"),
    ],
)
def test_sqlalchemys_urls_of_a_server_name_the_same_database(given: str, same: str) -> None:
    assert parse(given) == parse(same)
    assert Rowlock(given).store.url == Rowlock(same).store.url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://u:pa@ss@host:1/0", "redis://u:***@host:1/0"),
        ("redis://:se/cret@host/0", "redis://:***@host/0"),
        ("redis://:se?cr#et@host/0", "redis://:***@host/0"),
        ("postgresql://u:a:b@host/db?x=c@d&password=e", "postgresql://u:***@host/db?x=c@d&password=***"),
        ("redis://u@host:6379/0", "redis://u@host:6379/0"),
        ("sqlite:///C:/a@b/jobs.db", "sqlite:///C:/a@b/jobs.db"),
    ],
)
def test_a_password_is_not_shown_also_if_it_was_not_escaped(url: str, shown: str) -> None:
    assert without_password(url) == shown


def test_only_asyncpg_has_an_option_ssl() -> None:
    with pytest.raises(ConfigurationError, match="nobody knows"):
        Rowlock("postgresql://me@host/db?ssl=require")
