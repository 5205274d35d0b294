"""How things look: consoles, tables, JSON, times, and text from elsewhere made safe for a terminal.

Knows records and layout; asks no store anything.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from rowlock.error_text import headline as plain_headline
from rowlock.job import Job, State

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

    from rowlock.insights import ConsumerRecord, KnownConsumer
    from rowlock.monitoring import QueueRecord

_PIPE_WIDTH = 1_000  # a pipe has no edge: nothing is cut off for `grep` and `awk`
_STYLES = {
    "scheduled": "blue",
    "queued": "cyan",
    "running": "yellow",
    "cancelling": "magenta",
    "completed": "green",
    "failed": "red",
    "cancelled": "magenta",
    "alive": "green",
    "silent": "red",
    "stopped": "dim",
    "paused": "yellow",
}
_GAP = "  "
_NARROWEST = 8
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


@lru_cache(maxsize=2)
def console(stderr: bool = False) -> Console:
    """The console for stdout or stderr: colours and a width only if it is a terminal."""
    from rich.console import Console

    made = Console(stderr=stderr, highlight=False, emoji=False, markup=False)
    if not made.is_terminal:
        made.width = _PIPE_WIDTH
    return made


def say(text: str, at_once: bool = False) -> None:
    """Print a sentence to stdout, with its control characters shown and not obeyed.

    Long ones are left to the terminal to wrap. Rich, which takes 40 ms to import, is not needed for that.
    """
    print(visible(text), flush=at_once)  # noqa: T201 - the one place where commands print


def print_text(text: str) -> None:
    """Print a text to stdout as it is, for a program to read."""
    sys.stdout.write(text)


def print_json(value: Any) -> None:
    """Print records or plain values as JSON: times in ISO 8601, nothing else on stdout."""
    plain = msgspec.to_builtins(value)
    encoding = (sys.stdout.encoding or "ascii").lower().replace("-", "")
    sys.stdout.write(json.dumps(plain, indent=2, ensure_ascii=encoding != "utf8") + "\n")


def hint(text: str, style: str = "") -> None:
    """Print a sentence to stderr that is no failure and needs no `note:` before it."""
    console(stderr=True).print(text, style=style, soft_wrap=True)


def out(picture: RenderableType) -> None:
    """Print a table or a chart to stdout; into a pipe without the spaces at the ends of its lines."""
    if console().is_terminal:
        console().print(picture)
        return
    with console().capture() as capture:
        console().print(picture)
    console().file.write("".join(f"{line.rstrip()}\n" for line in capture.get().splitlines()))


def table(rows: Sequence[Mapping[str, object]], right: Sequence[str] = ()) -> None:
    """Print rows, whose keys are the columns, without lines between them; nothing if there are none.

    On a narrow terminal the widest columns give way first (Rich cuts all alike).
    """
    from rich.text import Text

    if not rows:
        return
    columns = list(rows[0])
    body = [[cell(value) for value in row.values()] for row in rows]
    lines = [[Text(name, style="bold") for name in columns], *body]
    widths = [max(one.cell_len for one in column) for column in zip(*lines, strict=True)]
    while sum(widths) + len(_GAP) * (len(widths) - 1) > console().width and max(widths) > _NARROWEST:
        widths[widths.index(max(widths))] -= 1
    for line in lines:
        for one, width, name in zip(line, widths, columns, strict=True):
            one.truncate(width, overflow="ellipsis")
            (one.pad_left if name in right else one.pad_right)(width - one.cell_len)
    whole = Text("\n").join(Text(_GAP).join(line) for line in lines)
    whole.no_wrap, whole.overflow = True, "ellipsis"
    out(whole)


def cell(value: object) -> Text:
    """A value in a table: styled text as it is, a moment in local time, all else as plain text."""
    from rich.text import Text

    if isinstance(value, Text):
        return value
    return safe(moment(value) if isinstance(value, datetime) else value)


def styled(word: str) -> Text:
    """A state's or a status's word in its colour."""
    from rich.text import Text

    return Text(word, style=style(word))


def paused(record: QueueRecord | ConsumerRecord | KnownConsumer) -> Text:
    """Whether a queue or a consumer is paused, and for how long."""
    word, until = styled("paused" if record.paused else ""), record.paused_until
    return word + f" for {duration(max(0.0, -since(until)))}" if until and record.paused else word


def style(word: str) -> str:
    """The colour of a state or a status."""
    return _STYLES.get(word, "")


def safe(text: object) -> Text:
    """Text from elsewhere: no markup is read from it, and control characters are shown, not obeyed."""
    from rich.text import Text

    return Text(visible(str(text)))


def visible(text: str) -> str:
    """The text with its control characters spelled out; line ends and tabs stay."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() or one in "\n\t" else one.encode("unicode_escape").decode() for one in text
    )


