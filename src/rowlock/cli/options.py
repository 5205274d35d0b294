"""The options and arguments that several commands share, and how examples are set in their help.

Only declarations: what an option means is decided where it is used.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

_LARGEST_ID = 2**63 - 1


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


def examples(*lines: str) -> str:
    """The end of a command's help: its examples, one per line."""
    first, *others = (line.replace("[", r"\[") for line in lines)
    return "\n\n".join([f"Example: {first}", *(f"Or: {line}" for line in others)])
