"""`rowlock enqueue`: a job from the command line, with arguments as JSON or as key=value pairs.

Checks the task's name against what is known; binding and types are the app's own business.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

import msgspec
import typer

from rowlock import Rowlock
from rowlock.cli import show, target
from rowlock.cli.failing import CommandFailed, note
from rowlock.cli.options import Database, Json, flag, option
from rowlock.errors import StoreMissing
from rowlock.job import EVERY_TASK

commands = typer.Typer()


@commands.command(rich_help_panel="Jobs")
def enqueue(
    task: Annotated[str, typer.Argument(metavar="TASK", help="The task's name.")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ARGS",
            show_default=False,
            help="A JSON object, or key=value pairs; a value is read as JSON, else it is text "
            "(for the text 5 write key='\"5\"').",
        ),
    ] = None,
    queue: Annotated[str | None, option("NAME", "Its queue.", "--queue", "-q")] = None,
    priority: Annotated[
        int | None, option("NUMBER", "Its priority, -100 to 100.", "--priority", "-p")
    ] = None,
    delay: Annotated[float | None, option("SECONDS", "Due after so many seconds.")] = None,
    run_at: Annotated[str | None, option("TIME", "Due at this time: 2027-01-31T08:00:00+01:00.")] = None,
    expires: Annotated[
        float | None, option("SECONDS", "Failed unless started so many seconds after it is due.")
    ] = None,
    unique_key: Annotated[
        str | None, option("KEY", "No second job of this task and key while one waits.")
    ] = None,
    meta: Annotated[str | None, option("JSON", "Headers: a JSON object.")] = None,
    force: Annotated[bool, flag("Even if nobody knows such a task.", "--force")] = False,
    database: Database = None,
    json: Json = False,
) -> None:
    """Enqueue a job and print its id.

    Example: rowlock enqueue add a=1 b=2
    Or: rowlock enqueue send '{"to": "a@b.org"}' --delay 60 --priority 5
    """
    args = _arguments(arguments or ())
    chosen: dict[str, Any] = {
        "queue": queue,
        "priority": priority,
        "delay": delay,
        "run_at": None if run_at is None else _moment(run_at),
        "expires": expires,
        "unique_key": unique_key,
        "meta": None if meta is None else _object(meta, "--meta"),
    }
    app = target.producer(database)
    known = _known(app)
    if known and task not in known and not force:
        raise CommandFailed(_unknown(task, sorted(known)))
    enqueuer = app._enqueuer(task) if task in known else app._enqueuer_unchecked(task)
    try:
        job = enqueuer.configure(**chosen).enqueue_named(args)
    except TypeError as error:  # the arguments do not fit the task's signature
        raise CommandFailed(str(error)) from error
    if not known:
        note(f"no worker has said yet that it knows a task {task!r}; the job waits until one does")
    if not job.is_new:
        note(f"job {job.id} ({job.state}) holds the key {unique_key!r} already; nothing was enqueued")
    if json:
        show.print_json(show.record(job, is_new=job.is_new))
    else:
        show.say(str(job.id))


def _known(app: Rowlock) -> set[str]:
    """The tasks of the app and of all workers that ever registered; creates nothing."""
    own = set(app.registry.facts())
    try:
        app.store.open(create=False)
    except StoreMissing:
        return own
    return own.union(*(worker.tasks for worker in app.store.workers())) - {EVERY_TASK}


def _unknown(task: str, known: list[str]) -> str:
    from difflib import get_close_matches

    close = get_close_matches(task, known, n=3)
    hint = f"did you mean {' or '.join(close)}?" if close else f"known ones are {', '.join(known[:10])}."
    return f"neither the app nor a worker knows a task {task!r}; {hint} --force enqueues it all the same"


def _arguments(words: Sequence[str]) -> dict[str, Any]:
    args: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if word.lstrip().startswith(("{", "[")):
            args.update(_object(word, "the arguments"))
        elif equals and name.isidentifier():
            if name in args:
                raise typer.BadParameter(f"{name!r} is given twice")
            args[name] = _value(value)
        else:
            raise typer.BadParameter(f"{word!r} is neither a JSON object nor a key=value pair")
    return args


def _value(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def _object(text: str, what: str) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise typer.BadParameter(f"{what}: {text!r} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise typer.BadParameter(f"{what}: a JSON object is needed, not {text!r}")
    return value


def _moment(text: str) -> datetime:
    try:
        when = datetime.fromisoformat(text[:-1] + "+00:00" if text[-1:] in "zZ" else text)
    except ValueError:
        raise typer.BadParameter(
            f"--run-at: {text!r} is not a time; write for example 2027-01-31T08:00:00+01:00"
        ) from None
    if when.tzinfo is None:
        raise typer.BadParameter(f"--run-at: {text!r} has no timezone; end it with Z or for example +01:00")
    return when
