"""The measured server on fastmcp 4: fastmcp4.py stdio|http PORT TOOLS"""

import sys

from fastmcp import FastMCP
from fastmcp.tools import Tool

TRANSPORT, PORT, TOOLS = sys.argv[1:4]
server = FastMCP("bench", version="1.0.0")


@server.resource("sensor://bench/temperature", mime_type="application/json")
def temperature() -> dict:
    """Air temperature in degrees Celsius."""
    return {"value": 21.5, "unit": "Cel"}


async def echo(text: str) -> str:
    """Return the text."""
    return text


@server.tool
async def read_sensor(sensor: str) -> dict:
    """Read one sensor."""
    return {"sensor": sensor, "value": 21.5, "unit": "Cel"}


server.add_tool(Tool.from_function(echo))
for number in range(int(TOOLS)):
    server.add_tool(Tool.from_function(echo, name=f"echo_{number}"))
if TRANSPORT == "http":
    server.run(
        "http",
        show_banner=False,
        port=int(PORT),
        json_response=True,
        log_level="warning",
    )
else:
    server.run("stdio", show_banner=False)
