"""The examples do what they say: on fixture trees, in-process, over pipes and HTTP."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
EXAMPLES = os.path.join(ROOT, "examples")
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
}
LIMIT = 20.0  # seconds until a test is given up

PROC = {
    "proc/loadavg": "0.25 1.50 3.00 2/345 6789\n",
    "proc/uptime": "12345.67 23456.78\n",
    "proc/meminfo": "MemTotal:  1000 kB\nMemFree: 100 kB\nMemAvailable:  400 kB\n"
    "SwapTotal: 0 kB\nSwapFree: 0 kB\nHugePages_Total:       0\n",
    "proc/mounts": "proc /proc proc rw 0 0\n"
    "/dev/root / ext4 rw 0 0\n"
    "/dev/root /bind ext4 rw 0 0\n"
    "/dev/sda1 /mnt/usb\\040stick vfat rw 0 0\n"
    "/dev/sdb1 /gone ext4 rw 0 0\n"
    "/dev/loop0 /snap squashfs ro 0 0\n"
    "nas:/share /nfs nfs rw 0 0\n",
    "mnt/usb stick/file": "",
    "proc/net/dev": "Inter-|   Receive                            |  Transmit\n"
    " face |bytes    packets errs drop fifo frame compressed multicast|bytes ...\n"
    "    lo:    100      2    0    0    0     0          0         0     100      2"
    "    0    0    0     0       0          0\n"
    "wlan0:9038279     239    1    0    0     0          0         0    15771    187"
    "    3    0    0     0       0          0\n",
}
THERMAL = {
    "sys/class/thermal/thermal_zone0/type": "cpu-thermal\n",
    "sys/class/thermal/thermal_zone0/temp": "48312\n",
    "sys/class/thermal/thermal_zone10/type": "acpitz\n",
    "sys/class/thermal/thermal_zone10/temp": "-274000\n",  # "no value"
    "sys/class/thermal/thermal_zone2/type": "acpitz\n",
    "sys/class/thermal/thermal_zone2/temp": "27800\n",
    "sys/class/thermal/cooling_device0/type": "fan\n",
    "sys/class/hwmon/hwmon0/name": "cpu_thermal\n",  # thermal_zone0 once more
    "sys/class/hwmon/hwmon0/temp1_input": "48312\n",
    "sys/class/hwmon/hwmon1/name": "nvme\n",
    "sys/class/hwmon/hwmon1/temp1_input": "31850\n",
    "sys/class/hwmon/hwmon1/temp1_label": "Composite\n",
    "sys/class/hwmon/hwmon1/temp2_input": "",  # reads, but gives nothing
    "sys/class/hwmon/hwmon1/temp3_input/x": "",  # cannot be read
    "sys/class/hwmon/hwmon1/temp4_input": "-5000\n",
    "sys/class/hwmon/hwmon2/temp1_input": "1\n",  # a chip without a name
}


def load(name: str):
    """A fresh copy of an example."""
    path = os.path.join(EXAMPLES, name + ".py")
    spec = importlib.util.spec_from_file_location("example_" + name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where annotations are looked up
    spec.loader.exec_module(module)
    return module


def request(number, method, **params):
    params["_meta"] = {**META, **params.get("_meta", {})}
    message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
    return json.dumps(message).encode() + b"\n"


class Stream:
    """A client on a byte stream to a server in this process."""

    def __init__(self, server) -> None:
        self.server = server
        self.count = 0
        self.seen = []  # notifications, and requests of the server

    async def __aenter__(self):
        ours, theirs = socket.socketpair()
        self.reader, self.writer = await asyncio.open_connection(sock=ours)
        reader, writer = await asyncio.open_connection(sock=theirs)
        self.task = asyncio.ensure_future(self.server.serve(reader, writer))
        return self

    async def __aexit__(self, *error):
        self.writer.close()
        await asyncio.wait_for(self.task, LIMIT)
        await self.writer.wait_closed()

    def start(self, method, **params) -> int:
        self.count += 1
        self.writer.write(request(self.count, method, **params))
        return self.count

    def send(self, **message) -> None:
        self.writer.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def until(self, wanted):
        """The next message that `wanted` is true for; others are kept in seen."""
        while True:
            line = await asyncio.wait_for(self.reader.readline(), LIMIT)
            message = json.loads(line)
            if wanted(message):
                return message
            self.seen.append(message)

    async def result(self, number):
        reply = await self.until(lambda m: m.get("id") == number and "method" not in m)
        return reply.get("result", reply)

    async def ask(self, method, **params):
        return await self.result(self.start(method, **params))

    async def tool(self, name, **arguments):
        return await self.ask("tools/call", name=name, arguments=arguments)

    async def read(self, uri):
        result = await self.ask("resources/read", uri=uri)
        return json.loads(result["contents"][0]["text"])


class TreeCase(unittest.TestCase):
    def tree(self, *parts: dict) -> str:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        for files in parts:
            for path, text in files.items():
                self.write(folder.name, path, text)
        return folder.name

    def write(self, root: str, path: str, text: str) -> None:
        full = os.path.join(root, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full + "~", "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(full + "~", full)


class BoardTest(TreeCase):
    def values(self, board, tool):
        result = board.call(tool)
        self.assertFalse(result.get("isError"), result)
        return json.loads(result["content"][0]["text"])

    def test_readings_of_a_fixture_tree(self) -> None:
        board = load("board").build(self.tree(PROC, THERMAL))
        wanted = {
            "temperatures": [
                {"sensor": "cpu-thermal", "celsius": 48.312},
                {"sensor": "acpitz", "celsius": 27.8},
                {"sensor": "nvme Composite", "celsius": 31.85},
                {"sensor": "nvme temp4", "celsius": -5.0},
            ],
            "load": {"one_minute": 0.25, "five_minutes": 1.5, "fifteen_minutes": 3.0},
            "uptime": {"seconds": 12345.67},
            "memory": {
                "total": 1024000,
                "available": 409600,
                "swap_total": 0,
                "swap_free": 0,
            },
        }
        for tool, value in wanted.items():
            with self.subTest(tool):
                self.assertEqual(self.values(board, tool), value)
        wlan = self.values(board, "network")[1]
        self.assertEqual(
            wlan,
            {
                "name": "wlan0",
                "received_bytes": 9038279,
                "received_packets": 239,
                "received_errors": 1,
                "sent_bytes": 15771,
                "sent_packets": 187,
                "sent_errors": 3,
            },
        )
        disks = self.values(board, "disks")
        mounts = [(disk["device"], disk["mount"], disk["kind"]) for disk in disks]
        self.assertEqual(
            mounts,
            [
                ("/dev/root", "/", "ext4"),
                ("/dev/sda1", "/mnt/usb stick", "vfat"),
            ],
        )
        self.assertTrue(all(0 < d["available"] <= d["total"] for d in disks))

    def test_a_board_without_sensors(self) -> None:
        """What the machine lacks is absent, not faked."""
        cases = [
            ({}, []),
            ({"proc/uptime": "1.00 2.00\n"}, ["uptime"]),
            (PROC, ["load", "memory", "uptime", "disks", "network"]),
            ({"proc/meminfo": "nonsense\n", "proc/loadavg": ""}, []),
            (
                {
                    "sys/class/thermal/thermal_zone0/type": "cpu",
                    "sys/class/thermal/thermal_zone0/temp": "",
                },
                [],
            ),
        ]
        for files, names in cases:
            with self.subTest(names=names, files=list(files)):
                server = load("board").build(self.tree(files))
                tools, resources = asyncio.run(self.offered(server))
                self.assertEqual([tool["name"] for tool in tools], names)
                uris = [resource["uri"] for resource in resources]
                self.assertEqual(uris, [f"board://{name}" for name in names])
                for tool in tools:
                    self.assertIs(tool["annotations"]["readOnlyHint"], True)

    async def offered(self, server):
        async with Stream(server) as client:
            tools = await client.ask("tools/list")
            resources = await client.ask("resources/list")
        return tools.get("tools", []), resources.get("resources", [])

    def test_memory_that_an_old_kernel_reports(self) -> None:
        files = {"proc/meminfo": "MemTotal: 2 kB\nMemFree: 1 kB\n"}
        board = load("board").build(self.tree(files))
        self.assertEqual(self.values(board, "memory"), {"total": 2048})

    def test_a_sensor_that_goes_away(self) -> None:
        """An unplugged sensor gives no value; the machine's others still do."""
        root = self.tree(THERMAL)
        board = load("board").build(root)
        os.remove(os.path.join(root, "sys/class/thermal/thermal_zone0/temp"))
        names = [one["sensor"] for one in self.values(board, "temperatures")]
        self.assertEqual(names, ["acpitz", "nvme Composite", "nvme temp4"])

    def test_a_change_reaches_a_subscriber(self) -> None:
        """RES-05, SUB-01: the load changes, who listens is told and reads it."""
        root = self.tree(PROC)
        server = load("board").build(root, interval=0.01)

        async def scenario():
            async with Stream(server) as client:
                client.start(
                    "subscriptions/listen",
                    notifications={"resourceSubscriptions": ["board://load"]},
                )
                await client.until(lambda m: "acknowledged" in m.get("method", ""))
                self.write(root, "proc/loadavg", "9.00 8.00 7.00 1/1 1\n")
                updated = await client.until(lambda m: "updated" in m.get("method", ""))
                return updated["params"]["uri"], await client.read("board://load")

        uri, value = asyncio.run(scenario())
        self.assertEqual(uri, "board://load")
        self.assertEqual(value["one_minute"], 9.0)

    def test_no_handler_needs_asyncio(self) -> None:
        """The stdio engine stays without a loop for hello and board."""
        code = (
            "import sys, runpy\n"
            "for name in ('hello', 'board'):\n"
            "    runpy.run_path(name + '.py')\n"
            "    if 'asyncio' in sys.modules: sys.exit(name)\n"
        )
        env = {**os.environ, "PYTHONPATH": ROOT}
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, cwd=EXAMPLES, env=env, timeout=LIMIT)
        self.assertEqual(done.returncode, 0)


