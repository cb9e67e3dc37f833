"""The tinymcp server that is measured: app.py MODE stdio|http PORT TOOLS

MODE: inline, def, async, or fast (async with orjson and uvloop).
"""

import sys

from tinymcp import Server

MODE, TRANSPORT, PORT, TOOLS = sys.argv[1:5]
URI = "sensor://bench/temperature"
if MODE == "fast":
    import uvloop

    uvloop.install()
server = Server("bench", version="1.0.0", json="orjson" if MODE == "fast" else None)


@server.resource(URI, mime_type="application/json", inline=MODE == "inline")
def temperature() -> dict:
    """Air temperature in degrees Celsius."""
    return {"value": 21.5, "unit": "Cel"}


@server.tool(inline=True)
def touch() -> str:
    """Announce a new temperature."""
    server.notify_updated(URI)
    return "ok"


def echo(text: str) -> str:
    """Return the text."""
    return text


def read_sensor(sensor: str) -> dict:
    """Read one sensor."""
    return {"sensor": sensor, "value": 21.5, "unit": "Cel"}


async def echo_async(text: str) -> str:
    """Return the text."""
    return text


if MODE in ("async", "fast"):
    server.add_tool(echo_async, name="echo")
else:
    server.add_tool(echo, inline=MODE == "inline")
server.add_tool(read_sensor, inline=MODE != "def")
for number in range(int(TOOLS)):
    server.add_tool(echo, name=f"echo_{number}", inline=True)
if TRANSPORT == "http":
    server.run("http", port=int(PORT))
else:
    server.run()
