"""Removing one file, and nothing else: links, changes, and names that somebody else takes meanwhile."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rowlock import ConfigurationError
from rowlock.files import directories
from rowlock.files import folder as folder_module
from rowlock.files.folder import FileRefused, Folder, Found, OpenFolder, is_being_removed
from rowlock.files.patterns import matcher
from tests.memory import MEMORY

EVERYTHING = matcher("**")
posix = pytest.mark.skipif(os.name == "nt", reason="POSIX file systems only")


@pytest.fixture(params=["handles", "paths"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in; by handles, and by paths as on Windows."""
    if request.param == "paths":
        monkeypatch.setattr(directories, "HAS_HANDLES", False)
    elif not directories.HAS_HANDLES:
        pytest.skip("there are no handles here")
    inside = tmp_path / "inside"
    inside.mkdir()
    return inside


@contextmanager
def opened(place: Path) -> Iterator[OpenFolder]:
    with Folder(place).opened() as root:
        yield root


def found(root: OpenFolder, path: str) -> Found:
    there = root.look(path)
    assert there is not None
    return there


def tree(place: Path) -> list[str]:
    return sorted(path.relative_to(place).as_posix() for path in place.rglob("*") if not path.is_dir())


def test_a_file_is_found_and_removed(place: Path) -> None:
    (place / "d").mkdir()
    (place / "d" / "a\n b.wav").write_bytes(b"123")
    with opened(place) as root:
        assert [one.path for one in root.scan(EVERYTHING, pytest.fail)] == ["d/a\n b.wav"]
        root.remove(found(root, "d/a\n b.wav"))
        assert root.look("d/a\n b.wav") is None
    assert tree(place) == []


def test_a_file_that_changed_since_it_was_looked_at_stays(place: Path) -> None:
    (place / "a").write_bytes(b"123")
    with opened(place) as root:
        seen = found(root, "a")
        (place / "a").write_bytes(b"1234")
        with pytest.raises(FileRefused, match="changed"):
            root.remove(seen)
    assert (place / "a").read_bytes() == b"1234"


def test_a_file_that_takes_the_name_at_the_last_moment_gets_it_back(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "a").write_bytes(b"old")
    (place / "new").write_bytes(b"new")
    with opened(place) as root:
        seen = found(root, "a")
        rename = type(root._root).rename

        def too_late(self: Any, name: str, other: str) -> None:
            os.replace(place / "new", place / "a")
            rename(self, name, other)

        monkeypatch.setattr(type(root._root), "rename", too_late)
        with pytest.raises(FileRefused, match="changed"):
            root.remove(seen)
    assert (place / "a").read_bytes() == b"new" and tree(place) == ["a"]


def test_a_file_whose_name_is_taken_twice_is_kept_under_another(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "a").write_bytes(b"old")
    with opened(place) as root:
        seen = found(root, "a")
        rename = type(root._root).rename

        def taken_twice(self: Any, name: str, other: str) -> None:
            os.replace(_written(place / "second", b"second"), place / "a")
            rename(self, name, other)
            _written(place / "a", b"third")

        monkeypatch.setattr(type(root._root), "rename", taken_twice)
        with pytest.raises(FileRefused, match=r"kept as \.a\.rowlock-delete"):
            root.remove(seen)
    assert (place / "a").read_bytes() == b"third"
    assert (place / ".a.rowlock-delete").read_bytes() == b"second"


def _written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_a_removal_that_was_broken_off_is_undone_when_the_file_is_looked_at(place: Path) -> None:
    (place / ".a.rowlock-delete").write_bytes(b"123")
    with opened(place) as root:
        assert [one.path for one in root.scan(EVERYTHING, pytest.fail)] == []
        assert root.look("a") is None
        assert found_again(root, "a").size == 3
    assert tree(place) == ["a"]


def found_again(root: OpenFolder, path: str) -> Found:
    there = root.look(path, recover=True)
    assert there is not None
    return there


def test_a_removal_that_was_broken_off_again_while_it_was_undone_is_undone(place: Path) -> None:
    (place / ".a.rowlock-delete").write_bytes(b"123")
    os.link(place / ".a.rowlock-delete", place / "a")
    with opened(place) as root:
        found = found_again(root, "a")
        assert tree(place) == ["a"] and found.frees > 0
        root.remove(found)
    assert tree(place) == []


def test_beside_what_a_broken_removal_left_nothing_is_removed(place: Path) -> None:
    (place / ".a.rowlock-delete").write_bytes(b"123")
    (place / "a").write_bytes(b"4567")
    with opened(place) as root, pytest.raises(FileRefused, match="broken off"):
        root.remove(found_again(root, "a"))
    assert tree(place) == [".a.rowlock-delete", "a"]


