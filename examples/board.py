"""The machine it runs on: temperature, load, memory, uptime, disk, network.

Everything is read from /proc and /sys when it is asked for, and nothing is invented: a
sensor that the machine lacks is not offered. Each reading is a read-only tool and a
resource; subscribe to the resource to hear of changes.

    python3 -m tinymcp run examples/board.py --http 8000
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any, Callable, TypedDict

from tinymcp import Server

READ_ONLY = {"readOnlyHint": True, "openWorldHint": False}
JSON = "application/json"


class Temperature(TypedDict):
    """One temperature sensor, named as the kernel names it."""

    sensor: str
    celsius: float


class Load(TypedDict):
    """Processes that run or wait for the disk, averaged over three times."""

    one_minute: float
    five_minutes: float
    fifteen_minutes: float


class Memory(TypedDict, total=False):
    """Memory in bytes. What the kernel does not report is left out."""

    total: int
    available: int
    swap_total: int
    swap_free: int


class Uptime(TypedDict):
    """Seconds since the start."""

    seconds: float


class Disk(TypedDict):
    """One mounted file system, in bytes. Available is what users may still write."""

    mount: str
    device: str
    kind: str
    total: int
    available: int


class Interface(TypedDict):
    """One network interface: counters since the start."""

    name: str
    received_bytes: int
    received_packets: int
    received_errors: int
    sent_bytes: int
    sent_packets: int
    sent_errors: int


class Board:
    """Readings of the machine whose /proc and /sys lie below `root`."""

    def __init__(self, root: str = "/") -> None:
        self._root = root

    def temperatures(self) -> list[Temperature]:
        """Every temperature sensor: thermal zones (the CPU's among them) and hwmon."""
        files: dict[str, str] = {}
        for zone in self._entries("sys/class/thermal", "thermal_zone"):
            with contextlib.suppress(OSError):
                files[_unique(self._text(zone, "type"), files)] = f"{zone}/temp"
        zones = {name.replace("-", "_") for name in files}
        for chip in self._entries("sys/class/hwmon", "hwmon"):
            with contextlib.suppress(OSError):
                name = self._text(chip, "name")
                if name not in zones:  # the kernel shows a zone as a chip once more
                    files.update(self._inputs(chip, name, files))
        found: list[Temperature] = []
        for sensor, file in files.items():
            # A sensor that is switched off or was unplugged gives an error: no value.
            with contextlib.suppress(OSError, ValueError):
                celsius = int(self._text(file)) / 1000
                if celsius > -273.15:  # drivers say "no value" with less than nothing
                    found.append({"sensor": sensor, "celsius": celsius})
        return found

    def load(self) -> Load:
        """Load averages."""
        one, five, fifteen = self._text("proc/loadavg").split()[:3]
        return {
            "one_minute": float(one),
            "five_minutes": float(five),
            "fifteen_minutes": float(fifteen),
        }

    def memory(self) -> Memory:
        """Memory and swap."""
        known: dict[str, int] = {}
        for line in self._text("proc/meminfo").splitlines():
            name, _, value = line.partition(":")
            known[name] = int(value.split()[0]) * 1024  # the kernel's kB are KiB
        names = {
            "total": "MemTotal",
            "available": "MemAvailable",
            "swap_total": "SwapTotal",
            "swap_free": "SwapFree",
        }
        memory = {key: known[name] for key, name in names.items() if name in known}
        # The checker cannot see that the keys are those of Memory.
        return memory  # type: ignore[return-value]

    def uptime(self) -> Uptime:
        """How long the machine has been up."""
        return {"seconds": float(self._text("proc/uptime").split()[0])}

    def disks(self) -> list[Disk]:
        """Mounted file systems: the root and every other one on a device."""
        found: dict[str, Disk] = {}
        for line in self._text("proc/mounts").splitlines():
            device, mount, kind = (_unescape(word) for word in line.split()[:3])
            local = device.startswith("/dev/") and not device.startswith("/dev/loop")
            if device in found or not (local or mount == "/"):
                continue
            with contextlib.suppress(OSError):
                size = os.statvfs(self._path(mount.lstrip("/")))
                found[device] = {
                    "mount": mount,
                    "device": device,
                    "kind": kind,
                    "total": size.f_blocks * size.f_frsize,
                    "available": size.f_bavail * size.f_frsize,
                }
        return list(found.values())

    def network(self) -> list[Interface]:
        """Network interfaces with their counters."""
        found: list[Interface] = []
        for line in self._text("proc/net/dev").splitlines()[2:]:
            name, _, numbers = line.partition(":")
            count = [int(word) for word in numbers.split()]
            found.append(
                {
                    "name": name.strip(),
                    "received_bytes": count[0],
                    "received_packets": count[1],
                    "received_errors": count[2],
                    "sent_bytes": count[8],
                    "sent_packets": count[9],
                    "sent_errors": count[10],
                }
            )
        return found

    def _inputs(self, chip: str, name: str, taken: dict[str, str]) -> dict[str, str]:
        inputs: dict[str, str] = {}
        for file in self._entries(chip, "temp", "_input"):
            label = os.path.basename(file)[: -len("_input")]
            with contextlib.suppress(OSError):
                label = self._text(file[: -len("_input")] + "_label")
            inputs[_unique(f"{name} {label}", {**taken, **inputs})] = file
        return inputs

    def _path(self, *parts: str) -> str:
        return os.path.join(self._root, *parts)

    def _text(self, *parts: str) -> str:
        with open(self._path(*parts), encoding="utf-8", errors="replace") as file:
            return file.read().strip()

    def _entries(self, folder: str, start: str, end: str = "") -> list[str]:
        try:
            names = os.listdir(self._path(folder))
        except OSError:
            return []
        fitting = [n for n in names if n.startswith(start) and n.endswith(end)]
        return [f"{folder}/{n}" for n in sorted(fitting, key=lambda n: (len(n), n))]


def _unique(name: str, taken: dict[str, str]) -> str:
    number, candidate = 1, name
    while candidate in taken:
        number += 1
        candidate = f"{name} {number}"
    return candidate


def _unescape(word: str) -> str:
    """/proc/mounts writes space, tab, newline and backslash as octal (proc(5))."""
    for code, character in (("040", " "), ("011", "\t"), ("012", "\n"), ("134", "\\")):
        word = word.replace("\\" + code, character)
    return word


def _attempt(reading: Callable[[], Any]) -> Any:
    """What a reading gives now, None where this machine cannot give it."""
    try:
        return reading()
    except (OSError, ValueError, IndexError, AttributeError):
        return None


def build(root: str = "/", interval: float = 2.0) -> Server:
    """A server for the machine below `root`, looked at every `interval` seconds."""
    board = Board(root)
    readings = (
        board.temperatures,
        board.load,
        board.memory,
        board.uptime,
        board.disks,
        board.network,
    )
    offered = {f"board://{one.__name__}": one for one in readings if _attempt(one)}

    @contextlib.contextmanager
    def watch(server: Server) -> Iterator[Board]:
        stop = threading.Event()
        last = {uri: _attempt(one) for uri, one in offered.items()}

        def loop() -> None:
            while not stop.wait(interval):
                for uri, one in offered.items():
                    before, last[uri] = last[uri], _attempt(one)
                    if last[uri] != before:
                        server.notify_updated(uri)

        threading.Thread(target=loop, name="board-watch", daemon=True).start()
        try:
            yield board
        finally:
            stop.set()

    server = Server(
        "board",
        version="1.0.0",
        instructions="Reads the machine that this server runs on. A reading that is "
        "not listed is one that the machine does not have.",
        lifespan=watch,
    )
    for uri, one in offered.items():
        server.add_tool(one, annotations=READ_ONLY)
        server.add_resource(uri, one, mime_type=JSON, min_interval=interval)
    return server


server = build()

if __name__ == "__main__":
    server.run()
