"""Pinned environments of other people's clients and servers, made once in .cache."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "interop"


def python() -> str:
    """A Python that the official SDK works with: 3.10 or newer."""
    if sys.version_info >= (3, 10):
        return sys.executable
    for minor in (13, 12, 11, 10):
        if found := shutil.which(f"python3.{minor}"):
            return found
    raise SystemExit("interop: the SDKs need a Python of 3.10 or newer on PATH")


def check(command: list[str], folder: pathlib.Path = ROOT) -> None:
    """Run a command; its output is shown when it fails."""
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if ran.returncode:
        shown = " ".join(command)
        raise SystemExit(f"interop: {shown} failed:\n{ran.stdout}{ran.stderr}")


def python_packages(home: pathlib.Path, packages: list[str]) -> None:
    """A virtual environment that holds the packages."""
    quiet = ["-q", "--disable-pip-version-check", "--no-input"]
    check([python(), "-m", "venv", str(home)])
    check([str(home / "bin" / "python"), "-m", "pip", "install", *quiet, *packages])


def node_packages(home: pathlib.Path, packages: list[str]) -> None:
    """A folder whose node_modules hold the packages."""
    (home / "package.json").write_text('{"private": true}')
    check(["npm", "install", "--no-audit", "--no-fund", "--silent", *packages], home)


def install(env: str, packages: list[str], fill=python_packages) -> None:
    """Make one environment with `fill`, unless the same one is there."""
    home, marker = CACHE / env, CACHE / env / ".made"
    if marker.exists() and marker.read_text() == " ".join(packages):
        return
    print(f"interop: installing {env}", flush=True)
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    fill(home, packages)
    marker.write_text(" ".join(packages))
