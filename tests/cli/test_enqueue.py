"""`rowlock enqueue`: arguments from the command line, options, and names nobody knows."""

from __future__ import annotations

from rowlock import Rowlock
from tests.cli.commands import CommandLine

APP = {"ROWLOCK_APP": "shop:queue"}


def test_it_prints_the_id_and_takes_pairs_and_json(rowlock: CommandLine, shop: Rowlock) -> None:
    ended = rowlock("enqueue", "anything", "n=3", "flag=true", "word=hello", "text='5'", 'digits="5"', "x=")
    assert ended.out == "1\n"
    assert ended.err.startswith("note: no worker has said yet that it knows a task 'anything'")
    here = Rowlock(f"sqlite:///{rowlock.folder / 'rowlock.db'}")  # the default; made as the library does
    assert here.job(1).args == {
        "n": 3, "flag": True, "word": "hello", "text": "'5'", "digits": "5", "x": "",
    }  # fmt: skip
    job = rowlock.here("enqueue", "anything", '{"a": [1, {"b": null}]}', "c=2", "--json").json
    assert job["args"] == {"a": [1, {"b": None}], "c": 2}
    here.close()


def test_options_reach_the_job(rowlock: CommandLine, shop: Rowlock) -> None:
    job = rowlock.here(
        "enqueue", "add", "a=1", "b=2", "--queue", "fast", "--priority", "-7", "--run-at",
        "2099-01-31T08:00:00Z", "--expires", "60", "--unique-key", "k", "--meta",
        '{"tenant": 3}', "--json", **APP,
    ).json  # fmt: skip
    assert (job["queue"], job["priority"], job["state"]) == ("fast", -7, "scheduled")
    assert (job["run_at"], job["expires_at"]) == ("2099-01-31T08:00:00Z", "2099-01-31T08:01:00Z")
    assert (job["unique_key"], job["meta"], job["is_new"]) == ("k", {"tenant": 3}, True)

    again = rowlock.here("enqueue", "add", "a=9", "b=9", "--unique-key", "k", **APP)
    assert again.out.strip() == str(job["id"]) and "holds the key 'k' already" in again.err
    assert (
        rowlock.here("enqueue", "add", "a=1", "b=2", "--delay", "1000", "--json", **APP).json["state"]
        == "scheduled"
    )


def test_an_app_that_is_named_gives_its_tasks_options_and_checks_the_arguments(
    rowlock: CommandLine, shop: Rowlock
) -> None:
    job = rowlock("enqueue", "send", "to=me", "--json", **APP).json
    assert (job["queue"], job["priority"], job["max_attempts"]) == ("mail", 5, 2)
    assert rowlock.refused_here("enqueue", "add", "a=1", **APP) == "add: missing a required argument: 'b'"
    assert rowlock.refused_here("enqueue", "add", "a=1", "b=x", **APP) == (
        "add: argument 'b': Expected `int`, got `str`"
    )
    # The same database by another name is still the app's; another one is not.
    same = rowlock.folder / "jobs.db"
    assert rowlock.here("enqueue", "send", "to=me", "--json", "-d", same, **APP).json["queue"] == "mail"
    elsewhere = rowlock.here("enqueue", "send", "to=me", "--json", "-d", "other.db", **APP).json
    assert elsewhere["queue"] == "default"
    lenient = rowlock.here("enqueue", "send", "-d", "jobs.db", "--force", ROWLOCK_APP="gone:queue")
    assert "note: cannot import gone" in lenient.err and "arguments unchecked" in lenient.err


def test_a_task_that_nobody_knows_is_refused_unless_forced(rowlock: CommandLine, shop: Rowlock) -> None:
    assert rowlock.refused_here("enqueue", "ad", **APP) == (
        "neither the app nor a worker knows a task 'ad'; did you mean add? --force enqueues it all the same"
    )
    assert rowlock.files() == set()
    rowlock.here("worker", "shop:queue", "--until-empty")  # it has said which tasks it knows
    assert "did you mean send?" in rowlock.refused_here("enqueue", "sned", "-d", "jobs.db")
    forced = rowlock.here("enqueue", "sned", "-d", "jobs.db", "--force")
    assert shop.job(int(forced.out)).task == "sned"


def test_words_that_cannot_be_arguments_are_refused(rowlock: CommandLine) -> None:
    def refused(*words: str, code: int = 2) -> str:
        return rowlock.refused_here("enqueue", "t", *words, code=code)

    assert refused("5").startswith("'5' is neither a JSON object nor a key=value pair; see rowlock enqueue")
    assert refused("[1, 2]").startswith("the arguments: a JSON object is needed, not '[1, 2]'")
    assert "is not valid JSON" in refused('{"a": 1')
    assert refused("--run-at", "2099-01-31T08:00").startswith("--run-at: '2099-01-31T08:00' has no timezone")
    assert refused("--run-at", "soon").startswith("--run-at: 'soon' is not a time")
    assert refused("--meta", "[]").startswith("--meta: a JSON object is needed, not '[]'")
    assert refused("--priority", "500", code=1) == "priority=500: must be a whole number from -100 to 100"
    assert refused("--delay", "1", "--run-at", "2099-01-31T08:00Z", code=1).startswith("give either delay=")
    assert rowlock.files() == set()


def test_a_forced_task_reaches_a_duckdb_file_that_only_the_app_can_open(rowlock: CommandLine) -> None:
    rowlock.write(
        "lab.py",
        "import duckdb\nfrom rowlock import Rowlock\n\n"
        "app = Rowlock(connection=duckdb.connect('lab.duckdb'))\n\n\n"
        "@app.task\ndef add(a: int) -> int:\n    return a\n",
    )
    job = rowlock("enqueue", "sned", "--force", "--json", ROWLOCK_APP="lab:app").json
    assert (job["task"], job["state"]) == ("sned", "queued")
