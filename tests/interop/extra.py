"""The greenhouse with what it has no use for: things that only a client test needs.

It adds tools that change what the server offers, log, ask every kind of question, give
every kind of content and take a header parameter. `python3 -m tinymcp run
tests/interop/extra.py`.
"""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from tinymcp import (
    Audio,
    Context,
    EmbeddedResource,
    Image,
    ResourceLink,
    Server,
    TextContent,
    TextResourceContents,
)

PIXEL = (
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\1\0\0\0\1\x08\6\0\0\0\x1f\x15\xc4\x89\0\0\0\rIDAT"
    b"x\x9cc\xf8\xcf\xc0\xf0\x1f\0\5\0\1\xff\x89\x99=\x1d\0\0\0\0IEND\xaeB`\x82"
)
SILENCE = (
    b"RIFF$\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0\x40\x1f\0\0\x40\x1f\0\0\1\0\x08\0"
    b"data\0\0\0\0"
)


def greenhouse() -> Server:
    """The server of examples/greenhouse.py, loaded from its file."""
    path = Path(__file__).resolve().parents[2] / "examples" / "greenhouse.py"
    spec = importlib.util.spec_from_file_location("greenhouse", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["greenhouse"] = module  # annotations are resolved there
    spec.loader.exec_module(module)
    loaded: Server = module.server
    return loaded


server = greenhouse()


def fan(speed: int) -> dict[str, int]:
    """Set the fan."""
    return {"speed": speed}


@server.tool
def plug_in() -> str:
    """Add a tool, a resource and a prompt."""
    server.add_tool(fan)
    server.add_resource("greenhouse://fan", lambda: "still", name="fan_state")
    server.add_prompt(lambda: "Is the fan needed?", name="ask_fan")
    return "plugged in"


@server.tool
def talk(ctx: Context) -> str:
    """Log at two levels."""
    ctx.info("a first word")
    ctx.warning({"fan": "loud"})
    return "talked"


@dataclass
class Answers:
    """What a gardener says."""

    plant: str
    beds: Annotated[int, {"minimum": 1, "maximum": 9}]
    mulch: bool
    season: Literal["spring", "autumn"]
    height: float = 0.5


@server.tool
def survey(ctx: Context) -> dict[str, Any]:
    """Ask a form of every primitive type."""
    answer = ctx.elicit("What do you grow?", Answers)
    return {"action": answer.action, "content": answer.content}


@server.tool
def poem(ctx: Context) -> str:
    """Let the client's model write."""
    return ctx.sample("A line about basil, please.", max_tokens=50).text


@server.tool
def where(ctx: Context) -> list[str]:
    """Ask for the client's roots."""
    return [root.uri for root in ctx.list_roots()]


@server.tool
def twice(ctx: Context) -> str:
    """Ask two questions one after the other."""
    first = ctx.confirm("Really?")
    return f"{first} {ctx.confirm('Really really?')}"


@server.tool
def album() -> Any:
    """One content of every type."""
    return [
        TextContent(text="größe ☃ \u2028 \U0001f331"),
        Image(data=PIXEL, format="png"),
        Audio(data=SILENCE, format="wav"),
        ResourceLink(uri="greenhouse://manual", name="manual"),
        EmbeddedResource(
            resource=TextResourceContents(uri="greenhouse://note", text="a note")
        ),
    ]


@server.tool
def water(bed: Annotated[str, {"x-mcp-header": "Bed"}], litres: float = 1.0) -> str:
    """Water one bed; its name travels in a header, too."""
    return f"{litres} for {bed}"


if __name__ == "__main__":
    server.run()
