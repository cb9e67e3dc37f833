"""The measured server on mcp 2: mcp2.py stdio|http PORT TOOLS"""

import sys

from mcp.server import MCPServer

TRANSPORT, PORT, TOOLS = sys.argv[1:4]
server = MCPServer("bench", version="1.0.0", log_level="WARNING")


@server.resource("sensor://bench/temperature", mime_type="application/json")
def temperature() -> dict:
    """Air temperature in degrees Celsius."""
    return {"value": 21.5, "unit": "Cel"}


async def echo(text: str) -> str:
    """Return the text."""
    return text


@server.tool()
async def read_sensor(sensor: str) -> dict:
    """Read one sensor."""
    return {"sensor": sensor, "value": 21.5, "unit": "Cel"}


server.add_tool(echo)
for number in range(int(TOOLS)):
    server.add_tool(echo, name=f"echo_{number}")
if TRANSPORT == "http":
    server.run("streamable-http", port=int(PORT), json_response=True)
else:
    server.run("stdio")
