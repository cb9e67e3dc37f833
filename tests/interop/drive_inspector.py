"""Drives the Inspector's command line: one process per step, its output as the record.

The job names the program and its target; `strict` adds --strict to tools/list, whose
verdict on the schemas is the exit code.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

METHODS = {
    "tools": "tools/list",
    "resources": "resources/list",
    "templates": "resources/templates/list",
    "prompts": "prompts/list",
}


def options(operation: str, arguments: dict[str, Any]) -> list[str]:
    """The options of a step."""
    if operation in METHODS:
        return ["--method", METHODS[operation]]
    if operation == "read":
        return ["--method", "resources/read", "--uri", arguments["uri"]]
    if operation == "prompt":
        pairs = [f"{key}={value}" for key, value in arguments["arguments"].items()]
        name = ["--prompt-name", arguments["name"]]
        return ["--method", "prompts/get", *name, "--prompt-args", *pairs]
    name = ["--method", "tools/call", "--tool-name", arguments["name"]]
    return [*name, "--tool-args-json", json.dumps(arguments["arguments"])]


def last_object(text: str) -> dict[str, Any]:
    """The last line that is a JSON object."""
    lines = [line for line in text.splitlines() if line.startswith("{")]
    found: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    return found


def record(job: dict[str, Any], operation: str, arguments: dict[str, Any]) -> Any:
    """Run one command and read what it says."""
    wanted = options(operation, arguments)
    if job["strict"] and operation == "tools":
        wanted.append("--strict")
    era = ["--protocol-era", job["mode"], "--format", "json"]
    environment = {**os.environ, "HOME": job["home"]}
    environment["MCP_INSPECTOR_SECRET_STORE"] = "memory"
    ran = subprocess.run(
        [*job["inspector"], "--cli", *job["target"], *era, *wanted],
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
        env=environment,
    )
    found = last_object(ran.stdout) or last_object(ran.stderr)
    failed = found.get("result", {}).get("isError", False)
    if "result" in found and ran.returncode != (5 if failed else 0):
        problem = f"exit {ran.returncode}: {ran.stderr[-2000:]}"
        return {"error": {"code": None, "message": problem}}
    return found or {"error": {"code": None, "message": ran.stderr[-2000:]}}


def main() -> None:
    """Read the job, print the records."""
    job = json.load(sys.stdin)
    records = {key: record(job, op, arguments) for key, op, arguments in job["steps"]}
    print(json.dumps({"protocol": job["revision"], "records": records}))


if __name__ == "__main__":
    main()
