"""Which module has which command, and the group that imports a module when one of its commands is asked for.

The help of the whole program imports them all, so they stay light: what a command works with (the worker, the
consumers, tables) is imported when it runs. A command's docstring is its help, and ends with examples.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from typer.core import TyperGroup
from typer.main import get_group

COMMANDS = {
    "work": ("worker",),
    "consume": ("consume", "consumers"),
    "relay": ("relay",),
    "files": ("ingest", "janitor"),
    "produce": ("enqueue",),
    "jobs": ("jobs", "job"),
    "watch": ("watch",),
    "job_actions": ("cancel", "retry"),
    "queues": ("pause", "resume", "queues"),
    "workers": ("workers",),
    "check": ("check",),
    "database": ("init", "upgrade", "backup", "doctor"),
    "copy": ("copy",),
    "demo": ("demo",),
}
_MODULE_OF = {command: module for module, commands in COMMANDS.items() for command in commands}


class CommandsOfModules(TyperGroup):
    """The commands in the table's order; each is made when it is first asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names, which need no import."""
        return list(_MODULE_OF)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of this name; for a name that there is not, all are made, so that Typer can suggest."""
        for module in [_MODULE_OF[cmd_name]] if cmd_name in _MODULE_OF else COMMANDS:
            self._import(module)
        return self.commands.get(cmd_name)

    def _import(self, module: str) -> None:
        if COMMANDS[module][0] not in self.commands:
            made = get_group(import_module(f"rowlock.cli.{module}").commands).commands
            self.commands.update((name, _with_examples(command)) for name, command in made.items())


def _with_examples(command: Any) -> Any:
    """Show the examples, with which a docstring ends, below the options."""
    text, _, lines = (command.help or "").partition("\n\nExample: ")
    command.help = text
    command.epilog = f"Example: {lines}".replace("\n", "\n\n").replace("[", r"\[")
    for nested in getattr(command, "commands", {}).values():
        _with_examples(nested)
    return command
