"""Reads the fenced code blocks of a Markdown page and plays them, in page order, as one story.
What the pages should say is not decided here, only whether what they say is true.

    ```python                         runs as a script of its own in the page's folder
    ```python title="shop/tasks.py"   is written to that file (so is a block of any language with a title;
                                      in Python a first line that is only `# shop/tasks.py` does the same)
    ```console                        runs each `$ ` line; a trailing backslash continues it on the next line
    ```console verify                 also compares what follows the command; `...` stands for anything
    ```console exit=2                 expects that exit code instead of 0
    ```console norun="why not"        is not run; without a reason it is refused
    ```json, ```toml                  must parse
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SHELLS = {"console", "bash", "sh", "shell"}
PARSED = {"json", "toml"}
SHOWN = {"css", "diff", "dockerfile", "html", "http", "ini", "make", "mermaid", "sql", "text", "yaml"}
OPTIONS = {"title", "verify", "exit", "norun"}
SECONDS_PER_COMMAND = 60

FENCE = re.compile(r"(?P<margin>[ \t>]*)(?P<fence>`{3,}|~{3,})(?P<info>.*)")
FILE_COMMENT = re.compile(r"#\s*(?P<path>[\w./-]+\.py)\s*")


class PageError(AssertionError):
    """A page says something that is not true, or says it in a way that cannot be checked."""


@dataclass(frozen=True)
class Block:
    """One fenced block; `line` is that of its first line of content."""

    page: str
    line: int
    language: str
    options: dict[str, str]
    text: str

    def refuse(self, why: str, line: int | None = None) -> PageError:
        return PageError(f"{self.page}:{line or self.line}: {why}")

    @property
    def title(self) -> str | None:
        """The file that this block is the content of, if it is one."""
        if "title" in self.options:
            return self.options["title"]
        first = FILE_COMMENT.fullmatch(self.text.partition("\n")[0])
        return first["path"] if first and self.language == "python" else None


@dataclass(frozen=True)
class Command:
    """One `$ ` line of a console block and the lines that the page shows below it."""

    line: int
    text: str
    expected: str


def read_blocks(text: str, page: str) -> Iterator[Block]:
    """Yield every fenced block of a page, also those in lists and quotations."""
    lines = iter(enumerate(text.splitlines(), start=1))
    for number, line in lines:
        if not (opening := FENCE.fullmatch(line)):
            continue
        fence, margin = opening["fence"], opening["margin"]
        if "`" in opening["info"]:  # ```inline code```, not a block
            continue
        body: list[str] = []
        for _, inner in lines:
            closing = FENCE.fullmatch(inner)
            if closing and closing["fence"].startswith(fence) and not closing["info"].strip():
                break
            body.append(without_margin(inner, margin))
        else:
            raise PageError(f"{page}:{number}: this code block is never closed")
        language, options = read_info(opening["info"], f"{page}:{number}")
        yield Block(page, number + 1, language, options, "".join(f"{line}\n" for line in body))


def without_margin(line: str, margin: str) -> str:
    """Take off as much of the fence's own indentation or quotation marks as the line has."""
    for mark in margin:
        line = line.removeprefix(mark)
    return line


def read_info(info: str, place: str) -> tuple[str, dict[str, str]]:
    """Split ```python title="a.py" into its language and options, refusing what it does not know."""
    try:
        words = shlex.split(info)
    except ValueError as error:
        raise PageError(f"{place}: cannot read ```{info.strip()}: {error}") from None
    language = words[0].lower() if words else ""
    options = {name: value for name, _, value in (word.partition("=") for word in words[1:])}
    if language not in {"python"} | SHELLS | PARSED | SHOWN:
        raise PageError(f"{place}: a block in {language or 'no language'!r}; plain words are ```text")
    if unknown := options.keys() - OPTIONS:
        raise PageError(f"{place}: unknown option {min(unknown)!r}; there are {', '.join(sorted(OPTIONS))}")
    if "norun" in options and not options["norun"].strip():
        raise PageError(f'{place}: norun needs a reason: norun="..."')
    if "exit" in options and not options["exit"].isdecimal():
        raise PageError(f"{place}: exit needs a number, as in exit=2")
    return language, options


