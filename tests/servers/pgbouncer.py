"""A real PgBouncer in transaction mode: one session of a client is many of the server's.
Not installed by the development tools: it is a system package, and its tests are skipped without."""

from __future__ import annotations

import re
import shutil
import socket
from pathlib import Path

from tests.eventually import eventually
from tests.servers.folders import ServerFailed, free_port, run
from tests.servers.postgres import through


class PgBouncer:
    """One PgBouncer in front of one server, with its configuration in a folder."""

    def __init__(self, program: Path, server_port: int, folder: Path) -> None:
        self.program = program
        self.server_port = server_port
        self.folder = folder
        self.log = folder / "pgbouncer.log"
        self.port = free_port()

    def url(self, url: str) -> str:
        """The URL of a database of the server, by way of PgBouncer."""
        return through(self.port, url)

    def start(self) -> None:
        """Return when clients can connect."""
        settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": self.port,
            "unix_socket_dir": "",
            "auth_type": "any",
            "pool_mode": "transaction",
            "default_pool_size": 5,
            "server_reset_query_always": 0,
            "logfile": self.log,
            "pidfile": self.folder / "pgbouncer.pid",
        }
        # An older one knows neither the setting nor prepared statements.
        if self.version >= (1, 21):
            settings["max_prepared_statements"] = 0
        lines = [f"{name} = {value}" for name, value in settings.items()]
        # `any` lets everybody in; the user that the server sees has to be named here.
        database = f"* = host=127.0.0.1 port={self.server_port} user=rowlock"
        configuration = self.folder / "pgbouncer.ini"
        configuration.write_text("\n".join(["[databases]", database, "[pgbouncer]", *lines, ""]))
        configuration.chmod(0o644)  # for the servers' user, whatever the umask
        run(self.program, "--daemon", configuration, folder=self.folder, log=self.log)
        try:
            eventually(self._listens)
        except AssertionError as error:
            raise ServerFailed(f"PgBouncer does not listen:\n{self.log.read_text()}") from error

    @property
    def version(self) -> tuple[int, int]:
        found = re.search(r"(\d+)\.(\d+)", run(self.program, "--version", folder=self.folder))
        assert found is not None
        return int(found[1]), int(found[2])

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


def pgbouncer_program() -> Path | None:
    """Where PgBouncer is installed; sbin is not on everybody's path."""
    found = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    return Path(found) if found else None
