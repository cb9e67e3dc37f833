"""The man in the middle: passes bytes through untouched and writes them down.

Over stdio it is a process between client and server: `tap.py FOLDER -- COMMAND ...`
makes FOLDER/stdio-PID.jsonl. Over HTTP it is a relay of TCP bytes inside the runner
(`Relay`), so that streaming, keep-alive and disconnects stay what they were.

A line of a recording is {"at": seconds, "flow": "c2s"|"s2c"|"err", "on": connection,
"data": bytes as latin-1}; the last line of a process is {"exit": code, "after": seconds
from the end of its input or the signal, "signal": what the client sent, if it did}.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Callable

ROOT = Path(__file__).resolve().parents[2]


class Recorder:
    """One recording; safe from any thread, each line written at once."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "a", encoding="ascii", buffering=1)
        self._lock = threading.Lock()

    def note(self, **fields: Any) -> None:
        """Write one line."""
        with self._lock:
            self._file.write(json.dumps({"at": time.time(), **fields}) + "\n")

    def data(self, flow: str, data: bytes, on: int = 0) -> None:
        """Write down bytes of one direction."""
        self.note(flow=flow, on=on, data=data.decode("latin-1"))


def _write_all(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _pump(source: int, target: int, flow: str, recorder: Recorder) -> None:
    try:
        while data := os.read(source, 65536):
            recorder.data(flow, data)
            _write_all(target, data)
    except OSError as error:  # the other side has gone: so are the rest of the bytes
        recorder.note(flow=flow, on=0, data="", broken=str(error))


def stdio(folder: Path, command: list[str]) -> int:
    """Run the server with its three streams passed through; its exit code is ours."""
    recorder = Recorder(folder / f"stdio-{os.getpid()}.jsonl")
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    server = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path},
        bufsize=0,
    )
    assert server.stdin and server.stdout and server.stderr
    ended = [0.0]
    signals: list[int] = []

    def forward(number: int, frame: object) -> None:
        ended[0] = ended[0] or time.monotonic()
        signals.append(number)
        server.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, forward)

    def inwards(into: Any) -> None:
        _pump(0, into.fileno(), "c2s", recorder)
        ended[0] = ended[0] or time.monotonic()
        into.close()

    outwards = [
        threading.Thread(
            target=_pump, args=(server.stdout.fileno(), 1, "s2c", recorder)
        ),
        threading.Thread(
            target=_pump, args=(server.stderr.fileno(), 2, "err", recorder)
        ),
    ]
    threading.Thread(target=inwards, args=(server.stdin,), daemon=True).start()
    for thread in outwards:
        thread.start()
    code = server.wait()
    after = time.monotonic() - (ended[0] or time.monotonic())
    recorder.note(exit=code, after=after, signal=signals[0] if signals else 0)
    for thread in outwards:
        thread.join(5)
    return code


class Relay:
    """A TCP relay on loopback to `port`, for one recording; `close()` ends it."""

    def __init__(self, folder: Path, port: int) -> None:
        self._recorder = Recorder(folder / f"http-{port}.jsonl")
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._start(self._accept)

    def close(self) -> None:
        """Stop listening. Open connections end with their two sides."""
        self._listener.close()

    def _start(self, function: Callable[..., None], *arguments: Any) -> None:
        threading.Thread(target=function, args=arguments, daemon=True).start()

    def _accept(self) -> None:
        number = 0
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
            except OSError:
                return
            number += 1
            for one in (client, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._start(self._pass, client, server, "c2s", number)
            self._start(self._pass, server, client, "s2c", number)

    def _pass(
        self, source: socket.socket, target: socket.socket, flow: str, number: int
    ) -> None:
        try:
            while data := source.recv(65536):
                self._recorder.data(flow, data, number)
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
        except OSError:  # reset by one side: the other must see an end as well
            for one in (source, target):
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)


if __name__ == "__main__":
    raise SystemExit(stdio(Path(sys.argv[1]), sys.argv[3:]))
