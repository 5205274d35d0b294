"""The options and arguments that several commands share, and how one is declared.

Only declarations: what an option means is decided where it is used.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

_LARGEST_ID = 2**63 - 1
_WHERE_THE_APP_IS = "Where the Rowlock is. Else: ROWLOCK_APP, or app in pyproject.toml's \\[tool.rowlock]."


def option(metavar: str, text: str, *names: str, **more: Any) -> Any:
    """An option that takes a value; without names it is called as its parameter."""
    return typer.Option(*names, metavar=metavar, help=text, **more)


def flag(text: str, *names: str) -> Any:
    """An option that is given or not; Typer would add its opposite if it had no name."""
    return typer.Option(*names, help=text)


def _checked(value: Any) -> Any:
    """One id or several, as they were typed; what no job can have is refused here."""
    if value is None:
        return []  # older Typer measures what a list's callback returns
    for one in value if isinstance(value, list) else [value]:
        if not 1 <= one <= _LARGEST_ID:
            raise typer.BadParameter(f"{one} is no job's id: those are whole numbers from 1 on")
    return value


def _strategy_name(text: str) -> str:
    """A strategy's name as people type it: `weighted-random` is WEIGHTED_RANDOM."""
    return text.upper().replace("-", "_")


def strategy_option(text: str) -> Any:
    """The option of an order of claiming."""
    return option("NAME", text, "--strategy", callback=_strategy_name)


Database = Annotated[
    str | None,
    option(
        "URL",
        "The queue's database, as a URL or a file's path. "
        "Else: ROWLOCK_DATABASE_URL, the app's, sqlite:///rowlock.db.",
        "--database",
        "-d",
    ),
]
App = Annotated[str | None, option("MODULE:APP", _WHERE_THE_APP_IS, "--app", show_default=False)]
Json = Annotated[bool, flag("Print JSON, for scripts.", "--json")]
JobId = Annotated[int, typer.Argument(metavar="ID", callback=_checked, help="The job's id.")]
QueueName = Annotated[str, typer.Argument(metavar="NAME", help="The queue's name.")]
JobIds = Annotated[
    list[int] | None,
    typer.Argument(metavar="ID", callback=_checked, show_default=False, help="The jobs' ids."),
]
OnlyQueue = Annotated[str | None, option("NAME", "Only jobs of this queue.", "--queue", "-q")]
OnlyTask = Annotated[str | None, option("NAME", "Only jobs of this task.", "--task", "-t")]


# -- of the commands that work -----------------------------------------------------------------------

AppArgument = Annotated[
    str | None,
    typer.Argument(metavar="MODULE:APP", show_default=False, help=_WHERE_THE_APP_IS),
]
WorkQueues = Annotated[
    list[str] | None, option("NAME", "Take jobs from this queue only; may be repeated.", "--queue", "-q")
]
StrategyName = Annotated[str, strategy_option("FIFO, LIFO, PRIORITY or WEIGHTED_RANDOM.")]
RowStrategyName = Annotated[str, strategy_option("FIFO, the order of order_by, or LIFO, backwards.")]
Concurrency = Annotated[
    int | None, option("NUMBER", "Runs at once; else ROWLOCK_CONCURRENCY, or 4.", "--concurrency", "-c")
]
Pool = Annotated[
    str, option("KIND", "What work runs in: thread, process or async. A function may ask for its own.")
]
Prefetch = Annotated[
    int | None, option("NUMBER", "The most runs to claim ahead; else as many as are worth 30 ms. 0: none.")
]
MaxJobsPerChild = Annotated[
    int | None,
    option(
        "NUMBER",
        "Replace a process of the pool after so many runs; else when it ends.",
        "--max-jobs-per-child",
    ),
]
Grace = Annotated[float, option("SECONDS", "How long runs may take to end after the first signal.")]
UntilEmpty = Annotated[bool, flag("End when nothing is due or running.", "--until-empty", "--burst")]
Via = Annotated[
    str | None,
    option(
        "ENGINE",
        "Let another engine (rq, at REDIS_URL) carry the ids of jobs; one run at a time here.",
        "--via",
    ),
]
WorkerId = Annotated[
    str | None, option("ID", "The worker's id; else host, process and a random part.", "--name")
]
LogLevel = Annotated[str, option("LEVEL", "debug, info, warning or error.")]
LogFormat = Annotated[str, option("FORMAT", "text or json (one object per line).")]