@posix
def test_links_are_neither_found_nor_removed_nor_followed(place: Path) -> None:
    outside = place.parent / "outside"
    outside.mkdir()
    (outside / "a").write_bytes(b"123")
    (place / "file").symlink_to(outside / "a")
    (place / "folder").symlink_to(outside)
    with opened(place) as root:
        assert list(root.scan(EVERYTHING, pytest.fail)) == []
        with pytest.raises(FileRefused, match="it is a link"):
            root.look("file")
        with pytest.raises(FileRefused, match="a part of its path is a link"):
            root.look("folder/a")
    assert (outside / "a").exists()


@posix
def test_a_folder_that_becomes_a_link_meanwhile_is_not_followed(place: Path) -> None:
    outside = place.parent / "outside"
    outside.mkdir()
    (place / "d").mkdir()
    (place / "d" / "a").write_bytes(b"123")
    with opened(place) as root:
        seen = found(root, "d/a")
        (place / "d").rename(outside / "d")
        (place / "d").symlink_to(outside / "d")
        with pytest.raises(FileRefused, match="a part of its path is a link"):
            root.remove(seen)
    assert (outside / "d" / "a").exists()


@posix
def test_a_folder_that_is_moved_out_at_the_last_moment_keeps_its_file(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "d").mkdir()
    (place / "d" / "a").write_bytes(b"123")
    if not directories.HAS_HANDLES:
        pytest.skip("a path that is gone is refused before")
    with opened(place) as root:
        seen = found(root, "d/a")
        rename = directories.Directory.rename

        def moved_out(self: Any, name: str, other: str) -> None:
            rename(self, name, other)
            if (place / "d").exists():
                (place / "d").rename(place.parent / "moved")

        monkeypatch.setattr(directories.Directory, "rename", moved_out)
        with pytest.raises(FileRefused):
            root.remove(seen)
    assert (place.parent / "moved" / "a").read_bytes() == b"123"


@pytest.mark.parametrize("path", ["../a", "a/../b", "/etc/passwd", "", ".", "a//b", "a\x00b", "\udcff"])
def test_a_path_that_could_lead_out_is_refused(place: Path, path: str) -> None:
    with opened(place) as root, pytest.raises(FileRefused):
        root.look(path)


@posix
def test_one_of_two_hard_links_frees_nothing(place: Path) -> None:
    (place / "a").write_bytes(b"x" * 5_000)
    os.link(place / "a", place.parent / "other")
    with opened(place) as root:
        seen = found(root, "a")
        assert seen.frees == 0
        root.remove(seen)
    assert (place.parent / "other").read_bytes() == b"x" * 5_000


@posix
def test_a_name_that_is_too_long_to_be_changed_is_removed_all_the_same(place: Path) -> None:
    name = "x" * 250
    (place / name).write_bytes(b"1")
    with opened(place) as root:
        root.remove(found(root, name))
    assert tree(place) == []


@posix
def test_a_name_that_is_not_utf_8_is_reported_and_left_out(place: Path) -> None:
    Path(os.fsdecode(os.fsencode(place) + b"/\xff.wav")).write_bytes(b"1")
    (place / "a.wav").write_bytes(b"1")
    told: list[tuple[str, str]] = []
    with opened(place) as root:
        assert [one.path for one in root.scan(EVERYTHING, lambda *one: told.append(one))] == ["a.wav"]
    assert told == [("\udcff.wav", "its name is not UTF-8")]


@posix
def test_a_disk_without_hard_links_gets_its_name_back_by_renaming(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(self: Any, name: str, other: str) -> None:
        raise PermissionError(1, "no hard links here")

    (place / ".a.rowlock-delete").write_bytes(b"123")
    with opened(place) as root:
        monkeypatch.setattr(type(root._root), "link", no_links)
        assert found_again(root, "a").size == 3


def test_the_queues_own_database_is_never_touched(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").write_bytes(b"1")
    with Folder(tmp_path).opened(keep=[str(tmp_path / "jobs.db")]) as root:
        assert list(root.scan(EVERYTHING, pytest.fail)) == []
        with pytest.raises(FileRefused, match="queue's own"):
            root.look("jobs.db")


def test_a_folder_that_is_missing_or_a_link_or_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="does not exist"):
        Folder(tmp_path / "nowhere").check(writable=False)
    with pytest.raises(ConfigurationError, match="is no folder"):
        Folder(tmp_path / "file").check(writable=False)
    with (
        pytest.raises(ConfigurationError, match="does not exist"),
        opened(tmp_path / "nowhere"),
    ):
        pass
    with pytest.raises(ConfigurationError, match="must be a folder's path"):
        Folder("")


@posix
def test_a_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(ConfigurationError, match="is a link to"):
        Folder(tmp_path / "link").check(writable=False)
    with pytest.raises(ConfigurationError, match="is a link to"), opened(tmp_path / "link"):
        pass


@posix
@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigurationError, match="no files can be deleted"):
        Folder(tmp_path).check(writable=True)


# -- trees nobody thought of -----------------------------------------------------------------------

