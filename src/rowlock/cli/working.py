"""The options of the two commands that work, `worker` and `consume`: the same, be it on jobs or on rows.

Only declarations: what an option means is decided where it is used.
"""

from __future__ import annotations

from typing import Annotated

import typer

GRACE = 25.0  # the worker's own default, without importing the worker; a test compares them

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
UntilEmpty = Annotated[bool, typer.Option("--until-empty", help="End when nothing is due or running.")]
WorkerId = Annotated[
    str | None, typer.Option(metavar="ID", help="The worker's id; else host, process and a random part.")
]
LogLevel = Annotated[str, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")]
LogFormat = Annotated[str, typer.Option(metavar="FORMAT", help="text or json (one object per line).")]