class HelloTest(unittest.TestCase):
    def test_hello_is_short(self) -> None:
        with open(os.path.join(EXAMPLES, "hello.py"), encoding="utf-8") as file:
            self.assertLess(len(file.readlines()), 15)

    def test_hello_over_stdio(self) -> None:
        """STD-01, STD-06: one line for one request, and the end at EOF."""
        lines = [
            request(1, "tools/list"),
            request(2, "tools/call", name="greet", arguments={"name": "Ada"}),
            request(3, "tools/call", name="greet"),
            request(4, "tools/call", name="greet", arguments={"name": 7}),
        ]
        command = [sys.executable, "-m", "tinymcp", "run", "examples/hello.py"]
        done = subprocess.run(
            command,
            cwd=ROOT,
            input=b"".join(lines),
            capture_output=True,
            timeout=LIMIT,
        )
        replies = {}
        for line in done.stdout.splitlines():
            reply = json.loads(line)
            replies[reply["id"]] = reply["result"]
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(replies[1]["tools"][0]["name"], "greet")
        self.assertEqual(replies[2]["content"][0]["text"], "Hello, Ada!")
        self.assertEqual(replies[3]["content"][0]["text"], "Hello, world!")
        self.assertTrue(replies[4]["isError"])


class GreenhouseModelTest(unittest.TestCase):
    """The simulation follows its clock and nothing else."""

    def setUp(self) -> None:
        self.now = 1000.0
        self.house = load("greenhouse").Greenhouse(lambda: self.now)

    def after(self, seconds, sensor):
        self.now += seconds
        return self.house.read(sensor).value

    def test_same_moves_same_values(self) -> None:
        other = load("greenhouse").Greenhouse(lambda: self.now)
        for house in (self.house, other):
            house.move(vent=70, lamp=True)
        self.now += 123.4
        for sensor in ("temperature", "humidity", "soil", "light"):
            mine, others = self.house.read(sensor), other.read(sensor)
            self.assertEqual(mine.value, others.value)

    def test_actuators_act(self) -> None:
        self.house.move(vent=0)
        warm = self.after(60, "temperature")
        self.house.move(vent=100)
        self.assertLess(self.after(60, "temperature"), warm - 3)
        dry = self.after(0, "soil")
        self.house.move(pump=True)
        self.assertGreater(self.after(10, "soil"), dry + 10)
        self.house.move(pump=False)
        self.assertLess(self.after(100, "soil"), self.after(-100, "soil") + 1)
        light = self.after(0, "light")
        self.house.move(lamp=True)
        self.assertEqual(self.after(0, "light"), light)

    def test_any_pause_is_survived(self) -> None:
        for pause in (0.0, 1e-6, 3600.0, 1e8):
            values = [self.after(pause, s) for s in ("temperature", "soil", "light")]
            self.assertTrue(-10 < values[0] < 40 and 0 <= values[1] <= 100, values)
        self.house.move(pump=True)
        self.assertEqual(self.after(1e6, "soil"), 100.0)


