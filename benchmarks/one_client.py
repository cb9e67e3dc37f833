"""A client that is measured: one_client.py tinymcp|mcp CALLS URL | -- COMMAND ...

Prints one line of JSON: seconds until the first answer, microseconds of wall time and
of CPU per call (client side alone), MB of memory.
"""

import asyncio
import json
import resource
import sys
import time

started = time.perf_counter()
which, calls, *target = sys.argv[1:]
calls = int(calls)
command = target[1:] if target[0] == "--" else None


def tinymcp():
    """Ours."""
    from tinymcp.client import Client

    return Client(command or target[0], inherit_env=True)


def official():
    """The official one."""
    import os

    from mcp import Client, StdioServerParameters, stdio_client

    if command is None:
        return Client(target[0])
    options = {"args": command[1:], "env": dict(os.environ)}
    return Client(stdio_client(StdioServerParameters(command=command[0], **options)))


def cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def main():
    async with {"tinymcp": tinymcp, "mcp": official}[which]() as client:
        await client.call_tool("echo", {"text": "x"})
        first = time.perf_counter() - started
        times = []
        before = cpu()
        for _ in range(calls):
            start = time.perf_counter()
            await client.call_tool("echo", {"text": "x"})
            times.append(time.perf_counter() - start)
        used = cpu() - before
    times.sort()
    result = {
        "first answer, ms": first * 1e3,
        "call, us": times[len(times) // 2] * 1e6,
        "call p99, us": times[len(times) * 99 // 100] * 1e6,
        "client CPU per call, us": used / calls * 1e6,
        "memory, MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print(json.dumps(result))


asyncio.run(main())
