"""From `module:app` to the Rowlock it names, or to one sentence that says why there is none.

Where that name comes from is not decided here.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from rowlock import Rowlock
from rowlock.cli.failing import CommandFailed

_ROWLOCK = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def import_app(target: str) -> Rowlock:
    """Import the module (the working directory first on the path) and return the Rowlock it names."""
    name, _, attribute = target.partition(":")
    _check_spelling(target, name)
    if sys.path[:1] != [os.getcwd()]:
        sys.path.insert(0, os.getcwd())
    with _explained(name):
        module = importlib.import_module(name)
    app = _pick(module, name, attribute or "app")
    app._imported_as = f"{name}:{attribute or 'app'}"  # child processes import the same, with all it sets up
    return app


def import_tasks(app: Rowlock, target: str) -> None:
    """Import what the app includes, so that all its tasks are known."""
    with _explained(f"a module that {target} includes", named=False):
        app.load_tasks()


def _check_spelling(target: str, name: str) -> None:
    if name.endswith(".py") or "/" in name or "\\" in name:
        dotted = name.removesuffix(".py").replace("\\", ".").replace("/", ".").strip(".")
        raise CommandFailed(f"{target!r} is a path; name the module instead: {dotted}:app")
    if not all(part.isidentifier() for part in name.split(".")):
        raise CommandFailed(f"{target!r} does not name a module; write it as module:app")


@contextmanager
def _explained(what: str, named: bool = True) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise
    except ModuleNotFoundError as error:
        is_it = named and f"{what}.".startswith(f"{error.name}.")
        raise CommandFailed(_no_module(what, error) if is_it else _inside(what, error)) from error
    except BaseException as error:  # a module that calls sys.exit() is to be told, too
        raise CommandFailed(_inside(what, error)) from error


def _no_module(name: str, error: ModuleNotFoundError) -> str:
    if "is not a package" in str(error):
        return f"cannot import {name}: {error}"
    from difflib import get_close_matches

    missing = error.name or name
    here = [path.stem for path in Path().glob("*.py")] + [path.parent.name for path in Path().glob("*/*.py")]
    close = get_close_matches(missing, sorted(set(here)), n=1)
    hint = f"; did you mean {close[0]}?" if close else ""
    return f"cannot import {name}: there is no module {missing} in {os.getcwd()} or on Python's path{hint}"


def _inside(what: str, error: BaseException) -> str:
    text = str(error).strip()
    reason = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return f"cannot import {what}: {reason}{_place(error)}"


def _place(error: BaseException) -> str:
    """Where it went wrong: the last line of code that is neither rowlock's nor the import system's."""
    if isinstance(error, SyntaxError):
        return ""  # its message names the file and the line
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = frame.filename
        if not path.startswith(("<", _ROWLOCK)) and f"{os.sep}importlib{os.sep}" not in path:
            code = f": {frame.line}" if frame.line else ""
            return f" ({path.removeprefix(os.getcwd() + os.sep)}, line {frame.lineno}{code})"
    return ""


def _pick(module: ModuleType, name: str, attribute: str) -> Rowlock:
    found: object = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise CommandFailed(f"module {name} has no {attribute!r}; {_offer(module, name)}")
        found = getattr(found, part)
    if not isinstance(found, Rowlock):
        kind = type(found)
        which = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
        raise CommandFailed(f"{name}:{attribute} is a {which}, not a Rowlock; {_offer(module, name)}")
    return found


def _offer(module: ModuleType, name: str) -> str:
    held = [f"{name}:{key}" for key, value in vars(module).items() if isinstance(value, Rowlock)]
    if not held:
        return "the module holds no Rowlock: make one with app = Rowlock(...)"
    return f"did you mean {' or '.join(held)}?"
