"""Stopping a process with SIGSTOP where it holds up nobody else."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
from contextlib import closing


def frozen_outside_of_transactions(process: subprocess.Popen[bytes], url: str) -> bool:
    """Stop it where it is, if that is in no transaction: SQLite's lock would be held for as long."""
    process.send_signal(signal.SIGSTOP)
    if not url.startswith("sqlite"):
        return True  # the server ends a transaction that stands still
    try:
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=0)) as db:
            db.execute("BEGIN IMMEDIATE")
            return True
    except sqlite3.OperationalError:
        process.send_signal(signal.SIGCONT)
        return False