class GreenhouseTest(unittest.TestCase):
    def setUp(self) -> None:
        self.example = load("greenhouse")
        self.server = self.example.server

    def structured(self, name, arguments=None, **options):
        result = self.server.call(name, arguments, **options)
        self.assertFalse(result.get("isError"), result)
        return result["structuredContent"]

    def test_tools_in_process(self) -> None:
        reading = self.structured("read_sensor", {"name": "soil"})
        self.assertEqual(reading["sensor"], "soil")
        self.assertEqual(reading["unit"], "%")
        self.assertIsInstance(reading["value"], float)
        lamp = self.structured("set_lamp", {"on": True, "color": "blue"})
        self.assertEqual(lamp, {"on": True, "color": "blue"})
        watered = self.structured("set_pump", {"seconds": 0.1})
        self.assertEqual(watered["seconds"], 0.1)
        self.assertIs(self.example.greenhouse.actuators()["pump"], False)
        text = self.server.call("water_plan", {"days": 2})["content"][0]["text"]
        plan = json.loads(text)
        self.assertEqual([day["day"] for day in plan], [1, 2])
        alarm = self.server.call("test_alarm")
        self.assertTrue(alarm["isError"])
        self.assertIn("simulated", alarm["content"][0]["text"])

    def test_wide_vent_asks(self) -> None:
        """ELI-02: only an accept with a yes opens the vent wide."""
        cases = [
            ({"percent": 80}, None, {"percent": 80, "changed": True}),
            ({"percent": 80}, None, {"percent": 80, "changed": False}),
            ({"percent": 90}, {"1": False}, {"percent": 80, "changed": False}),
            ({"percent": 90}, {"1": True}, {"percent": 90, "changed": True}),
        ]
        for arguments, answers, wanted in cases:
            with self.subTest(arguments=arguments, answers=answers):
                found = self.structured("set_vent", arguments, answers=answers)
                self.assertEqual(found, wanted)

    def test_wrong_arguments_are_told(self) -> None:
        """TOL-05: what was wanted and what came."""
        cases = [
            ("set_vent", {"percent": 101}, ("percent", "100", "101")),
            ("set_vent", {"percent": "50"}, ("percent", "integer")),
            ("set_vent", {}, ("percent",)),
            ("set_pump", {"seconds": 0}, ("seconds", "0.1")),
            ("read_sensor", {"name": "wind"}, ("name", "temperature", "wind")),
            ("set_lamp", {"on": True, "color": "pink"}, ("color", "white", "pink")),
            ("water_plan", {"days": 15}, ("days", "14")),
        ]
        for tool, arguments, words in cases:
            with self.subTest(tool=tool, arguments=arguments):
                result = self.server.call(tool, arguments)
                self.assertTrue(result["isError"])
                for word in words:
                    self.assertIn(word, result["content"][0]["text"])

    def test_resources_prompt_and_completions(self) -> None:
        async def scenario():
            async with Stream(self.server) as client:
                reads = {}
                for uri in (
                    "sensor://greenhouse/temperature",
                    "sensor://greenhouse/humidity",
                    "greenhouse://actuators",
                ):
                    reads[uri] = await client.read(uri)
                manual = await client.ask("resources/read", uri="greenhouse://manual")
                missing = await client.ask(
                    "resources/read", uri="sensor://greenhouse/wind"
                )
                prompt = await client.ask(
                    "prompts/get",
                    name="diagnose",
                    arguments={"plant": "basil", "symptom": "yellow leaves"},
                )
                plants = await client.ask(
                    "completion/complete",
                    ref={"type": "ref/prompt", "name": "diagnose"},
                    argument={"name": "plant", "value": "b"},
                )
                names = await client.ask(
                    "completion/complete",
                    ref={
                        "type": "ref/resource",
                        "uri": "sensor://greenhouse/{name}",
                    },
                    argument={"name": "name", "value": ""},
                )
                return reads, manual, missing, prompt, plants, names

        reads, manual, missing, prompt, plants, names = asyncio.run(scenario())
        self.assertEqual(reads["sensor://greenhouse/temperature"]["unit"], "Cel")
        self.assertEqual(reads["sensor://greenhouse/humidity"]["sensor"], "humidity")
        self.assertEqual(reads["greenhouse://actuators"]["vent"], 20)
        self.assertIn("simulated", manual["contents"][0]["text"])
        self.assertEqual(missing["error"]["code"], -32602)
        self.assertIn("yellow leaves", prompt["messages"][0]["content"]["text"])
        self.assertEqual(plants["completion"]["values"], ["basil"])
        self.assertEqual(
            names["completion"]["values"], ["temperature", "humidity", "soil", "light"]
        )

    def test_a_cancelled_pump_stops(self) -> None:
        """CAN-01, PRG-01: progress comes, the cancel ends the water, no reply."""

        async def scenario():
            async with Stream(self.server) as client:
                number = client.start(
                    "tools/call",
                    name="set_pump",
                    arguments={"seconds": 30},
                    _meta={"progressToken": "p"},
                )
                progress = await client.until(lambda m: "progress" in str(m))
                running = await client.read("greenhouse://actuators")
                client.send(
                    method="notifications/cancelled", params={"requestId": number}
                )
                while (await client.read("greenhouse://actuators"))["pump"]:
                    pass  # bounded by LIMIT of each read and by the 30 s of the pump
                return number, progress, running, client.seen

        number, progress, running, seen = asyncio.run(scenario())
        self.assertEqual(progress["params"]["progressToken"], "p")
        self.assertEqual(progress["params"]["total"], 30)
        self.assertIs(running["pump"], True)
        self.assertNotIn(number, [message.get("id") for message in seen])

    def test_questions_in_both_eras(self) -> None:
        """MRT-04, HTL-09: one handler asks a modern and a legacy client."""

        async def modern():
            async with Stream(self.server) as client:
                wide = {"name": "set_vent", "arguments": {"percent": 95}}
                asked = await client.ask("tools/call", **wide)
                key = next(iter(asked["inputRequests"]))
                answer = {"action": "accept", "content": {"confirm": True}}
                return await client.ask(
                    "tools/call",
                    inputResponses={key: answer},
                    requestState=asked["requestState"],
                    **wide,
                )

        async def legacy():
            async with Stream(self.server) as client:
                params = {
                    "protocolVersion": "2025-06-18",
                    "capabilities": {"elicitation": {}},
                    "clientInfo": {"name": "test", "version": "0"},
                }
                client.send(id=1, method="initialize", params=params)
                await client.result(1)
                client.send(method="notifications/initialized")
                params = {"name": "set_vent", "arguments": {"percent": 100}}
                client.send(id=2, method="tools/call", params=params)
                asked = await client.until(lambda m: "method" in m)
                client.send(id=asked["id"], result={"action": "decline"})
                return asked["method"], await client.result(2)

        done = asyncio.run(modern())
        self.assertEqual(done["structuredContent"], {"percent": 95, "changed": True})
        method, done = asyncio.run(legacy())
        self.assertEqual(method, "elicitation/create")
        self.assertEqual(done["structuredContent"], {"percent": 95, "changed": False})

    def test_one_round_over_http(self) -> None:
        """HTM-01: a sensor value over HTTP."""
        place = []
        here = threading.Event()

        async def scenario():
            serving = asyncio.ensure_future(
                self.server.serve_http(
                    port=0, ready=lambda hosts: (place.extend(hosts), here.set())
                )
            )
            loop = asyncio.get_running_loop()
            try:
                return await loop.run_in_executor(None, self.http_round, place, here)
            finally:
                serving.cancel()
                await asyncio.gather(serving, return_exceptions=True)

        status, reply = asyncio.run(scenario())
        self.assertEqual(status, 200)
        self.assertEqual(reply["result"]["structuredContent"]["sensor"], "light")

    def http_round(self, place, here):
        from http.client import HTTPConnection

        self.assertTrue(here.wait(LIMIT))
        arguments = {"name": "light"}
        body = request(1, "tools/call", name="read_sensor", arguments=arguments)
        headers = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": "2026-07-28",
            "Mcp-Method": "tools/call",
            "Mcp-Name": "read_sensor",
        }
        connection = HTTPConnection(*place[0][:2], timeout=LIMIT)
        try:
            connection.request("POST", "/mcp", body, headers)
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()


if __name__ == "__main__":
    unittest.main()
