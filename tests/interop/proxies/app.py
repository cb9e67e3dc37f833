"""One instance of the fleet behind a proxy: app.py PORT [--share]."""

import asyncio
import os
import sys

from tinymcp import Context, Server

KEYS = [b"the fleet's key, shared by all..", b"the key before this one........."]
server = Server("fleet", "1", state_keys=KEYS, log_level="error")


@server.tool(inline=True)
def where() -> int:
    """Tell which instance answers."""
    return os.getpid()


@server.tool(inline=True)
def ask(ctx: Context) -> dict:
    """Ask two questions in a row, each round on whatever instance."""
    first = ctx.confirm("First?")
    second = ctx.confirm("Second?")
    return {"first": first, "second": second, "pid": os.getpid()}


@server.tool
async def steps(count: int, pause: float, ctx: Context) -> str:
    """Report progress, with a pause before each."""
    for step in range(count):
        await asyncio.sleep(pause)
        await ctx.report_progress(step + 1, count)
    return "done"


if __name__ == "__main__":
    server.run("http", port=int(sys.argv[1]), reuse_port="--share" in sys.argv)
