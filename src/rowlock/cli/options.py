"""The options and arguments that several commands share, and how examples are set in their help.

Only declarations: what an option means is decided where it is used.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

_LARGEST_ID = 2**63 - 1
_WHERE_THE_APP_IS = "Where the Rowlock is. Else: ROWLOCK_APP, or app in pyproject.toml's \\[tool.rowlock]."


def _checked(value: Any) -> Any:
    """One id or several, as they were typed; what no job can have is refused here."""
    if value is None:
        return []  # older Typer measures what a list's callback returns
    for one in value if isinstance(value, list) else [value]:
        if not 1 <= one <= _LARGEST_ID:
            raise typer.BadParameter(f"{one} is no job's id: those are whole numbers from 1 on")
    return value


Database = Annotated[
    str | None,
    typer.Option(
        "--database",
        "-d",
        metavar="URL",
        help="The queue's database, as a URL or a file's path. "
        "Else: ROWLOCK_DATABASE_URL, the app's, sqlite:///rowlock.db.",
    ),
]
App = Annotated[
    str | None,
    typer.Option(
        "--app",
        metavar="MODULE:APP",
        show_default=False,
        help=_WHERE_THE_APP_IS,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
JobId = Annotated[int, typer.Argument(metavar="ID", callback=_checked, help="The job's id.")]
QueueName = Annotated[str, typer.Argument(metavar="NAME", help="The queue's name.")]
JobIds = Annotated[
    list[int] | None,
    typer.Argument(metavar="ID", callback=_checked, show_default=False, help="The jobs' ids."),
]
OnlyQueue = Annotated[
    str | None, typer.Option("--queue", "-q", metavar="NAME", help="Only jobs of this queue.")
]
OnlyTask = Annotated[str | None, typer.Option("--task", "-t", metavar="NAME", help="Only jobs of this task.")]


# -- of the commands that work -----------------------------------------------------------------------

AppArgument = Annotated[
    str | None,
    typer.Argument(metavar="MODULE:APP", show_default=False, help=_WHERE_THE_APP_IS),
]
WorkQueues = Annotated[
    list[str] | None,
    typer.Option("--queue", "-q", metavar="NAME", help="Take jobs from this queue only; may be repeated."),
]
StrategyName = Annotated[
    str, typer.Option("--strategy", metavar="NAME", help="FIFO, LIFO, PRIORITY or WEIGHTED_RANDOM.")
]
RowStrategyName = Annotated[
    str, typer.Option("--strategy", metavar="NAME", help="FIFO, the order of order_by, or LIFO, backwards.")
]
Concurrency = Annotated[
    int | None,
    typer.Option(
        "--concurrency", "-c", metavar="NUMBER", help="Runs at once; else ROWLOCK_CONCURRENCY, or 4."
    ),
]
Pool = Annotated[
    str,
    typer.Option(
        metavar="KIND", help="What work runs in: thread, process or async. A function may ask for its own."
    ),
]
Prefetch = Annotated[
    int | None,
    typer.Option(
        metavar="NUMBER", help="The most runs to claim ahead; else as many as are worth 30 ms. 0: none."
    ),
]
MaxJobsPerChild = Annotated[
    int | None,
    typer.Option(
        "--max-jobs-per-child",
        metavar="NUMBER",
        help="Replace a process of the pool after so many runs; else when it ends.",
    ),
]
Grace = Annotated[
    float, typer.Option(metavar="SECONDS", help="How long runs may take to end after the first signal.")
]
UntilEmpty = Annotated[
    bool, typer.Option("--until-empty", "--burst", help="End when nothing is due or running.")
]
Via = Annotated[
    str | None,
    typer.Option(
        "--via",
        metavar="ENGINE",
        help="Let another engine (rq, at REDIS_URL) carry the ids of jobs; one run at a time here.",
    ),
]
WorkerId = Annotated[
    str | None, typer.Option(metavar="ID", help="The worker's id; else host, process and a random part.")
]
LogLevel = Annotated[str, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")]
LogFormat = Annotated[str, typer.Option(metavar="FORMAT", help="text or json (one object per line).")]


def examples(*lines: str) -> str:
    """The end of a command's help: its examples, one per line."""
    first, *others = (line.replace("[", r"\[") for line in lines)
    return "\n\n".join([f"Example: {first}", *(f"Or: {line}" for line in others)])
