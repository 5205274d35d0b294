"""`rowlock queues`, `pause`, `resume` and `workers`."""

from __future__ import annotations

from rowlock import RetryLater, Rowlock
from tests.cli.commands import CommandLine
from tests.eventually import eventually

DATABASE = ("--database", "jobs.db")


def test_queues_are_listed_paused_resumed_and_given_a_strategy(rowlock: CommandLine, shop: Rowlock) -> None:
    shop.enqueue("add", queue="gpu")
    shop.enqueue("add", queue="mail", delay=1000)
    assert rowlock.here("pause", "gpu", *DATABASE).out == "queue gpu: paused; 1 job waits\n"
    assert rowlock.here("queues", "set", "gpu", "--strategy", "weighted-random", *DATABASE).out == (
        "jobs of queue gpu are now claimed by WEIGHTED_RANDOM\n"
    )
    header, gpu, mail = rowlock("queues", *DATABASE).out.splitlines()
    assert header.split()[:5] == ["queue", "scheduled", "queued", "running", "failed"]
    assert gpu.split()[:7] == ["gpu", "0", "1", "0", "0", "paused", "WEIGHTED_RANDOM"] and gpu.endswith(
        "s ago"
    )
    assert mail.split() == ["mail", "1", "0", "0", "0"]

    assert rowlock.here("resume", "gpu", *DATABASE).out == "queue gpu: resumed; 1 job waits\n"
    assert "not paused already" in rowlock.here("resume", "gpu", *DATABASE).out
    assert "each worker's own" in rowlock.here("queues", *DATABASE, "set", "gpu", "--strategy", "none").out
    first = rowlock.here("queues", *DATABASE, "--json").json[0]
    assert (first["name"], first["paused"], first["strategy"]) == ("gpu", False, None)
    assert first["counts"]["queued"] == 1

    new = rowlock.here("pause", "new", *DATABASE)
    assert new.err == "note: queue new has no jobs yet\n" and new.out == "queue new: paused\n"
    refused = rowlock.refused_here("queues", "set", "gpu", "--strategy", "best", *DATABASE)
    assert "built in are: FIFO, LIFO, PRIORITY, WEIGHTED_RANDOM" in refused and "--app" in refused
    assert "printable text" in rowlock.refused_here("pause", "a\nb", *DATABASE)
    assert "PRIORITY does not apply to a consumer" in rowlock.refused_here(
        "queues", "set", "consumer:birdnet", "--strategy", "PRIORITY", *DATABASE
    )


def test_a_strategy_that_the_app_registers_is_known_where_the_app_is(
    rowlock: CommandLine, shop: Rowlock
) -> None:
    shop.enqueue("add", queue="gpu")
    (rowlock.folder / "orders.py").write_text(
        "from rowlock import Key, Rowlock, Strategy, register\n"
        "app = Rowlock('sqlite:///jobs.db')\n"
        "register(Strategy('LOWEST', (Key('priority'), Key('position'))))\n"
    )
    asked = ("queues", "set", "gpu", "--strategy", "lowest", *DATABASE)
    assert "built in are" in rowlock.refused(*asked)
    assert rowlock(*asked, "--app", "orders:app").out == "jobs of queue gpu are now claimed by LOWEST\n"
    assert "valid ones are: FIFO" in rowlock.refused(*asked[:4], "best", *DATABASE, "--app", "orders:app")


def test_a_pause_that_ends_by_itself_is_shown_with_its_time(rowlock: CommandLine, shop: Rowlock) -> None:
    @shop.task(queue="upload")
    def upload() -> None:
        raise RetryLater(600, pause=True)

    upload.enqueue()
    shop.worker(concurrency=1).run(until_empty=True)
    assert "paused for 10 min" in rowlock.here("queues", *DATABASE).out
    assert "paused\n" in rowlock.here("pause", "upload", *DATABASE).out
    assert "paused for" not in rowlock.here("queues", *DATABASE).out
    assert "resumed" in rowlock.here("resume", "upload", *DATABASE).out


def test_workers_are_listed_while_they_live_and_with_all_afterwards(
    rowlock: CommandLine, shop: Rowlock
) -> None:
    assert "no queue at" in rowlock.refused_here("workers", *DATABASE)
    shop.store.open()
    assert rowlock.here("workers", *DATABASE).err.startswith("no workers now (--all shows those that ended)")
    with rowlock.start("worker", "shop:queue", "--name", "w1", "-q", "gpu", "-c", "3"):
        eventually(shop.store.workers)
        header, line = rowlock.here("workers", *DATABASE).out.splitlines()
        assert header.split()[:4] == ["worker", "status", "running", "strategy"]
        assert line.split()[:4] == ["w1", "alive", "0/3", "PRIORITY"] and line.endswith("gpu")
        (worker,) = rowlock.here("workers", *DATABASE, "--json").json
        assert (worker["id"], worker["status"], worker["queues"]) == ("w1", "alive", ["gpu"])
        assert "add" in worker["tasks"]
    rowlock.here("worker", "shop:queue", "--name", "w2", "--until-empty")
    everyone = rowlock.here("workers", *DATABASE, "--all", "--json").json
    assert {one["id"]: one["status"] for one in everyone}["w2"] == "stopped"
    still_there = rowlock.here("workers", *DATABASE, "--json").json
    assert [one["id"] for one in still_there] == ["w1"]  # it was killed and said no goodbye