def headline(text: str | None) -> str:
    """The line of an error that names it."""
    return visible(plain_headline(text))


@contextmanager
def bar(title: str = "") -> Iterator[Callable[[str, int, int], None] | None]:
    """A function that moves a bar on stderr: of what, how much is done, of how much; None if no terminal."""
    if not console(stderr=True).is_terminal:
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=32),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console(stderr=True), transient=True) as progress:
        row = progress.add_task(title, total=None)
        yield lambda of, done, total: progress.update(row, description=of, completed=done, total=total)


# -- times ---------------------------------------------------------------------------------------


def since(when: datetime) -> float:
    """How many seconds ago that was."""
    return (datetime.now(timezone.utc) - when).total_seconds()


def duration(seconds: float) -> str:
    """A length of time in its largest fitting unit: 0.3 s, 12 s, 5 min, 3 h, 2 d."""
    if abs(seconds) < 10:
        return f"{seconds:.1f} s"
    size, unit = next((size, unit) for size, unit in _UNITS if abs(seconds) >= 2 * size)
    return f"{seconds / size:.0f} {unit}"


def moment(when: datetime) -> str:
    """A moment in local time with its offset, and how far away it is."""
    away = since(when)
    there = f"{duration(away)} ago" if away >= 0 else f"in {duration(-away)}"
    return f"{when.astimezone():%Y-%m-%d %H:%M:%S%z} ({there})"


def clock(when: datetime) -> str:
    """A moment in local time, with the day unless it is today."""
    local = when.astimezone()
    today = datetime.now().astimezone().date()
    return f"{local:%H:%M:%S}" if local.date() == today else f"{local:%Y-%m-%d %H:%M:%S}"


# -- jobs ----------------------------------------------------------------------------------------


def state_of(job: Job) -> str:
    """The state's word as people see it: a running job that was asked to stop is `cancelling`."""
    return "cancelling" if job.cancelling else str(job.state)


def attempts(job: Job) -> str:
    """How many attempts were begun, of how many."""
    begun = job.failures + (job.state in (State.RUNNING, State.COMPLETED))
    return f"{begun}" if job.max_attempts is None else f"{begun}/{job.max_attempts}"


def progress_of(job: Job) -> str:
    """The job's progress as text: `30% image 3`, `3 image 3`, or nothing."""
    if job.progress is None:
        return ""
    done, total, words = job.progress.done, job.progress.total, visible(job.progress.note)
    number = f"{done / total:.0%}" if total else f"{done:g}"
    return f"{number} {words}".strip().replace("\n", " ")


def record(job: Job, **more: Any) -> dict[str, Any]:
    """The job as plain values for JSON."""
    plain = job.to_dict()
    plain.pop("is_new")
    return {**plain, "cancelling": job.cancelling, **more}


# -- commands to copy ----------------------------------------------------------------------------


def command(*words: str) -> str:
    """A command line that can be copied into a shell; it names this program so that a shell finds it."""
    import shutil

    called, found = sys.argv[0], shutil.which("rowlock")
    if os.path.basename(called) == "__main__.py":
        program = [sys.executable, "-m", "rowlock"]
    elif found and os.path.dirname(found) == os.path.dirname(called):
        program = ["rowlock"]
    else:
        program = [called]
    return " ".join(map(_quoted, [*program, *words]))


def _quoted(word: str) -> str:
    if os.name != "nt":
        return shlex.quote(word)
    import subprocess

    return subprocess.list2cmdline([word])
