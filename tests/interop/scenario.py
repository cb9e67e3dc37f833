"""What every client does with a server, and what it must get.

A driver knows no scenario: it is given a list of steps, carries out each with its SDK
and hands back one record per step: {"result": ...} or {"error": {code, message}}, with
what came on the way under "asked", "progress" and "log". A step that needs what a
client lacks (its row in run.py says so) is left out; "!thing" is for those alone.

Results are in wire form (camelCase, absent members absent). Checks get the record and
the revision that was negotiated, and raise AssertionError.
"""

from __future__ import annotations

import json
from typing import Any, Callable, NamedTuple

Record = dict[str, Any]
Check = Callable[[Record, str], None]

STRUCTURED = "2025-06-18"  # first revision with structured results and elicitation
MODERN = "2026-07-28"
SENSOR = "sensor://greenhouse/"


class Step(NamedTuple):
    """One thing to do: `operation` of the driver with `arguments`, then `check`."""

    key: str
    operation: str
    arguments: dict[str, Any]
    check: Check
    need: str = ""


def canonical(value: Any) -> Any:
    """A JSON value in which 1.0 is 1 (JavaScript cannot tell) and true is not."""
    if isinstance(value, dict):
        return {key: canonical(value[key]) for key in sorted(value)}
    if isinstance(value, list):
        return [canonical(one) for one in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def same(got: Any, want: Any) -> None:
    """Assert that two JSON values are equal, booleans told from numbers."""
    left, right = json.dumps(canonical(got)), json.dumps(canonical(want))
    assert left == right, f"got {left[:600]}, wanted {right[:600]}"


def text(record: Record) -> str:
    """The text of the first content block of a call, whatever its kind."""
    assert "result" in record, f"no result: {json.dumps(record)[:600]}"
    block = record["result"]["content"][0]
    same(block["type"], "text")
    value: str = block["text"]
    return value


def data(record: Record, revision: str, *, wrapped: bool = False) -> Any:
    """The value of a successful call: structured where the revision knows it."""
    value = json.loads(text(record))
    result = record["result"]
    assert not result.get("isError"), f"failed: {value}"
    if revision < STRUCTURED:
        assert "structuredContent" not in result, "structured content before 2025-06-18"
    else:
        bare = not wrapped or revision >= MODERN
        same(result["structuredContent"], value if bare else {"result": value})
    return value


def failed(*words: str) -> Check:
    """A check: the call is an `isError` result whose text holds these words."""

    def check(record: Record, revision: str) -> None:
        said = text(record)
        same(record["result"].get("isError"), True)
        assert "Traceback" not in said, said
        for word in words:
            assert word in said, f"{word!r} is not in {said!r}"

    return check


def refused(*legacy: int) -> Check:
    """A check: answered with the error -32602, before 2026-07-28 with one of these.

    More than one where an SDK makes one code of another before its user sees it.
    """

    def check(record: Record, revision: str) -> None:
        assert "error" in record, f"no error: {json.dumps(record)[:600]}"
        wanted = (-32602,) if revision >= MODERN else legacy
        assert record["error"]["code"] in wanted, record["error"]

    return check


def connected(record: Record, revision: str) -> None:
    """The handshake's or the discovery's result."""
    result = record["result"]
    if result.get("server"):  # a pinned modern client never asks who serves
        same(result["server"]["name"], "greenhouse")
        same(result["server"]["version"], "1.0.0")
        capabilities = result["capabilities"]
        wanted = {"tools", "resources", "prompts"}
        wanted |= {"completions"} if revision >= "2025-03-26" else set()
        assert wanted <= set(capabilities), capabilities
        same(capabilities["resources"].get("subscribe"), True)
        assert "simulated" in result["instructions"], result


def tools(record: Record, revision: str) -> None:
    """The tools of the greenhouse with their schemas."""
    listed = {tool["name"]: tool for tool in record["result"]["tools"]}
    wanted = "read_sensor set_lamp set_pump set_vent test_alarm water_plan"
    missing = set(wanted.split()) - set(listed)
    assert not missing, f"missing {missing}"
    vent = listed["set_vent"]["inputSchema"]
    same(list(vent["properties"]), ["percent"])  # the Context is no argument
    same(vent["required"], ["percent"])
    percent = vent["properties"]["percent"]
    same([percent["type"], percent["minimum"], percent["maximum"]], ["integer", 0, 100])
    same(
        listed["read_sensor"]["inputSchema"]["properties"]["name"]["enum"],
        ["temperature", "humidity", "soil", "light"],
    )
    same(
        listed["set_lamp"]["inputSchema"]["properties"]["color"]["enum"],
        ["white", "red", "blue"],
    )
    assert "lamp" in listed["set_lamp"]["description"], listed["set_lamp"]
    if revision >= "2025-03-26":
        same(listed["read_sensor"]["annotations"]["readOnlyHint"], True)
    output = listed["read_sensor"].get("outputSchema")
    if revision < STRUCTURED:
        assert output is None, "outputSchema before 2025-06-18"
    else:
        same(sorted(output["properties"]), ["sensor", "unit", "value"])
        plan = listed["water_plan"]["outputSchema"]
        same(plan["type"], "array" if revision >= MODERN else "object")


def soil(record: Record, revision: str) -> None:
    """A typed reading."""
    value = data(record, revision)
    same([value["sensor"], value["unit"]], ["soil", "%"])
    assert 0 <= value["value"] <= 100, value


def plan(record: Record, revision: str) -> None:
    """A list as a structured result."""
    value = data(record, revision, wrapped=True)
    same([day["day"] for day in value], [1, 2])


def lamp(record: Record, revision: str) -> None:
    """An Enum there and back."""
    same(data(record, revision), {"on": True, "color": "red"})


def vent(percent: int) -> Check:
    """A check: the vent is where it should be."""

    def check(record: Record, revision: str) -> None:
        if "asked" in record or percent != 95:
            same(data(record, revision)["percent"], percent)
        if percent == 95:
            same(len(record["asked"]), 1)
            assert "95" in record["asked"][0]["message"], record["asked"]

    return check


def declined(record: Record, revision: str) -> None:
    """No consent: nothing moved."""
    same(data(record, revision), {"percent": 95, "changed": False})


def pump(record: Record, revision: str) -> None:
    """A result after progress."""
    same(data(record, revision)["seconds"], 1.2)
    steps = record["progress"]
    assert len(steps) >= 2, steps
    values = [step["progress"] for step in steps]
    assert values == sorted(set(values)), f"progress must grow: {values}"
    same(steps[0]["total"], 1.2)
    message = steps[0].get("message")
    same(message, "pump is running" if revision >= "2025-03-26" else None)


def cancelled(record: Record, revision: str) -> None:
    """The client gave up; the SDK says so in its own words."""
    assert "result" not in record and "error" in record, record
    assert record["progress"], "cancelled before it had begun"


def resources(record: Record, revision: str) -> None:
    """Static resources."""
    listed = {one["uri"]: one for one in record["result"]["resources"]}
    wanted = {f"{SENSOR}temperature", "greenhouse://manual", "greenhouse://actuators"}
    assert wanted <= set(listed), listed
    same(listed[f"{SENSOR}temperature"]["mimeType"], "application/json")


def templates(record: Record, revision: str) -> None:
    """Templates are listed apart."""
    listed = [one["uriTemplate"] for one in record["result"]["resourceTemplates"]]
    same(listed, [SENSOR + "{name}"])


def reading(name: str, unit: str) -> Check:
    """A check: a sensor read as a resource."""

    def check(record: Record, revision: str) -> None:
        assert "result" in record, record
        (content,) = record["result"]["contents"]
        same([content["uri"], content["mimeType"]], [SENSOR + name, "application/json"])
        value = json.loads(content["text"])
        same([value["sensor"], value["unit"]], [name, unit])

    return check


def manual(record: Record, revision: str) -> None:
    """Plain text with its line ends."""
    (content,) = record["result"]["contents"]
    same(content["mimeType"], "text/plain")
    assert content["text"].endswith("simulated.\n"), content


def prompts(record: Record, revision: str) -> None:
    """A prompt and its arguments."""
    listed = {one["name"]: one for one in record["result"]["prompts"]}
    arguments = {one["name"]: one for one in listed["diagnose"]["arguments"]}
    same(list(arguments), ["plant", "symptom"])
    same(arguments["plant"]["required"], True)


def diagnosis(record: Record, revision: str) -> None:
    """A prompt filled in."""
    (message,) = record["result"]["messages"]
    same([message["role"], message["content"]["type"]], ["user", "text"])
    said = message["content"]["text"]
    assert "My tomato shows this: yellow leaves" in said, said


def completed(*values: str) -> Check:
    """A check: these completions."""

    def check(record: Record, revision: str) -> None:
        same(record["result"]["completion"]["values"], list(values))

    return check


def done(record: Record, revision: str) -> None:
    """Any result."""
    assert "result" in record, record


def notified(method: str, **params: Any) -> Check:
    """A check: this notification came."""

    def check(record: Record, revision: str) -> None:
        assert "result" in record, record
        got = record["result"]
        same(got["method"], method)
        for name, value in params.items():
            same(got["params"].get(name), value)

    return check


def call(key: str, name: str, check: Check, need: str = "", /, **more: Any) -> Step:
    """A step that calls a tool: `answer`, `cancel` and `log` are for the driver."""
    own = {k: more.pop(k) for k in ("answer", "cancel", "log") if k in more}
    return Step(key, "call", {"name": name, "arguments": more, **own}, check, need)


GREENHOUSE = [
    Step("connect", "connect", {}, connected),
    Step("ping", "ping", {}, done, "ping"),
    Step("tools", "tools", {}, tools),
    call("soil", "read_sensor", soil, name="soil"),
    call("plan", "water_plan", plan, days=2),
    call("lamp", "set_lamp", lamp, on=True, color="red"),
    call("alarm", "test_alarm", failed("Alarm test")),
    call("too wide", "set_vent", failed("percent", "100", "250"), percent=250),
    call("not one", "read_sensor", failed("name", "temperature"), name="noise"),
    call("unknown", "no_such_tool", refused(-32602)),
    call("vent", "set_vent", vent(30), percent=30),
    call("consent", "set_vent", vent(95), "elicit", percent=95, answer="accept"),
    call("mute", "set_vent", failed("client"), "!elicit", percent=95),
    call("refusal", "set_vent", declined, "elicit", percent=85, answer="decline"),
    call("pump", "set_pump", pump, "progress", seconds=1.2),
    call("stop", "set_pump", cancelled, "cancel", seconds=30, cancel=True),
    call("pump again", "set_pump", done, "cancel", seconds=0.2),
    Step("resources", "resources", {}, resources),
    Step("templates", "templates", {}, templates, "templates"),
    Step("air", "read", {"uri": SENSOR + "temperature"}, reading("temperature", "Cel")),
    Step("light", "read", {"uri": SENSOR + "light"}, reading("light", "lx")),
    Step("manual", "read", {"uri": "greenhouse://manual"}, manual),
    Step("nowhere", "read", {"uri": SENSOR + "noise"}, refused(-32002, -32602)),
    Step("prompts", "prompts", {}, prompts),
    Step(
        "diagnose",
        "prompt",
        {
            "name": "diagnose",
            "arguments": {"plant": "tomato", "symptom": "yellow leaves"},
        },
        diagnosis,
    ),
    Step(
        "plants",
        "complete",
        {
            "ref": {"type": "ref/prompt", "name": "diagnose"},
            "name": "plant",
            "value": "t",
        },
        completed("tomato"),
        "complete",
    ),
    Step(
        "sensors",
        "complete",
        {
            "ref": {"type": "ref/resource", "uri": SENSOR + "{name}"},
            "name": "name",
            "value": "s",
        },
        completed("soil"),
        "complete",
    ),
    Step(
        "subscribe", "subscribe", {"uris": [SENSOR + "temperature"]}, done, "subscribe"
    ),
    Step(
        "updated",
        "until",
        {"method": "notifications/resources/updated"},
        notified("notifications/resources/updated", uri=SENSOR + "temperature"),
        "subscribe",
    ),
]


def talked(record: Record, revision: str) -> None:
    """Log messages that belong to the call."""
    same(text(record), "talked")
    logged = [[one["level"], one["data"]] for one in record["log"]]
    same(logged, [["info", "a first word"], ["warning", {"fan": "loud"}]])


def surveyed(record: Record, revision: str) -> None:
    """A form with every primitive type, filled in by the driver."""
    value = data(record, revision)
    same(value["action"], "accept")
    wanted = {"plant": "Ada", "beds": 1, "mulch": True, "season": "spring"}
    same({key: value["content"][key] for key in wanted}, wanted)


def poetry(record: Record, revision: str) -> None:
    """The driver's model wrote."""
    same(text(record), "Basil sleeps.")


def roots(record: Record, revision: str) -> None:
    """The driver's root."""
    same(data(record, revision, wrapped=True), ["file:///srv/beds"])


def asked_twice(record: Record, revision: str) -> None:
    """Two questions in one call."""
    same(text(record), "True True")
    same([one["message"] for one in record["asked"]], ["Really?", "Really really?"])


def album(record: Record, revision: str) -> None:
    """Every content type; what a revision lacks comes as something that it has."""
    blocks = record["result"]["content"]
    kinds = [block["type"] for block in blocks]
    assert kinds[:2] == ["text", "image"] and kinds[4] == "resource", kinds
    same(blocks[0]["text"], "größe ☃ \u2028 \U0001f331")
    audio, link = kinds[2], kinds[3]
    assert (audio == "audio") == (revision >= "2025-03-26"), kinds
    assert (link == "resource_link") == (revision >= STRUCTURED), kinds


def watered(record: Record, revision: str) -> None:
    """An argument that a modern client repeats in a header."""
    same(text(record), "1.0 for Größe ☃")


def with_fan(record: Record, revision: str) -> None:
    """The list after a change."""
    names = [tool["name"] for tool in record["result"]["tools"]]
    assert "fan" in names, names


EXTRA = [
    Step("connect", "connect", {"log": "info"}, connected),
    Step("level", "level", {"level": "info"}, done, "level"),
    Step("tools", "tools", {}, done),
    call("talk", "talk", talked, "log", log="info"),
    call("survey", "survey", surveyed, "elicit", answer="accept"),
    call("twice", "twice", asked_twice, "elicit", answer="accept"),
    call("poem", "poem", poetry, "sample"),
    call("where", "where", roots, "roots"),
    call("album", "album", album),
    call("water", "water", watered, bed="Größe ☃"),
    Step("subscribe", "subscribe", {"uris": []}, done, "changes"),
    call("plug in", "plug_in", done),
    *[
        Step(
            f"{kind} changed",
            "until",
            {"method": f"notifications/{kind}/list_changed"},
            notified(f"notifications/{kind}/list_changed"),
            "changes",
        )
        for kind in ("tools", "resources", "prompts")
    ],
    Step("tools again", "tools", {}, with_fan),
    call("fan", "fan", done, speed=3),
]


def board(record: Record, revision: str) -> None:
    """Every reading of this machine, by tool and by resource."""
    swept = record["result"]
    assert {"load", "memory", "uptime"} <= set(swept["tools"]), list(swept["tools"])
    assert len(swept["tools"]) == len(swept["resources"]), swept.keys()
    for name, result in swept["tools"].items():
        assert not result.get("isError"), (name, result)
        value = json.loads(result["content"][0]["text"])
        (content,) = swept["resources"][f"board://{name}"]["contents"]
        same(type(json.loads(content["text"])).__name__, type(value).__name__)
        if revision >= STRUCTURED:
            assert "structuredContent" in result, (name, result)


BOARD = [
    Step("connect", "connect", {}, done),
    Step("tools", "tools", {}, done),
    Step("sweep", "sweep", {}, board),
]

APPS: dict[str, tuple[str, list[Step]]] = {
    "greenhouse": ("examples/greenhouse.py", GREENHOUSE),
    "extra": ("tests/interop/extra.py", EXTRA),
    "board": ("examples/board.py", BOARD),
}


def steps(
    app: str, revision: str, lacks: frozenset[str], only: frozenset[str]
) -> list[Step]:
    """The steps for a client: what it can do, or the few that it is limited to."""
    if revision >= MODERN:
        lacks |= {"ping", "level"}  # gone from the protocol

    def fits(step: Step) -> bool:
        if step.need.startswith("!"):
            return step.need[1:] in lacks
        return step.need not in lacks

    plan = [step for step in APPS[app][1] if fits(step)]
    return [step for step in plan if not only or step.key in only]


def verdicts(plan: list[Step], records: dict[str, Record], revision: str) -> list[str]:
    """What is wrong with the records of one client; nothing when all is well."""
    wrong = []
    for step in plan:
        record = records.get(step.key)
        if record is None:
            wrong.append(f"{step.key}: the driver did not get there")
            continue
        try:
            step.check(record, revision)
        except (AssertionError, KeyError, TypeError, ValueError) as error:
            got = json.dumps(record)[:600]
            wrong.append(f"{step.key}: {type(error).__name__} {error}; got {got}")
    return wrong
