"""A disk that loses its power: what was synced stays, of what was written since then anything may.

Replays recorded operations and makes images of what could be found afterwards. It opens no database.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

Operation = list[Any]  # a word, then what it needs; as a list, because that is how it is stored


class Record:
    """What was done to the files of one folder, in order, and what the program said in between.

    create NAME · write NAME OFFSET BYTES · truncate NAME SIZE · sync NAME · unlink NAME · sync_names
    begin STEP · done STEP WHAT
    """

    def __init__(self) -> None:
        self.operations: list[Operation] = []

    def add(self, word: str, *rest: Any) -> None:
        self.operations.append([word, *rest])


class _File:
    def __init__(self, synced: bytes = b"") -> None:
        self.synced = bytearray(synced)
        self.since: list[Operation] = []

    def sync(self) -> None:
        for operation in self.since:
            _apply(self.synced, operation)
        self.since = []


class Disk:
    """The files of one folder: what is safe, and what is on its way."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self._safe = {name: _File(content) for name, content in files.items()}
        self._seen = dict(self._safe)  # as the running program sees the folder
        self._names: list[tuple[str, _File | None]] = []  # creations and deletions since the folder's sync

    def apply(self, operation: Operation) -> None:
        """Do what the program did."""
        word, *rest = operation
        if word == "create":
            self._name(rest[0], _File())
        elif word == "unlink":
            self._name(rest[0], None)
        elif word in ("write", "truncate"):
            self._seen[rest[0]].since.append(operation)
        elif word == "sync":
            self._seen[rest[0]].sync()
        elif word == "sync_names":
            self._safe, self._names = dict(self._seen), []

    def cut(self, chance: random.Random) -> dict[str, bytes]:
        """The files as they may be found when the power comes back."""
        files = dict(self._safe)
        for name, file in self._names[: chance.randint(0, len(self._names))]:  # a folder keeps its order
            _put(files, name, file)
        return {name: _survivor(file, chance) for name, file in files.items()}

    def _name(self, name: str, file: _File | None) -> None:
        _put(self._seen, name, file)
        self._names.append((name, file))


def _put(files: dict[str, _File], name: str, file: _File | None) -> None:
    if file is None:
        files.pop(name, None)
    else:
        files[name] = file


def _survivor(file: _File, chance: random.Random) -> bytes:
    """What was synced, and some of what was not: nothing, all, a beginning, any part, or pieces of it."""
    content, since = bytearray(file.synced), file.since
    how = chance.choice(("nothing", "all", "beginning", "some", "torn"))
    if how == "nothing":
        since = []
    elif how == "beginning":
        since = since[: chance.randint(0, len(since))]
    elif how == "some":
        since = [operation for operation in since if chance.random() < 0.5]
    elif how == "torn":
        sector = chance.choice((512, 4096))
        since = [piece for one in since for piece in _pieces(one, sector) if chance.random() < 0.7]
    for operation in since:
        _apply(content, operation)
    return bytes(content)


def _pieces(operation: Operation, sector: int) -> Iterator[Operation]:
    """A write as the sectors that a disk writes one by one."""
    if operation[0] != "write":
        yield operation
        return
    _, name, offset, data = operation
    at = offset
    while at < offset + len(data):
        end = min(offset + len(data), (at // sector + 1) * sector)
        yield ["write", name, at, data[at - offset : end - offset]]
        at = end


def _apply(content: bytearray, operation: Operation) -> None:
    if operation[0] == "truncate":
        size = operation[2]
        del content[size:]
        content.extend(bytes(size - len(content)))
        return
    _, _, offset, data = operation
    content.extend(bytes(max(0, offset - len(content))))  # a hole reads as zeros
    content[offset : offset + len(data)] = data
