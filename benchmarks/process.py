"""A server process that is measured, and what /proc says about it. Linux only."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from .client import Http, Stdio

ROOT = Path(__file__).resolve().parent.parent


def environment(**more: str) -> dict[str, str]:
    """The same small environment for every target; .pyc files may be written."""
    keep = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return {**keep, "PYTHONPATH": str(ROOT), "LC_ALL": "C.UTF-8", **more}


def free_port() -> int:
    """Below the ephemeral range: a connect that is tried again and again to a port in
    it will one day meet itself."""
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Process:
    """One running server; `with` ends it."""

    def __init__(self, argv: list[str], port: int = 0, env: dict | None = None) -> None:
        self.port = port
        self.errors = tempfile.TemporaryFile()
        self.connection: Http | None = None
        self.started = time.perf_counter()
        self.child = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE if not port else subprocess.DEVNULL,
            stdout=subprocess.PIPE if not port else subprocess.DEVNULL,
            stderr=self.errors,
            bufsize=0,
            close_fds=False,
            env=env or environment(),
            cwd="/",
        )
        self.pid = self.child.pid

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        self.errors.close()
        if self.connection:
            self.connection.close()

    def connect(self, deadline: float = 60.0):
        """A Stdio, or an Http once the port answers; it is closed with the process."""
        if not self.port:
            return Stdio(self.child)
        while True:
            try:
                self.connection = Http(self.port)
                return self.connection
            except OSError:
                late = time.perf_counter() - self.started > deadline
                if late or self.child.poll() is not None:
                    raise ConnectionError(self.complaint()) from None
                time.sleep(0.0005)

    def complaint(self) -> str:
        """The end of what the server wrote to stderr."""
        self.errors.seek(0)
        return self.errors.read()[-2000:].decode(errors="replace")

    def end(self, seconds: float = 5.0) -> None:
        """EOF or SIGTERM, and a kill for what does not heed it."""
        if self.child.poll() is not None:
            return
        if self.child.stdin:
            self.child.stdin.close()
        else:
            self.child.send_signal(signal.SIGTERM)
        try:
            self.child.wait(seconds)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
        if self.child.stdout:
            self.child.stdout.close()

    def settle(self) -> None:
        """Wait until the server does nothing: its count then ends in the same place."""
        before = -1.0
        while before != self.cpu():
            before = self.cpu()
            time.sleep(0.1)

    def memory(self) -> dict[str, float]:
        """RSS, PSS and USS in MB."""
        found = dict.fromkeys(("Rss", "Pss", "Private_Clean", "Private_Dirty"), 0)
        for line in Path(f"/proc/{self.pid}/smaps_rollup").read_text().splitlines()[1:]:
            name, _, rest = line.partition(":")
            if name in found:
                found[name] = int(rest.split()[0])
        own = found["Private_Clean"] + found["Private_Dirty"]
        kilobytes = {"rss": found["Rss"], "pss": found["Pss"], "uss": own}
        return {name: value / 1024 for name, value in kilobytes.items()}

    def wakeups(self) -> int:
        """Voluntary context switches of all threads so far."""
        count = 0
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            for line in (task / "status").read_text().splitlines():
                if line.startswith("voluntary_ctxt_switches"):
                    count += int(line.split()[1])
        return count

    def cpu(self) -> float:
        """Seconds of CPU of all threads that live, user and kernel."""
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        return sum(int((t / "schedstat").read_text().split()[0]) for t in tasks) / 1e9


def python() -> str:
    """This interpreter without shims or links to it."""
    return os.path.realpath(sys.executable)
