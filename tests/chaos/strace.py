"""What `strace` sees a process do to its database, in the words of tests/chaos/disk.py.

Here Python's own sqlite3 is the one that writes, on a real file system.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from pathlib import Path

from tests.chaos.disk import Operation

_CALLS = "openat,pwrite64,pwritev,write,ftruncate,fsync,fdatasync,unlink,rename"
_FILE = r"\d+<(?P<file>[^>]*)>"
_BYTES = r'"(?P<data>(?:\\x[0-9a-f]{2})*)"'
_LINES = [
    ("open", re.compile(rf"openat\([^,]*, {_BYTES}, \S*O_CREAT\S*, .*\) = \d")),
    ("write", re.compile(rf"pwrite64\({_FILE}, {_BYTES}, \d+, (?P<number>\d+)\) = \d")),
    ("mark", re.compile(rf"write\({_FILE}, {_BYTES}, \d+\) = \d")),
    ("truncate", re.compile(rf"ftruncate\({_FILE}, (?P<number>\d+)\) = 0")),
    ("sync", re.compile(rf"f(?:data)?sync\({_FILE}\) = 0")),
    ("unlink", re.compile(rf"unlink\({_BYTES}\) = 0")),
]


@cache
def works() -> bool:
    """True if strace is there and may trace."""
    if shutil.which("strace") is None:
        return False
    return subprocess.run(["strace", "-f", "-o", os.devnull, "true"], check=False).returncode == 0


def command(trace: Path, folder: Path, names: Sequence[str]) -> list[str]:
    """What to put before a command, so that what it does to these files and their folder is written down."""
    paths = [str(folder), *(str(folder / name) for name in names)]
    paths += [f"{folder / names[0]}{suffix}" for suffix in ("-wal", "-journal")]
    traced = [word for path in paths for word in ("-P", path)]
    return ["strace", "-qq", "-y", "-xx", "-s", "1000000", "-e", f"trace={_CALLS}", "-o", str(trace), *traced]


def operations(
    trace: Path, folder: Path, known: Collection[str], said: Sequence[Operation]
) -> Iterator[Operation]:
    """The trace as operations; each mark is the number of something that the process said there."""
    there = set(known)
    for line in trace.read_text(encoding="ascii").splitlines():
        if line.startswith("openat(") and ("O_CREAT" not in line or ") = -1 " in line):
            continue
        word, match = _understood(line)
        found = match.groupdict()
        data = _bytes(found.get("data", ""))
        path = _bytes(found["file"]).decode() if "file" in found else data.decode()
        name = os.path.basename(path)
        if name == "record.marks":
            if word == "mark":
                yield said[int(data)]
        elif path == str(folder):
            yield ["sync_names"]
        elif word == "open":
            if name not in there:
                there.add(name)
                yield ["create", name]
        elif word == "unlink":
            there.discard(name)
            yield ["unlink", name]
        elif word == "write":
            yield ["write", name, int(found["number"]), data]
        elif word == "truncate":
            yield ["truncate", name, int(found["number"])]
        else:
            yield [word, name]


def _understood(line: str) -> tuple[str, re.Match[str]]:
    for word, pattern in _LINES:
        if match := pattern.match(line):
            return word, match
    raise ValueError(f"strace says something new: {line[:200]}")


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", "")) if text.startswith("\\x") else text.encode()