def read_commands(block: Block) -> list[Command]:
    """Take the commands out of a console block."""
    commands: list[Command] = []
    lines = iter(enumerate(block.text.splitlines(), start=block.line))
    for number, line in lines:
        if line.startswith("$ "):
            text = line[2:]
            while text.endswith("\\"):
                text = text[:-1] + next(lines, (0, ""))[1].removeprefix("> ").lstrip()
            commands.append(Command(number, text, ""))
        elif commands:
            last = commands.pop()
            commands.append(Command(last.line, last.text, f"{last.expected}{line}\n"))
        elif line.strip() and not line.startswith("#"):
            raise block.refuse(f"{line!r} comes before any command; a command starts with '$ '", number)
    if not commands:
        raise block.refuse("no line of this block starts with '$ ', so nothing would be run")
    return commands


def matches(expected: str, output: str) -> bool:
    """Whether the output is what the page shows; spaces at the ends of lines do not count."""

    def tidy(text: str) -> str:
        return "\n".join(line.rstrip() for line in text.strip().splitlines())

    pattern = ".*".join(re.escape(part) for part in tidy(expected).split("..."))
    return re.fullmatch(pattern, tidy(output), re.DOTALL) is not None


def play(block: Block, folder: Path, settings: Mapping[str, str] | None = None) -> None:
    """Do what one block says, in the folder of its page; raise PageError where it fails.

    `settings` are what the reader of this page has in the environment.
    """
    if "norun" in block.options:
        return
    if block.language in PARSED:
        parse(block)
    if block.title is not None:
        write(block, block.title, folder)
    elif block.language == "python":
        # Empty lines first: a traceback then names the lines of the page.
        script = "\n" * (block.line - 1) + block.text
        run(block, block.line, [sys.executable, "-"], folder, settings, shown=block.text, stdin=script)
    elif block.language in SHELLS:
        for command in read_commands(block):
            output = run(block, command.line, command.text, folder, settings, shown=f"$ {command.text}\n")
            if "verify" in block.options and not matches(command.expected, output):
                raise block.refuse(
                    f"another output than the page shows\n$ {command.text}\n"
                    f"--- the page\n{command.expected}--- the output\n{output}",
                    command.line,
                )


def parse(block: Block) -> None:
    try:
        json.loads(block.text) if block.language == "json" else tomllib.loads(block.text)
    except ValueError as error:
        raise block.refuse(f"this is not {block.language}: {error}") from None


def write(block: Block, title: str, folder: Path) -> None:
    path = PurePosixPath(title)
    if path.is_absolute() or ".." in path.parts or not path.name:
        raise block.refuse(f"{title!r} is not a file below the page's folder")
    if block.language == "python":
        try:
            compile(block.text, title, "exec", dont_inherit=True)
        except SyntaxError as error:
            raise block.refuse(f"{title} is not Python: {error}") from None
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(block.text, encoding="utf-8")


def run(
    block: Block,
    line: int,
    command: str | list[str],
    folder: Path,
    settings: Mapping[str, str] | None = None,
    *,
    shown: str,
    stdin: str = "",
) -> str:
    """Run one command to its end, return what it printed, and leave no process of it behind."""
    wanted = int(block.options.get("exit", "0"))
    process = subprocess.Popen(
        command,
        shell=isinstance(command, str),
        cwd=folder,
        env=environment() | dict(settings or {}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(stdin, timeout=SECONDS_PER_COMMAND)
    except subprocess.TimeoutExpired:
        end(process)
        output, _ = process.communicate()
        ended = f"not done after {SECONDS_PER_COMMAND} s"
    else:
        if process.returncode == wanted:
            return output
        ended = f"exit code {process.returncode}, expected {wanted}"
    raise block.refuse(f"{ended}\n{shown}--- output\n{output}", line)


def end(process: subprocess.Popen[str]) -> None:
    if sys.platform == "win32":
        process.kill()
    else:
        os.killpg(process.pid, signal.SIGKILL)


def environment() -> dict[str, str]:
    """The environment of a reader who has just installed rowlock and set nothing."""
    settings = ("ROWLOCK_", "POLLER_", "STALE_JOB_", "FAILED_JOB_", "REDIS_")
    mine = {name: value for name, value in os.environ.items() if not name.startswith(settings)}
    scripts = [str(Path(sys.executable).parent), sysconfig.get_path("scripts"), os.environ.get("PATH", "")]
    mine |= {"PATH": os.pathsep.join(scripts), "PYTHONUTF8": "1", "NO_COLOR": "1", "COLUMNS": "100"}
    return mine
