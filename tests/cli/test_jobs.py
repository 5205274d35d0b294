"""`rowlock jobs`, `job`, `watch`, `cancel` and `retry`."""

from __future__ import annotations

import pytest

from rowlock import Rowlock
from tests.cli.commands import CommandLine
from tests.eventually import eventually

DATABASE = ("--database", "jobs.db")


@pytest.fixture
def failed(rowlock: CommandLine, shop: Rowlock) -> int:
    """A job that has used up its attempts."""
    job = shop.enqueue("send", {"to": "me"}, queue="mail")
    with rowlock.start("worker", "shop:queue"):
        eventually(lambda: shop.job(job.id).state == "failed")
    return job.id


def test_jobs_are_listed_newest_first_and_by_page(rowlock: CommandLine, shop: Rowlock) -> None:
    ids = [shop.enqueue("add", {"n": n}, queue="fast" if n % 2 else "slow").id for n in range(5)]
    shop.enqueue("later", delay=1000)
    shown = rowlock("jobs", *DATABASE, "--limit", "3")
    header, first, *_ = shown.out.splitlines()
    assert header.split() == ["id", "task", "queue", "prio", "state", "age", "tries", "note"]
    assert first.split()[1:5] == ["later", "default", "0", "scheduled"] and "due in 17 min" in first
    assert len(shown.out.splitlines()) == 4 and "\x1b" not in shown.out + shown.err
    assert all(line == line.rstrip() for line in shown.out.splitlines())

    more = shown.err.split("more: ")[1].split()
    assert more[more.index("jobs") :][:3] == ["jobs", "--database", "jobs.db"]
    rest = rowlock.here(*more[more.index("jobs") :])
    assert [int(line.split()[0]) for line in rest.out.splitlines()[1:]] == ids[2::-1] and rest.err == ""

    chosen = ("--queue", "fast", "--task", "add", "--state", "QUEUED")
    page = rowlock.here("jobs", *DATABASE, *chosen, "--json").json
    assert [job["id"] for job in page["jobs"]] == [ids[3], ids[1]] and page["cursor"] is None
    assert page["jobs"][0]["created_at"].endswith("Z") and page["jobs"][0]["cancelling"] is False
    nothing = rowlock.here("jobs", *DATABASE, "--state", "failed")
    assert (nothing.out, nothing.err) == ("", "no such jobs\n")


def test_one_job_is_told_whole(rowlock: CommandLine, shop: Rowlock, failed: int) -> None:
    told = rowlock.here("job", failed, *DATABASE).out
    for words in (
        "send",
        "mail, priority 0",
        "failed",
        "attempts    2",
        '{"to": "me"}',
        "error kind",
        "exception",
    ):
        assert words in told
    assert "ConnectionError: no [bold]way[/bold] to me \\x1b[31m" in told and "\x1b" not in told
    assert "history:" in told and told.count("retry") == 1
    listed = rowlock.here("jobs", *DATABASE).out.splitlines()[1]
    assert listed.endswith("2      ConnectionError: no [bold]way[/bold] to me \\x1b[31m")

    job = rowlock.here("job", failed, *DATABASE, "--json").json
    assert job["state"] == "failed" and job["error"].endswith("to me \x1b[31m")
    assert [entry["event"] for entry in job["history"]] == ["retry", "failed"] and job["logs"] == []


