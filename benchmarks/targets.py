"""What is measured, and the peers: installed by this file into .cache/bench, pinned."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from pathlib import Path

from .client import LEGACY, MODERN
from .process import ROOT, Process, free_port, python

HERE = Path(__file__).resolve().parent
CACHE = ROOT / ".cache" / "bench"
BOTH = (MODERN, LEGACY)
PIP = {
    "mcp": ["mcp==2.3.0"],
    "fastmcp": ["fastmcp==4.2.3"],
    "minimcp": ["minimcp==0.5.2", "mcp==1.30.0"],
    "fast": ["orjson==3.13.0", "uvloop==0.23.0"],
}
NPM = {
    "typescript2": [
        "@modelcontextprotocol/server@2.4.0",
        "@modelcontextprotocol/node@2.1.2",
        "zod@4.6.7",
    ],
    "typescript1": ["@modelcontextprotocol/sdk@1.32.2"],
}


class Target:
    """One server program: how to start it, and which transports and eras it knows."""

    def __init__(self, name: str, argv: list, stdio=(), http=(), **more) -> None:
        self.name = name
        self.argv = [str(part) for part in argv]
        self.stdio = stdio
        self.http = http
        self.module = more.get("module", "")
        self.folder = more.get("folder")
        self.listens = more.get("listens", False)
        self.sessions = more.get("sessions", False)
        self.fast_start = more.get("fast_start", False)  # a new process each round

    def start(self, transport: str, tools: int = 0) -> Process:
        port = free_port() if transport == "http" else 0
        return Process([*self.argv, transport, str(port), str(tools)], port)


def bare() -> Path:
    """A Python whose site-packages is empty: what is installed there slows a start."""
    home = CACHE / f"bare-{platform.python_version()}"
    program = home / "bin" / "python"
    if not program.exists():
        subprocess.run([python(), "-m", "venv", "--without-pip", home], check=True)
    return program


def own(program: str | Path = "") -> list[Target]:
    """tinymcp, once for each kind of handler."""
    more = {"module": "tinymcp", "folder": ROOT / "tinymcp"}
    more.update(listens=True, sessions=True, fast_start=True)
    app = [program or bare(), HERE / "app.py"]
    modes = ("inline", "def", "async")
    return [Target(f"tiny {mode}", [*app, mode], BOTH, BOTH, **more) for mode in modes]


def references(program: str | Path = "") -> list[Target]:
    """L1 to L4: what Python can do without a framework."""

    def make(name: str, **transports) -> Target:
        file = HERE / "references" / f"{name.lower()}.py"
        return Target(name, [program or bare(), file], fast_start=True, **transports)

    on_stdio = [make(name, stdio=BOTH) for name in ("L1", "L2r")]
    return on_stdio + [make(name, http=BOTH) for name in ("L3", "L4")]


def peers() -> list[Target]:
    """The other implementations, installed when they are not there yet."""
    found = []
    for name, file, eras in (
        ("mcp", "mcp2.py", BOTH),
        ("fastmcp", "fastmcp4.py", BOTH),
        ("minimcp", "minimcp5.py", (LEGACY,)),
    ):
        home = _pip(name)
        argv = [home / "bin" / "python", HERE / "peers" / file]
        more = {"module": name, "folder": home, "sessions": name != "minimcp"}
        found.append(Target(name, argv, eras, eras, **more))
    for name, label, eras in (
        ("typescript2", "ts 2.4", BOTH),
        ("typescript1", "ts 1.32", (LEGACY,)),
    ):
        home = _npm(name)
        if home is not None:
            argv = [shutil.which("node"), home / f"{name}.mjs"]
            found.append(Target(label, argv, eras, eras, folder=home))
    return found


def fast() -> Target:
    """tinymcp with orjson and uvloop asked for."""
    argv = [_pip("fast") / "bin" / "python", HERE / "app.py", "fast"]
    more = {"listens": True, "sessions": True, "fast_start": True}
    return Target("tiny fast", argv, BOTH, BOTH, **more)


def _pip(name: str) -> Path:
    home = CACHE / f"{name}-{platform.python_version()}"
    if (home / "done").exists():
        return home
    print(f"installing {' '.join(PIP[name])} ...", file=sys.stderr)
    subprocess.run([python(), "-m", "venv", home], check=True)
    pip = [home / "bin" / "python", "-m", "pip", "install", "-q"]
    pip += ["--disable-pip-version-check", "--no-input"]
    subprocess.run([*pip, *PIP[name]], check=True)
    subprocess.run(
        [home / "bin" / "python", "-m", "compileall", "-q", home / "lib"],
        stdout=subprocess.DEVNULL,
        check=False,  # packages ship files for other Pythons
    )
    (home / "done").touch()
    return home


def _npm(name: str) -> Path | None:
    home = CACHE / name
    if shutil.which("npm") is None:
        print(f"{name}: npm is not installed, left out", file=sys.stderr)
        return None
    if not (home / "done").exists():
        print(f"installing {' '.join(NPM[name])} ...", file=sys.stderr)
        home.mkdir(parents=True, exist_ok=True)
        (home / "package.json").write_text('{"private": true}\n')
        npm = ["npm", "install", "--silent", "--no-audit", "--no-fund"]
        subprocess.run([*npm, *NPM[name]], cwd=home, check=True)
        (home / "done").touch()
    shutil.copy(HERE / "peers" / f"{name}.mjs", home)  # node resolves from the file
    return home


def size(target: Target) -> tuple[float, int] | None:
    """Installed MB and package count beyond a bare environment."""
    if target.folder is None:
        return None
    if target.folder == ROOT / "tinymcp":
        found = target.folder.glob("*.py")
        return sum(file.stat().st_size for file in found) / 1e6, 1
    if (target.folder / "node_modules").exists():
        top = target.folder / "node_modules"
        names = [p for p in top.rglob("package.json") if _is_package(p)]
        return _weigh([top]), len(names)
    site = next(target.folder.glob("lib/python*/site-packages"))
    skip = ("pip", "setuptools", "wheel", "_distutils", "distutils", "pkg_resources")
    kept = [path for path in site.iterdir() if not path.name.startswith(skip)]
    return _weigh(kept), sum(path.name.endswith(".dist-info") for path in kept)


def _is_package(file: Path) -> bool:
    parent = file.parent.parent
    scoped = parent.name.startswith("@") and parent.parent.name == "node_modules"
    return parent.name == "node_modules" or scoped


def _weigh(folders: list[Path]) -> float:
    """MB of the files, without .pyc."""
    total = 0
    for top in folders:
        for path in [top] if top.is_file() else top.rglob("*"):
            if path.is_file() and path.suffix != ".pyc":
                total += path.stat().st_size
    return total / 1e6
