"""Starts child processes, and says where they find the app and how they ended.

Spawned, never forked: a fork would copy locks and connections that other threads are using.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any

from rowlock.errors import ConfigurationError
from rowlock.pools.process import child, log_forwarding, messages
from rowlock.workload import Workload

_spawn = multiprocessing.get_context("spawn")
_GUARD = 'keep what starts workers under `if __name__ == "__main__":`'


def plan_for(app: Any, workload: Workload, tasks: list[str]) -> messages.ChildPlan:
    """What children have to know to run these tasks of the workload."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise ConfigurationError(f"this script is imported by a child process of its own worker: {_GUARD}")
    return messages.ChildPlan(
        app=app._imported_as or address_of(app),
        consumer=workload.consumer,
        tasks=tasks,
        database=app.store.url,
        home=app._home,
        folder=os.getcwd(),
        parent=os.getpid(),
        levels=log_forwarding.levels(),
    )


def address_of(app: Any) -> str:
    """`module:attribute` under which an import finds this very app."""
    near = {task.function.__module__ for task in app.tasks.values()}
    found = [
        (name == "__main__", name not in near, name, attribute, module)
        for name, module in list(sys.modules.items())
        for attribute, value in list(getattr(module, "__dict__", {}).items())
        if value is app and name != "__mp_main__"
    ]
    if not found:
        raise ConfigurationError(
            "a process pool needs an app that its children can import: no module has this one as an "
            "attribute; write app = Rowlock(...) at the top of a module"
        )
    *_, name, attribute, module = min(found, key=lambda one: one[:2])
    return f"{_importable(module) if name == '__main__' else name}:{attribute}"


def _importable(main: ModuleType) -> str:
    """The program itself, as a child can import it; multiprocessing does that for scripts."""
    spec = main.__spec__
    if spec is not None:
        return spec.name if spec.name.endswith(".__main__") else "__main__"
    file = getattr(main, "__file__", None)
    if file is None or not os.path.exists(file):
        raise ConfigurationError(
            "a process pool needs an app that its children can import: this one was typed in, or came from "
            "-c or stdin; put it into a module"
        )
    return "__main__"


class Child:
    """One child process, as its parent sees it."""

    served = 0  # runs that it was given
    started: messages.Ready | messages.StartFailed | None = None  # what it has said about its start

    def __init__(self, plan: messages.ChildPlan, name: str) -> None:
        self.incoming: Connection
        self.incoming, out = _spawn.Pipe(duplex=False)
        into, self._outgoing = _spawn.Pipe(duplex=False)
        # Not a daemon: its tasks may use multiprocessing themselves.
        self.process = _spawn.Process(target=child.main, args=(into, out, plan), name=name)
        try:
            _start_with_signals_blocked(self.process)
        finally:
            into.close()
            out.close()

    def send(self, message: messages.ToChild) -> None:
        """Send; if it has just ended, whoever reads from it will notice."""
        with suppress(OSError):
            self._outgoing.send_bytes(messages.encode(message))

    def receive(self) -> messages.ToParent:
        """The next message; raises `EOFError` at the end of its pipe."""
        try:
            return messages.for_parent.decode(self.incoming.recv_bytes())
        except OSError:
            raise EOFError from None

    def kill(self) -> None:
        """End it at once."""
        with suppress(OSError, ValueError):  # it has ended already
            self.process.kill()

    def reap(self) -> str:
        """Wait for its end, or kill it; returns how it ended."""
        self.process.join(1.0)
        if self.process.is_alive():
            self.kill()
            self.process.join()
        code = self.process.exitcode
        self.incoming.close()
        self._outgoing.close()
        self.process.close()
        return _how_it_ended(code)


def _start_with_signals_blocked(process: Any) -> None:
    """Start it with signals blocked: one to the whole group must not end it before it is ready for that."""
    if not hasattr(signal, "pthread_sigmask"):
        process.start()
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _how_it_ended(code: int | None) -> str:
    if code is None or code >= 0:
        return f"its process ended with exit code {code}"
    try:
        name = f" ({signal.Signals(-code).name})"
    except ValueError:
        name = ""
    return f"its process was killed by signal {-code}{name}"


def why_not_ready(how: str) -> str:
    """What to say about a child that ended before it could say anything itself."""
    return (
        f"{how.replace('its process', 'a child process')} before it was ready; it may have said more on "
        f"stderr. In a script, {_GUARD}"
    )
