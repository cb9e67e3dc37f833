"""A server on the official Python SDK, 1.x or 2.x: server_py.py stdio | PORT."""

import sys

from pydantic import BaseModel

try:
    from mcp.server import MCPServer
    from mcp.server.mcpserver import Context

    two = True
except ImportError:
    from mcp.server.fastmcp import Context
    from mcp.server.fastmcp import FastMCP as MCPServer

    two = False

where = sys.argv[1]
port = {} if two or where == "stdio" else {"port": int(where)}
server = MCPServer("interop", instructions="For tests.", **port)


class Answer(BaseModel):
    """What the form asks for."""

    sure: bool = True


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
async def work(ctx: Context) -> str:
    """Report progress."""
    for step in range(3):
        await ctx.report_progress(step + 1, 3)
    return "done"


if not two:

    @server.tool()
    async def ask(ctx: Context) -> str:
        """Ask a person."""
        answer = await ctx.elicit("Sure?", Answer)
        return f"{answer.action} {answer.data}"


@server.resource("test://value")
def value() -> str:
    """A value."""
    return "42"


@server.prompt()
def advice(plant: str) -> str:
    """Ask for advice."""
    return f"What does {plant} need?"


if where == "stdio":
    server.run()
else:
    server.run(transport="streamable-http", **({"port": int(where)} if two else {}))
