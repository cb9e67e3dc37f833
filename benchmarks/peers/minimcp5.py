"""The measured server on minimcp 0.5: minimcp5.py stdio|http PORT TOOLS"""

import sys

import anyio
from minimcp import HTTPTransport, MiniMCP, StdioTransport

TRANSPORT, PORT, TOOLS = sys.argv[1:4]
server = MiniMCP(name="bench", version="1.0.0")


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


server.tool()(echo)
for number in range(int(TOOLS)):
    server.tool(name=f"echo_{number}")(echo)
if TRANSPORT == "http":
    import uvicorn

    app = HTTPTransport(server).as_starlette("/mcp")
    uvicorn.run(app, port=int(PORT), log_level="warning")
else:
    anyio.run(StdioTransport(server).run)