_NAMES = st.sampled_from(["a", "b", "c.wav", ".hidden", "with space", "new\nline", "ü"])
_PATHS = st.lists(_NAMES, min_size=1, max_size=3).map("/".join)
_STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["file", "folder", "link to file", "link to folder", "link inside", "hard link", "fifo"]
        ),
        _PATHS,
    ),
    max_size=12,
)
_ASKED = st.lists(
    st.one_of(
        _PATHS,
        _PATHS.map(lambda path: f"../outside/{path}"),
        _PATHS.map(lambda path: f"{path}/../../outside/secret"),
        st.sampled_from(["..", ".", "../outside/secret", "/etc/passwd", ""]),
    ),
    max_size=8,
)


def build(inside: Path, outside: Path, steps: list[tuple[str, str]]) -> None:
    """Make a tree as the steps say; what cannot be made is left out."""
    for kind, path in steps:
        target = inside / path
        if os.path.lexists(target):  # to write into a pipe would wait for its reader
            continue
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            if kind == "file":
                target.write_bytes(path.encode())
            elif kind == "folder":
                target.mkdir()
            elif kind == "link to file":
                target.symlink_to(outside / "secret")
            elif kind == "link to folder":
                target.symlink_to(outside)
            elif kind == "link inside":
                target.symlink_to(inside)
            elif kind == "hard link":
                os.link(outside / "secret", target)
            else:
                os.mkfifo(target)
        except OSError:
            pass


def outside_of(base: Path) -> Path:
    outside = base / "outside"
    (outside / "a").mkdir(parents=True)
    for path in ("secret", "a/b", "c.wav"):
        (outside / path).write_bytes(b"precious")
    return outside


def state_of(outside: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in outside.rglob("*") if path.is_file()}


@posix
@pytest.mark.no_cover
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=_STEPS, asked=_ASKED, stirring=st.booleans())
@example(steps=[("link to folder", "a")], asked=["a/secret", "a/a/b"], stirring=False)
@example(steps=[("file", "a/b"), ("file", "b")], asked=["a/b", "b"], stirring=True)
def test_whatever_the_tree_nothing_outside_is_touched(
    steps: list[tuple[str, str]], asked: list[str], stirring: bool
) -> None:
    with TemporaryDirectory(dir=MEMORY) as base:
        check_tree(Path(base), steps, asked, stirring)


@posix
@pytest.mark.chaos
@pytest.mark.timeout(3_600)
@settings(max_examples=10_000, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=_STEPS, asked=_ASKED, stirring=st.booleans())
def test_ten_thousand_trees(steps: list[tuple[str, str]], asked: list[str], stirring: bool) -> None:
    with TemporaryDirectory(dir=MEMORY) as base:
        check_tree(Path(base), steps, asked, stirring)


def check_tree(base: Path, steps: list[tuple[str, str]], asked: list[str], stirring: bool) -> None:
    """Remove what is asked for, perhaps while somebody renames and re-creates; then see what is gone."""
    inside, outside = base / "inside", outside_of(base)
    inside.mkdir()
    build(inside, outside, steps)
    before = state_of(outside)
    with stirred(inside, outside, stirring) as fresh, opened(inside) as root:
        for path in [*asked, *[one.path for one in root.scan(EVERYTHING, lambda *_: None)]]:
            try:
                seen = root.look(path)
                if seen is not None and seen.size != len(
                    NEW
                ):  # what the other has just made is not asked for
                    root.remove(seen)
            except FileRefused:
                pass
    assert state_of(outside) == before
    kept = [path.name for path in inside.rglob("*") if path.is_file() and path.read_bytes() == NEW]
    assert fresh() <= set(kept)  # one that was in the way twice may be there beside it, under the other name
    assert stirring or not [name for name in kept if is_being_removed(name)]


NEW = b"made a moment ago by somebody else"


@contextmanager
def stirred(inside: Path, outside: Path, really: bool) -> Iterator[Any]:
    """A thread that renames, links and re-creates; tells which files that it made must be left."""
    stop = threading.Event()
    made: set[str] = set()

    def stir() -> None:
        number = 0
        while not stop.is_set() and number < 15:
            number += 1
            target = inside / f"{number % 4}"
            draft = outside.parent / "draft"
            draft.write_bytes(NEW)
            try:
                os.replace(draft, target)  # a new file under a name that may just be going
                made.add(target.name)
                (inside / "a").rename(inside / "moved")
                (inside / "moved").rename(inside / "a")
            except OSError:
                pass

    thread = threading.Thread(target=stir)
    if really:
        for number in range(4):
            (inside / f"{number}").write_bytes(b"old")
        thread.start()
    try:
        yield lambda: made
    finally:
        stop.set()
        if really:
            thread.join()


def test_only_what_rowlock_has_renamed_counts_as_being_removed() -> None:
    assert (
        is_being_removed(".a.rowlock-delete")
        and not is_being_removed("a.rowlock-delete")
        and not is_being_removed(".a")
    )
    assert folder_module._can_be_renamed("a") and not folder_module._can_be_renamed("ü" * 125)
