"""python3 -m benchmarks [--quick] [--peers] [--json] [--markdown] [--svg FILE]

Other commands: `counts` (instructions, valgrind) and `soak` (memory over many calls).
"""

from __future__ import annotations

import argparse
import compileall
import importlib.util
import json
import os
import platform
from pathlib import Path

from . import clients, counts, goals, soak, targets
from .measure import Bench
from .process import ROOT
from .report import Results, picture


def machine() -> dict[str, str]:
    """What ran this, for the head of the table."""
    model = platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("model name", "Model")):
            model = line.partition(":")[2].strip()
            break
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "cpu": f"{os.cpu_count()} x {model}",
        "kernel": f"{platform.system()} {platform.release()}",
        "load": f"{os.getloadavg()[0]:.1f}",
        "pyc": "used" if compiled() else "NOT used: every start compiles the source",
    }


def compiled() -> bool:
    """Compile first, then say whether a start will find fresh .pyc files."""
    folders = (ROOT / "tinymcp", ROOT / "benchmarks" / "references")
    fine = all(compileall.compile_dir(f, quiet=2, maxlevels=0) for f in folders)
    source = ROOT / "tinymcp" / "tinymcp.py"
    cached = Path(importlib.util.cache_from_source(str(source)))
    return fine and cached.exists()


def chosen(options: argparse.Namespace) -> list[targets.Target]:
    found = targets.own() + targets.references()
    if options.peers:
        found += [targets.fast(), *targets.peers()]
    if not options.only:
        return found
    names = [target.name for target in found]
    for part in options.only:
        if not any(part in name for name in names):
            raise SystemExit(f"--only {part}: there is {', '.join(names)}")
    return [t for t in found if any(part in t.name for part in options.only)]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python3 -m benchmarks",
        description="What tinymcp costs, beside others.",
        epilog=goals.MISSED,
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds and calls")
    parser.add_argument(
        "--peers", action="store_true", help="install and measure peers"
    )
    parser.add_argument("--client", action="store_true", help="calls through clients")
    parser.add_argument("--only", nargs="*", metavar="NAME", help="only these targets")
    parser.add_argument("--json", action="store_true", help="all values as JSON")
    parser.add_argument("--markdown", action="store_true", help="the table as Markdown")
    parser.add_argument("--svg", metavar="FILE", help="draw the main rows as bars")
    commands = parser.add_subparsers(dest="command")
    counts.add_parser(commands)
    soak.add_parser(commands)
    options = parser.parse_args()
    facts = machine()
    if options.command:
        return options.run(options)
    if options.client:
        return clients.run(options)
    bench = Bench(chosen(options), options.quick)
    bench.run()
    results = Results(bench.values)
    if options.svg:
        Path(options.svg).write_text(picture(results))
    if options.json:
        print(json.dumps({"machine": facts, "rows": results.as_json()}, indent=1))
        return 0
    print("\n".join(f"{name}: {text}" for name, text in facts.items()))
    print(f"\n{results.markdown() if options.markdown else results.plain()}\n")
    print(goals.table(results))
    return 0


raise SystemExit(main())
