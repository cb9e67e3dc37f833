"""A SIMULATED greenhouse: sensors and actuators for people without hardware.

No device is touched. A small model of air, soil and sun moves on with the monotonic
clock (one simulated day lasts twenty minutes and starts at noon), so that opening the
vent really cools and the pump really wets, and the same moves give the same values.

    python3 -m tinymcp run examples/greenhouse.py --http 8000
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import math
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Callable, Literal, TypedDict

from tinymcp import Context, ResourceNotFoundError, Server, ToolError

UNITS = {"temperature": "Cel", "humidity": "%", "soil": "%", "light": "lx"}
PLANTS = ("basil", "cucumber", "lettuce", "tomato")
DAY = 1200.0  # seconds of a simulated day


class Color(enum.Enum):
    """The lamp's colours."""

    WHITE = "white"
    RED = "red"
    BLUE = "blue"


@dataclass
class Reading:
    """One value of one sensor."""

    sensor: str
    value: float
    unit: str


class WaterDay(TypedDict):
    """One day of a watering plan."""

    day: int
    seconds: float


class Greenhouse:
    """The simulated device: its state follows the clock that it is given."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # def handlers run on worker threads
        self._start = self._now = clock()
        self._state = {
            "temperature": 24.0,
            "humidity": 60.0,
            "soil": 45.0,
            "light": 0.0,
        }
        self._actuators: dict[str, Any] = {
            "vent": 20,
            "pump": False,
            "lamp": False,
            "color": Color.WHITE,
        }

    def read(self, sensor: str) -> Reading:
        """The value of one sensor now."""
        with self._lock:
            self._advance()
            return Reading(sensor, round(self._state[sensor], 1), UNITS[sensor])

    def actuators(self) -> dict[str, Any]:
        """What is open, running and lit."""
        with self._lock:
            return dict(self._actuators)

    def move(self, **changes: Any) -> None:
        """Set actuators; the time until now passes with the old settings."""
        with self._lock:
            self._advance()
            self._actuators.update(changes)

    def _advance(self) -> None:
        elapsed = self._clock() - self._now
        steps = min(int(elapsed) + 1, 1000)  # a month of sleep costs no more than this
        for _ in range(steps):
            self._step(elapsed / steps)

    def _step(self, seconds: float) -> None:
        state, actuators = self._state, self._actuators
        self._now += seconds
        sun = max(0.0, math.cos(2 * math.pi * (self._now - self._start) / DAY))
        lamp, vent = float(actuators["lamp"]), actuators["vent"] / 100
        warmth = 12.0 + (18.0 * sun + 3.0 * lamp) * (1.0 - 0.8 * vent)

        def approach(name: str, target: float, time_constant: float) -> None:
            share = 1.0 - math.exp(-seconds / time_constant)
            state[name] += (target - state[name]) * share

        approach("temperature", warmth, 60.0)
        approach("humidity", 85.0 - 45.0 * vent, 40.0)
        wetting = 1.5 * actuators["pump"] - 0.01 * (1.0 + sun)  # percent per second
        state["soil"] = min(100.0, max(0.0, state["soil"] + wetting * seconds))
        state["light"] = 40000.0 * sun + 5000.0 * lamp


greenhouse = Greenhouse()


@contextlib.contextmanager
def watch(server: Server) -> Iterator[Greenhouse]:
    """Announce sensors that changed, once a second, while the server runs."""
    stop = threading.Event()
    last = {name: greenhouse.read(name) for name in UNITS}

    def loop() -> None:
        while not stop.wait(1.0):
            for name, before in last.items():
                last[name] = greenhouse.read(name)
                if last[name] != before:
                    server.notify_updated(f"sensor://greenhouse/{name}")

    threading.Thread(target=loop, name="greenhouse-watch", daemon=True).start()
    try:
        yield greenhouse
    finally:
        stop.set()
        greenhouse.move(pump=False)


server = Server(
    "greenhouse",
    version="1.0.0",
    title="Greenhouse (simulated)",
    instructions="A simulated greenhouse. Read a sensor before and after you move "
    "something: air takes a minute to follow the vent.",
    lifespan=watch,
)

# ---- Tools ---------------------------------------------------------------------------


@server.tool(annotations={"readOnlyHint": True, "openWorldHint": False})
def read_sensor(name: Literal["temperature", "humidity", "soil", "light"]) -> Reading:
    """Read one sensor of the (simulated) greenhouse."""
    return greenhouse.read(name)


@server.tool(
    annotations={"destructiveHint": False, "idempotentHint": True},
    lock="vent",  # one motor: calls wait for each other
    rate=(5, 1.0),
)
def set_vent(
    percent: Annotated[int, {"minimum": 0, "maximum": 100}, "0 is shut, 100 is open"],
    ctx: Context,
) -> dict[str, Any]:
    """Open the roof vent. Wider than 80 % needs the consent of a person."""
    # The handler runs again from its start with the answer: ask first, then act.
    if percent > 80 and not ctx.confirm(f"Open the roof vent to {percent} %?"):
        return {"percent": greenhouse.actuators()["vent"], "changed": False}
    changed = greenhouse.actuators()["vent"] != percent
    greenhouse.move(vent=percent)
    return {"percent": percent, "changed": changed}


@server.tool(annotations={"destructiveHint": False}, lock="pump")
async def set_pump(
    seconds: Annotated[float, {"minimum": 0.1, "maximum": 30}, "how long it runs"],
    ctx: Context,
) -> dict[str, Any]:
    """Water the soil for some seconds. A cancelled call stops the pump at once."""
    started = time.monotonic()
    done = 0.0
    greenhouse.move(pump=True)
    try:
        while done < seconds:
            await ctx.report_progress(done, seconds, "pump is running")
            await asyncio.sleep(min(0.5, seconds - done))
            done = min(time.monotonic() - started, seconds)
    finally:
        greenhouse.move(pump=False)
    return {"seconds": seconds, "soil": greenhouse.read("soil").value}


@server.tool(annotations={"destructiveHint": False, "idempotentHint": True})
def set_lamp(on: bool, color: Color = Color.WHITE) -> dict[str, Any]:
    """Switch the grow lamp.

    Args:
        on: true lights it, false puts it out.
        color: the colour of its light.
    """
    greenhouse.move(lamp=on, color=color)
    return {"on": on, "color": color}


@server.tool(annotations={"readOnlyHint": True, "openWorldHint": False})
def water_plan(
    days: Annotated[int, {"minimum": 1, "maximum": 14}] = 3,
) -> list[WaterDay]:
    """Plan how long the pump should run on each of the next days."""
    missing = max(0.0, 60.0 - greenhouse.read("soil").value)  # percent to a good 60
    first = round(missing / 1.5, 1)  # the pump gives 1.5 percent per second
    return [{"day": day + 1, "seconds": 8.0 if day else first} for day in range(days)]


@server.tool(annotations={"readOnlyHint": True, "openWorldHint": False})
def test_alarm() -> str:
    """Fail on purpose, to see how a client shows the error of a device."""
    raise ToolError("Alarm test: no fault. The siren of this greenhouse is simulated.")


# ---- Resources -----------------------------------------------------------------------


@server.resource(
    "sensor://greenhouse/temperature", mime_type="application/json", min_interval=1.0
)
def temperature() -> Reading:
    """Air temperature in degrees Celsius. Subscribe to it to hear of changes."""
    return greenhouse.read("temperature")


@server.resource("sensor://greenhouse/{name}", mime_type="application/json")
def sensor(name: str) -> Reading:
    """Any sensor: temperature, humidity, soil or light."""
    if name not in UNITS:
        raise ResourceNotFoundError(f"sensor://greenhouse/{name}")
    return greenhouse.read(name)


@server.resource("greenhouse://actuators", mime_type="application/json")
def actuators() -> dict[str, Any]:
    """What is open, running and lit."""
    return greenhouse.actuators()


@server.resource("greenhouse://manual", mime_type="text/plain")
def manual() -> str:
    """How to keep plants alive in here."""
    return (
        "Keep the air between 18 and 28 degrees Celsius and the soil near 60 percent.\n"
        "The vent cools and dries. The pump wets the soil by 1.5 percent per second.\n"
        "The lamp adds 5000 lux and a little warmth. All of this is simulated.\n"
    )


# ---- Prompt and completions ----------------------------------------------------------


@server.prompt
def diagnose(plant: str, symptom: str) -> str:
    """Ask for a diagnosis of a plant from what the sensors say."""
    values = [greenhouse.read(name) for name in UNITS]
    told = ", ".join(f"{one.sensor} {one.value} {one.unit}" for one in values)
    return f"My {plant} shows this: {symptom}. Sensors: {told}. What should I do?"


@server.completion
def complete(ref: Any, argument: Any, context: Any) -> list[str]:
    """Plants for the prompt, sensors for the template."""
    known = {"plant": PLANTS, "name": tuple(UNITS)}.get(argument.name, ())
    return [value for value in known if value.startswith(argument.value)]


if __name__ == "__main__":
    server.run()