def test_a_running_job_is_watched_cancelled_and_retried(rowlock: CommandLine, shop: Rowlock) -> None:
    job = shop.enqueue("wait_for_the_go")
    timed_out = rowlock.here("watch", job.id, *DATABASE, "--timeout", "0.1", code=124)
    assert timed_out.out == f"job {job.id} (wait_for_the_go): queued\n"
    assert timed_out.err == f"rowlock: job {job.id} (wait_for_the_go) is still queued after 0.1 s\n"
    with rowlock.start("worker", "shop:queue", "--name", "w1"):
        eventually(lambda: shop.job(job.id).progress and shop.logs(job.id))
        assert "wait_for_the_go" in rowlock.here("workers", "--stacks", "w1", *DATABASE).out
        assert rowlock.refused_here("workers", "--stacks", "w9", *DATABASE).startswith(
            "there is no worker w9"
        )
        assert "25% waiting" in rowlock.here("jobs", *DATABASE).out
        assert 'waiting for_what="go"' in rowlock.here("job", job.id, *DATABASE).out
        asked = rowlock.here("cancel", job.id, *DATABASE)
        assert asked.out == f"job {job.id} (wait_for_the_go) is running and was asked to stop\n"
        watched = rowlock("watch", job.id, *DATABASE, code=1)
        assert f"job {job.id} (wait_for_the_go) cancelled after " in watched.out

        rowlock.write("go", "")
        assert (
            rowlock.here("retry", job.id, *DATABASE).out
            == f"job {job.id} (wait_for_the_go) is back in queue default\n"
        )
        assert rowlock.here("watch", job.id, *DATABASE, "--json").json["result"] == "gone"
    assert f"job {job.id} is completed already" in rowlock.refused_here("cancel", job.id, *DATABASE)


def test_every_job_named_is_tried_and_one_that_cannot_be_makes_it_1(
    rowlock: CommandLine, shop: Rowlock
) -> None:
    first, second = shop.enqueue("add").id, shop.enqueue("add").id
    ended = rowlock.here("cancel", first, 999, second, *DATABASE, code=1)
    assert ended.out.splitlines() == [f"job {first} (add) cancelled", f"job {second} (add) cancelled"]
    assert ended.err == "rowlock: there is no job 999; it may have been pruned\n"
    again = rowlock.here("retry", first, 999, *DATABASE, code=1)
    assert "is back in queue" in again.out and "no job 999" in again.err
    assert "there is nothing to retry" in rowlock.refused_here("retry", first, *DATABASE)


def test_all_failed_jobs_can_be_retried(rowlock: CommandLine, shop: Rowlock) -> None:
    ids = [
        shop.enqueue(task, queue=queue, expires=0.001).id
        for task, queue in (("a", "x"), ("a", "y"), ("b", "x"))
    ]
    eventually(lambda: shop.store.expire(10) + shop.stats()["failed"] == 3)
    assert rowlock.here("retry", "--failed", "--queue", "x", "--task", "a", *DATABASE).out == (
        "1 failed job put back into the queue\n"
    )
    assert [shop.job(id).state for id in ids] == ["queued", "failed", "failed"]
    assert rowlock.here("retry", "--failed", *DATABASE).out == "2 failed jobs put back into the queue\n"
    assert rowlock.here("retry", "--failed", *DATABASE).out == "0 failed jobs put back into the queue\n"


def test_ids_and_choices_are_checked(rowlock: CommandLine, shop: Rowlock) -> None:
    shop.enqueue("add")
    assert rowlock.refused_here("job", 5, *DATABASE) == "there is no job 5; it may have been pruned"
    assert rowlock.refused_here("watch", 5, *DATABASE) == "there is no job 5; it may have been pruned"
    assert "'ID'" in rowlock.refused_here("job", "five", *DATABASE, code=2)
    assert "no job's id" in rowlock.refused_here("cancel", 1, 2**64, *DATABASE, code=2)
    assert "no job's id" in rowlock.refused_here("job", 0, *DATABASE, code=2)
    assert "which jobs?" in rowlock.refused_here("cancel", *DATABASE, code=2)
    assert "which jobs?" in rowlock.refused_here("retry", *DATABASE, code=2)
    assert "which jobs?" in rowlock.refused_here("retry", 1, "--failed", *DATABASE, code=2)
    assert "add --failed" in rowlock.refused_here("retry", 1, "--queue", "x", *DATABASE, code=2)
    assert rowlock.refused_here("jobs", "--state", "lost", *DATABASE).startswith(
        "state='lost': must be one of"
    )
    assert rowlock.refused_here("jobs", "--limit", "0", *DATABASE).startswith("limit=0: must be")
    assert rowlock.refused_here("jobs", "--cursor", "x", *DATABASE).startswith("cursor='x'")
    assert rowlock.refused_here("watch", 1, "--timeout", "-1", *DATABASE).startswith(
        "--timeout=-1.0: must be"
    )
