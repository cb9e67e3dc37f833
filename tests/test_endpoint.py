"""Section 10: the HTTP endpoint, with raw sockets against a server in this process."""

import asyncio
import contextlib
import json
import socket
import sys
import threading
import time
import unittest

import tinymcp
from tinymcp import Context, InputRequired, Limits, MCPError, Server

rt = sys.modules[tinymcp.Server.__module__]

E, D = "2026-07-28", "2025-11-25"
META = {
    "io.modelcontextprotocol/protocolVersion": E,
    "io.modelcontextprotocol/clientCapabilities": {},
}
SSE_ONLY = {"Accept": "text/event-stream"}
PATIENCE = 10.0  # seconds until a test that waits for something has failed


def soon(condition, what="condition"):
    """Wait until something that another thread does has happened."""
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"{what} did not come true in {PATIENCE} s")
        time.sleep(0.005)


class Reply:
    def __init__(self, status, headers, body=b""):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)


class Client:
    """One connection of a blocking client that knows just enough HTTP."""

    def __init__(self, port, host="127.0.0.1"):
        self.port = port
        self.socket = socket.create_connection((host, port), PATIENCE)
        self.file = self.socket.makefile("rb")

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def close(self):
        self.file.close()
        self.socket.close()

    def reset_at_close(self):
        linger = (1).to_bytes(4, "little") + bytes(4)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)

    def send(self, data):
        self.socket.sendall(data)

    def head(self):
        """A reply without its body."""
        line = self.file.readline()
        if not line:
            raise EOFError("the server closed")
        headers = {}
        while True:
            field = self.file.readline().strip()
            if not field:
                break
            name, _, value = field.decode().partition(":")
            headers[name.lower()] = value.strip()
        return Reply(int(line.split()[1]), headers)

    def reply(self, bodiless=False):
        reply = self.head()
        if "content-length" in reply.headers and not bodiless:
            reply.body = self.file.read(int(reply.headers["content-length"]))
        return reply

    def chunk(self):
        """The next chunk of a stream; b"" is its end."""
        size = int(self.file.readline(), 16)
        data = self.file.read(size)
        self.file.readline()
        return data

    def events(self):
        """(id, data) of each event until the stream ends; comments are passed over."""
        while True:
            data = self.chunk()
            if not data:
                return
            fields = dict(
                line.partition(b": ")[::2] for line in data.splitlines() if line
            )
            if b"data" in fields:
                yield fields.get(b"id", b"").decode(), fields[b"data"]

    def messages(self):
        return [json.loads(data) for _, data in self.events() if data]

    def closed(self):
        """The server has closed: waits for it."""
        with contextlib.suppress(ConnectionError):
            return self.file.read(1) == b""
        return True


def request(method="POST", body=b"", headers=(), target="/mcp", host="localhost"):
    lines = (
        [f"{method} {target} HTTP/1.1", f"Host: {host}"]
        if host
        else [f"{method} {target} HTTP/1.1"]
    )
    names = {name.lower() for name, _ in headers}
    if body and not names & {"content-length", "transfer-encoding"}:
        lines.append(f"Content-Length: {len(body)}")
    if body and "content-type" not in names:
        lines.append("Content-Type: application/json")
    lines += [f"{name}: {value}" for name, value in headers if value is not None]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def message(method, params=None, id=1):
    found = {"jsonrpc": "2.0", "method": method}
    if id is not None:
        found["id"] = id
    if params is not None:
        found["params"] = params
    return found


def modern(method, params=None, id=1, meta=None, headers=None, **capabilities):
    """A whole modern request; headers replaces single ones, None removes one."""
    params = dict(params or {})
    params["_meta"] = {
        **META,
        "io.modelcontextprotocol/clientCapabilities": capabilities,
        **(meta or {}),
    }
    own = {"MCP-Protocol-Version": E, "Mcp-Method": method}
    own["Mcp-Name"] = params.get("name", params.get("uri"))
    own.update(headers or {})
    body = json.dumps(message(method, params, id)).encode()
    return request(body=body, headers=list(own.items()))


def legacy(session, method, params=None, id=1, headers=()):
    body = json.dumps(message(method, params, id)).encode()
    return request(body=body, headers=[("Mcp-Session-Id", session), *headers])


def initialize(revision=D, **capabilities):
    params = {"protocolVersion": revision, "capabilities": capabilities}
    params["clientInfo"] = {"name": "t", "version": "0"}
    return request(body=json.dumps(message("initialize", params, 0)).encode())


def fixture(**options):
    """A server with one of each, and events that let a test steer its handlers."""
    server = Server(
        "endpoint", "1", log=lambda level, text: logged.append(text), **options
    )
    logged = server.logged = []
    server.entered, server.proceed = threading.Event(), threading.Event()
    server.ended = []

    @server.tool(inline=True)
    def echo(text: str) -> str:
        """Echo."""
        return text

    @server.tool
    def work(ctx: Context) -> str:
        """Wait for the test."""
        server.entered.set()
        server.proceed.wait(PATIENCE)
        server.ended.append(ctx.cancelled)
        return "worked"

    @server.tool
    async def nap(ctx: Context) -> str:
        """Sleep until cancelled."""
        server.entered.set()
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            server.ended.append("cancelled")
            raise
        return "napped"

    @server.tool(inline=True)
    def steps(ctx: Context) -> str:
        """Report progress and a log line."""
        ctx.report_progress(1, 2)
        ctx.info("half")
        ctx.report_progress(2, 2)
        return "stepped"

    @server.tool(inline=True)
    def sure(ctx: Context) -> bool:
        """Ask."""
        return ctx.confirm("Sure?")

    @server.tool
    def poll(ctx: Context) -> str:
        """Let the client poll."""
        ctx.close_sse_stream()
        server.entered.set()
        server.proceed.wait(PATIENCE)
        return "polled"

    @server.tool(inline=True)
    def fails() -> str:
        """Fail on the protocol."""
        raise MCPError(-32603, "broken")

    @server.tool(inline=True)
    def explicit(ctx: Context) -> InputRequired:
        """Ask in the explicit form."""
        roots = {"method": "roots/list", "params": {}}
        return InputRequired({"roots": roots}, state="s")

    schema = {
        "type": "object",
        "properties": {
            "zone": {"type": "string", "x-mcp-header": "Zone"},
            "deep": {
                "type": "object",
                "properties": {"n": {"type": "integer", "x-mcp-header": "N"}},
            },
            "on": {"type": "boolean", "x-mcp-header": "On"},
        },
    }

    def mirrored(zone: str = "", deep: object = None, on: bool = False) -> str:
        return zone

    server.add_tool(mirrored, input_schema=schema, description="Mirror.")

    @server.resource("x://a")
    def a() -> dict:
        return {"v": 1}

    return server


class Live:
    """The server on a loop in a thread of its own."""

    def __init__(self, server=None, **options):
        self.server = server or fixture()
        self.options = options
        self.ready = threading.Event()
        self.faults = []

    def __enter__(self):
        self.thread = threading.Thread(target=lambda: asyncio.run(self.main()))
        self.thread.start()
        if not self.ready.wait(PATIENCE):
            raise AssertionError("the server did not start")
        return self

    async def main(self):
        self.loop, self.stop = asyncio.get_running_loop(), asyncio.Event()
        self.loop.set_exception_handler(
            lambda loop, context: self.faults.append(context)
        )

        def ready(names):
            self.names = names
            self.port = names[0][1]
            self.ready.set()

        options = {"host": "127.0.0.1", "port": 0, **self.options}
        await self.server.serve_http(ready=ready, stop=self.stop, **options)

    def end(self):
        self.server.proceed.set()
        with contextlib.suppress(RuntimeError):  # a test has ended it already
            self.loop.call_soon_threadsafe(self.stop.set)
        self.thread.join(PATIENCE)

    def __exit__(self, *error):
        self.end()
        assert not self.thread.is_alive(), "the server did not end"
        assert not self.faults, self.faults

    @property
    def endpoint(self):
        return self.server._loop.extra[0].__self__

    def client(self):
        return Client(self.port)

    def ask(self, data):
        with self.client() as client:
            client.send(data)
            return client.reply()

    def open(self, revision=D, **capabilities):
        """A session id."""
        reply = self.ask(initialize(revision, **capabilities))
        assert reply.status == 200, reply.body
        session = reply.headers["mcp-session-id"]
        ready = legacy(session, "notifications/initialized", None, None)
        assert self.ask(ready).status == 202
        return session

    def state(self):
        """What must not grow by refusals."""
        done = threading.Event()
        found = []

        def count():
            found.append(
                (len(self.endpoint.sessions), len(asyncio.all_tasks(self.loop)))
            )
            done.set()

        self.loop.call_soon_threadsafe(count)
        done.wait(PATIENCE)
        return (*found[0], len(self.server._hub.listeners))


class Shared(unittest.TestCase):
    """One server for the tests that leave nothing behind."""

    @classmethod
    def setUpClass(cls):
        cls.live = Live()
        cls.live.__enter__()
        cls.ask = cls.live.ask

    @classmethod
    def tearDownClass(cls):
        cls.live.__exit__()

    def check(self, data, status, code=None):
        reply = self.ask(data)
        self.assertEqual(reply.status, status, reply.body)
        if code is not None:
            self.assertEqual(reply.json["error"]["code"], code)
        return reply


class Gates(Shared):
    def test_host_on_a_loopback_bind_SEC_02(self):
        body = modern("tools/list")
        for host, status in {
            "localhost": 200,
            "LOCALHOST:1": 200,
            "127.0.0.1:8000": 200,
            "[::1]:9": 200,
            "evil.example": 421,
            "192.168.1.50": 421,
            "localhost.evil.example": 421,
            "a b": 400,
            "": 400,
        }.items():
            with self.subTest(host):
                data = body.replace(b"Host: localhost", b"Host: " + host.encode())
                self.check(data, status)

    def test_refused_host_names_the_option(self):
        data = modern("tools/list").replace(b"Host: localhost", b"Host: pi.lan:80")
        self.assertIn("--allow-host pi.lan", self.ask(data).json["error"]["message"])

    def test_foreign_origin_is_403_SEC_01(self):
        for origin, status in {
            "http://localhost:6274": 200,
            "http://127.0.0.1": 200,
            "https://evil.example": 403,
            "null": 403,
            "http://localhost.evil.example": 403,
            "file://": 403,
        }.items():
            with self.subTest(origin):
                reply = self.check(
                    modern("tools/list", headers={"Origin": origin}), status
                )
                self.assertNotIn("access-control-allow-origin", reply.headers)

    def test_paths_are_never_redirected(self):
        body = json.dumps(message("tools/list", {"_meta": META})).encode()
        fields = [("MCP-Protocol-Version", E), ("Mcp-Method", "tools/list")]
        for target, status in {
            "/mcp": 200,
            "/mcp/": 200,
            "/mcp?x=1": 200,
            "http://localhost:1/mcp": 200,
            "/%6dcp": 404,
            "/mcp/x": 404,
            "/": 404,
        }.items():
            with self.subTest(target):
                self.check(request(body=body, headers=fields, target=target), status)

    def test_content_type(self):
        for kind, status in {
            "application/json": 200,
            "application/json; charset=utf-8": 200,
            'Application/JSON;charset="UTF-8"': 200,
            "application/json ;x=1": 200,
            "application/json; charset=utf-16": 415,
            "application/jsonx": 415,
            "text/plain": 415,
            "application/x-www-form-urlencoded": 415,
            None: 415,
        }.items():
            with self.subTest(kind):
                self.check(modern("tools/list", headers={"Content-Type": kind}), status)

    def test_accept_is_read_liberally_HTM_21(self):
        for accept, status, kind in (
            (None, 200, "application/json"),
            ("*/*", 200, "application/json"),
            ("application/*, text/*;q=0.5", 200, "application/json"),
            ("text/event-stream, application/json", 200, "application/json"),
            ("APPLICATION/JSON", 200, "application/json"),
            ("text/event-stream", 200, "text/event-stream"),
            ("application/json;q=0, text/event-stream", 200, "text/event-stream"),
            ("text/html", 406, "application/json"),
            ("*/*;q=0", 406, "application/json"),
        ):
            with self.subTest(accept):
                reply = self.check(
                    modern("tools/list", headers={"Accept": accept}), status
                )
                self.assertEqual(reply.headers["content-type"], kind)

    def test_methods(self):
        for method, status in {
            "GET": 405,
            "PUT": 405,
            "PATCH": 405,
            "TRACE": 405,
            "FOO": 405,
            "OPTIONS": 405,
            "DELETE": 400,
        }.items():
            with self.subTest(method):
                reply = self.check(request(method), status)
                if status == 405:
                    self.assertIn("POST", reply.headers["allow"])

    def test_modern_get_and_delete_are_405_HTM_03(self):
        for method in ("GET", "DELETE"):
            fields = [("MCP-Protocol-Version", E), ("Mcp-Session-Id", "x")]
            self.check(request(method, headers=fields), 405)

    def test_head_has_no_body_but_right_framing(self):
        with self.live.client() as client:
            client.send(request("HEAD") + request("HEAD", target="/healthz"))
            self.assertEqual(client.reply(bodiless=True).status, 405)
            self.assertEqual(client.reply(bodiless=True).status, 200)

    def test_healthz_needs_no_host_and_no_state(self):
        reply = self.check(request(target="/healthz", method="GET", host="x.y"), 200)
        self.assertEqual(reply.json, {"status": "ok"})

    def test_refusals_leave_nothing_behind_C10(self):
        with self.live.client() as probe:
            probe.send(request("GET", target="/healthz"))
            probe.reply()
            before = self.live.state()
            bad = [
                request("GET"),
                request("OPTIONS"),
                request("DELETE"),
                modern("tools/list", headers={"Accept": "text/html"}),
                modern("tools/list", headers={"Origin": "http://evil.example"}),
                request(body=b"{"),
                request(body=b'{"jsonrpc":"2.0","id":1,"method":"initialize"}'),
                initialize("5").replace(b'"5"', b"555"),
                initialize().replace(b"Host:", b"MCP-Protocol-Version: 1.0\r\nHost:"),
            ]
            for data in bad:
                reply = self.ask(data)
                self.assertGreaterEqual(reply.status, 200)
                self.assertNotIn("mcp-session-id", reply.headers)
            soon(lambda: self.live.state() == before, "no state")


class Modern(Shared):
    def test_call_and_list(self):
        reply = self.check(
            modern("tools/call", {"name": "echo", "arguments": {"text": "é"}}), 200
        )
        self.assertEqual(reply.json["result"]["structuredContent"], "é")
        self.assertNotIn("mcp-session-id", reply.headers)

    def test_sessions_are_ignored_HTM_04(self):
        fields = {"Mcp-Session-Id": "x", "Last-Event-ID": "9"}
        reply = self.check(modern("tools/list", headers=fields), 200)
        self.assertNotIn("mcp-session-id", reply.headers)

    def test_meta_is_required_MET_01(self):
        for params in (
            {},
            {"_meta": {}},
            {"_meta": 5},
            {"_meta": {next(iter(META)): E}},
        ):
            body = json.dumps(message("tools/list", params)).encode()
            data = request(body=body, headers=[("MCP-Protocol-Version", E)])
            self.check(data, 400, -32602)

    def test_headers_mirror_the_body_HTM_05_HTM_06_HTM_07_HTM_08_HTM_10_HTM_11(self):
        call = ("tools/call", {"name": "echo", "arguments": {"text": "x"}})
        for headers in (
            {"MCP-Protocol-Version": None},
            {"MCP-Protocol-Version": D},
            {"MCP-Protocol-Version": "2027-01-01"},
            {"Mcp-Method": None},
            {"Mcp-Method": "tools/list"},
            {"Mcp-Method": "TOOLS/CALL"},
            {"Mcp-Name": None},
            {"Mcp-Name": "other"},
            {"Mcp-Name": "Echo"},
            {"Mcp-Name": "=?base64?ZWNo?="},
            {"Mcp-Name": "=?base64?!!?="},
            {"Mcp-Name": "ech\xf6"},
        ):
            with self.subTest(headers):
                data = modern(*call, id=77, headers=headers)
                reply = self.check(data, 400, -32020)
                self.assertEqual(reply.json["id"], 77)
        double = modern(*call).replace(
            b"Mcp-Name: echo", b"Mcp-Name: echo\r\nMcp-Name: echo"
        )
        self.check(double, 400, -32020)

    def test_header_names_in_any_case_and_encoded_values_HTM_09_HTM_20(self):
        call = ("tools/call", {"name": "echo", "arguments": {"text": "x"}})
        data = (
            modern(*call)
            .replace(b"Mcp-Name", b"MCP-NAME")
            .replace(b"Mcp-Method", b"mcp-method")
        )
        self.check(data, 200)
        self.check(modern(*call, headers={"Mcp-Name": "=?base64?ZWNobw==?="}), 200)
        self.check(modern(*call, headers={"Mcp-Name": "  echo  "}), 200)

    def test_mirrored_parameters_HTM_13(self):
        for arguments, headers, status in (
            ({}, {}, 200),
            ({"zone": "a"}, {"Mcp-Param-Zone": "a"}, 200),
            ({"zone": "a"}, {"Mcp-Param-Zone": "=?base64?YQ==?="}, 200),
            ({"zone": "a"}, {}, 400),
            ({"zone": "a"}, {"Mcp-Param-Zone": "b"}, 400),
            ({"zone": "a"}, {"Mcp-Param-Zone": "=?base64?Y?="}, 400),
            ({}, {"Mcp-Param-Zone": "a"}, 400),
            ({"zone": None}, {"Mcp-Param-Zone": "a"}, 400),
            ({"deep": {"n": 42}}, {"Mcp-Param-N": "42"}, 200),
            ({"deep": {"n": 42}}, {"Mcp-Param-N": "42.0"}, 200),
            ({"deep": {"n": 42}}, {"Mcp-Param-N": "43"}, 400),
            ({"deep": {"n": 42}}, {"Mcp-Param-N": "x"}, 400),
            ({"deep": 5}, {}, 200),
            ({"on": True}, {"Mcp-Param-On": "true"}, 200),
            ({"on": True}, {"Mcp-Param-On": "True"}, 400),
            ({"on": False}, {"Mcp-Param-On": "false"}, 200),
            ({"zone": ["a"]}, {}, 200),  # the checker says what is wrong
            (None, {}, 200),
            (None, {"Mcp-Param-Zone": "a"}, 400),
            ({"zone": "a, b"}, {"Mcp-Param-Zone": "a\r\nMcp-Param-Zone: b"}, 400),
        ):
            with self.subTest(arguments=arguments, headers=headers):
                params = {"name": "mirrored", "arguments": arguments}
                data = modern("tools/call", params, headers=headers)
                self.check(data, status, None if status == 200 else -32020)

    def test_unknown_version_is_32022_VER_01_ERR_04(self):
        for version in ("2027-01-01", "1900-01-01", "v999.0.0"):
            meta = {"io.modelcontextprotocol/protocolVersion": version}
            data = modern(
                "tools/list", meta=meta, headers={"MCP-Protocol-Version": version}
            )
            reply = self.check(data, 400, -32022)
            self.assertEqual(
                reply.json["error"]["data"], {"supported": [E], "requested": version}
            )

    def test_unknown_and_removed_methods_are_404_ERR_01_ERR_02(self):
        for method in (
            "nope",
            "initialize",
            "ping",
            "logging/setLevel",
            "resources/subscribe",
            "resources/unsubscribe",
        ):
            with self.subTest(method):
                reply = self.check(modern(method, id="q"), 404, -32601)
                self.assertEqual(reply.json["id"], "q")

    def test_missing_capability_is_400_MRT_02(self):
        reply = self.check(modern("tools/call", {"name": "sure"}), 400, -32021)
        needed = reply.json["error"]["data"]["requiredCapabilities"]
        self.assertEqual(needed, {"elicitation": {}})

    def test_capabilities_are_those_of_the_request_VER_09(self):
        with self.live.client() as client:
            client.send(modern("tools/call", {"name": "sure"}, elicitation={}))
            self.assertEqual(
                client.reply().json["result"]["resultType"], "input_required"
            )
            client.send(modern("tools/call", {"name": "sure"}))
            self.assertEqual(client.reply().json["error"]["code"], -32021)

    def test_a_question_over_two_requests_MRT_04(self):
        first = self.check(modern("tools/call", {"name": "sure"}, elicitation={}), 200)
        result = first.json["result"]
        params = {"name": "sure", "requestState": result["requestState"]}
        answer = {"action": "accept", "content": {"confirm": True}}
        params["inputResponses"] = dict.fromkeys(result["inputRequests"], answer)
        last = self.check(modern("tools/call", params, id=2, elicitation={}), 200)
        self.assertIs(last.json["result"]["structuredContent"], True)

    def test_notifications_are_202_and_responses_are_refused_RPC_04(self):
        data = modern("notifications/nope", id=None)
        self.assertEqual(self.check(data, 202).body, b"")
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "result": {}}).encode()
        self.check(
            request(body=body, headers=[("MCP-Protocol-Version", E)]), 400, -32600
        )
        self.check(
            request(body=b"[]", headers=[("MCP-Protocol-Version", E)]), 400, -32600
        )

    def test_bad_json_is_400_without_id_RPC_01(self):
        for body in (b"{", b"\xff", b"nope", b'{"jsonrpc":"2.0","id":NaN}'):
            reply = self.check(request(body=body), 400, -32700)
            self.assertNotIn("id", reply.json)

    def test_a_number_beyond_double_keeps_its_id(self):
        body = b'{"jsonrpc":"2.0","id":5,"method":"ping","params":{"x":1e999}}'
        self.assertEqual(self.check(request(body=body), 400, -32602).json["id"], 5)

    def test_progress_and_logs_come_on_the_stream_of_their_call_HTM_01_HTM_18_LOG_01(
        self,
    ):
        meta = {"progressToken": 0, "io.modelcontextprotocol/logLevel": "info"}
        with self.live.client() as client:
            client.send(modern("tools/call", {"name": "steps"}, meta=meta))
            head = client.head()
            self.assertEqual(head.headers["content-type"], "text/event-stream")
            self.assertEqual(head.headers["x-accel-buffering"], "no")
            self.assertEqual(head.headers["cache-control"], "no-cache")
            found = client.messages()
            methods = [m.get("method") for m in found]
            progress, log = "notifications/progress", "notifications/message"
            self.assertEqual(methods, [progress, log, progress, None])
            self.assertEqual(found[0]["params"]["progressToken"], 0)
            self.assertEqual(found[-1]["result"]["structuredContent"], "stepped")
            client.send(modern("tools/list"))  # the connection goes on
            self.assertEqual(client.reply().status, 200)

    def test_json_only_drops_notifications(self):
        data = modern(
            "tools/call",
            {"name": "steps"},
            meta={"progressToken": 1},
            headers={"Accept": "application/json"},
        )
        reply = self.check(data, 200)
        self.assertEqual(reply.headers["content-type"], "application/json")

    def test_an_error_in_an_open_stream_comes_as_an_event(self):
        data = modern(
            "tools/call", {"name": "fails"}, headers={"Accept": "text/event-stream"}
        )
        with self.live.client() as client:
            client.send(data)
            self.assertEqual(client.head().status, 200)
            self.assertEqual(client.messages()[0]["error"]["code"], -32603)
        self.check(modern("tools/call", {"name": "fails"}), 500, -32603)

    def test_http_1_0_stream_ends_with_the_connection(self):
        data = modern("tools/call", {"name": "steps"}, meta={"progressToken": 1})
        with self.live.client() as client:
            client.send(data.replace(b"HTTP/1.1", b"HTTP/1.0"))
            head = client.head()
            self.assertNotIn("transfer-encoding", head.headers)
            self.assertEqual(client.file.read().count(b"data: "), 3)

    def test_http_1_0_keep_alive_by_wish(self):
        data = modern("tools/list").replace(b"HTTP/1.1", b"HTTP/1.0")
        with self.live.client() as client:
            client.send(data.replace(b"Host:", b"Connection: keep-alive\r\nHost:"))
            client.reply()
            client.send(data)
            client.reply()
            self.assertTrue(client.closed())

    def test_pipelined_requests_are_answered_in_order(self):
        with self.live.client() as client:
            client.send(b"".join(modern("tools/list", id=i) for i in range(5)))
            self.assertEqual(
                [client.reply().json["id"] for _ in range(5)], list(range(5))
            )

    def test_byte_by_byte(self):
        with self.live.client() as client:
            data = modern("tools/call", {"name": "echo", "arguments": {"text": "𝄞"}})
            client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for index in range(len(data)):
                client.send(data[index : index + 1])
            self.assertEqual(client.reply().json["result"]["structuredContent"], "𝄞")

    def test_chunked_body(self):
        whole = modern("tools/list")
        head, _, body = whole.partition(b"\r\n\r\n")
        length = b"Content-Length: %d" % len(body)
        head = head.replace(length, b"Transfer-Encoding: chunked")
        half = len(body) // 2
        chunks = b"%x;ext=1\r\n%b\r\n%X\r\n%b\r\n0\r\nX: y\r\n\r\n" % (
            half,
            body[:half],
            len(body) - half,
            body[half:],
        )
        with self.live.client() as client:
            client.send(head + b"\r\n\r\n" + chunks + whole)
            self.assertEqual(client.reply().status, 200)
            self.assertEqual(client.reply().status, 200)

    def test_expect_100_continue_C04(self):
        head, _, body = modern("tools/list").partition(b"\r\n\r\n")
        head = head.replace(b"Host:", b"Expect: 100-continue\r\nHost:") + b"\r\n\r\n"
        with self.live.client() as client:
            client.send(head)
            self.assertEqual(client.head().status, 100)
            client.send(body)
            self.assertEqual(client.reply().status, 200)
        with self.live.client() as client:
            client.send(head.replace(b"localhost", b"evil.example"))
            self.assertEqual(client.reply().status, 421)
            self.assertTrue(client.closed())

    def test_parse_errors_close_the_connection(self):
        for data, status in (
            (b"GET / HTTP/9.9\r\nHost: x\r\n\r\n", 505),
            (b"POST /mcp HTTP/1.1\r\n\r\n", 400),
            (b"\x16\x03\x01\x02\x00\x01\x00", 400),
            (
                modern("tools/list").replace(b"Host:", b"Content-Length: 1\r\nHost:"),
                400,
            ),
            (request(headers=[("X", "y" * 20000)]), 431),
            (request(target="/" + "x" * 9000), 414),
            (request(headers=[("Content-Length", "9" * 40)]), 413),
        ):
            with self.subTest(data[:40]), self.live.client() as client:
                client.send(data + b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                self.assertEqual(client.reply().status, status)
                self.assertTrue(client.closed())


class Listening(unittest.TestCase):
    def listen(self, client, id=1, **wanted):
        client.send(modern("subscriptions/listen", {"notifications": wanted}, id=id))
        head = client.head()
        self.assertEqual(head.headers["content-type"], "text/event-stream")
        events = client.events()
        return events, json.loads(next(events)[1])

    def test_acknowledgement_tagged_changes_result_SUB_01_SUB_02_SUB_04(self):
        with Live() as live, live.client() as client:
            events, first = self.listen(
                client,
                id=0,
                toolsListChanged=True,
                resourceSubscriptions=["x://a", "x://b"],
            )
            self.assertEqual(
                first["method"], "notifications/subscriptions/acknowledged"
            )
            self.assertEqual(
                first["params"]["notifications"],
                {"toolsListChanged": True, "resourceSubscriptions": ["x://a"]},
            )
            live.server.notify_updated("x://a")
            tag = {"io.modelcontextprotocol/subscriptionId": 0}
            second = json.loads(next(events)[1])
            self.assertEqual(second["params"], {"_meta": tag, "uri": "x://a"})
            live.server.notify_prompts_changed()
            live.server.remove_tool("echo")
            third = json.loads(next(events)[1])
            self.assertEqual(third["method"], "notifications/tools/list_changed")
            ender = threading.Thread(target=live.end)
            ender.start()
            last = json.loads(next(events)[1])
            self.assertEqual(last["id"], 0)
            self.assertEqual(last["result"]["resultType"], "complete")
            self.assertEqual(
                last["result"]["_meta"]["io.modelcontextprotocol/subscriptionId"], 0
            )
            self.assertEqual(list(events), [])
            ender.join()

    def test_a_closed_listener_is_forgotten(self):
        with Live() as live:
            with live.client() as client:
                self.listen(client, toolsListChanged=True)
                self.assertEqual(len(live.server._hub.listeners), 1)
            soon(lambda: not live.server._hub.listeners, "the listener is gone")
            live.server.notify_tools_changed()

    def test_needs_a_stream(self):
        with Live() as live:
            params = {"notifications": {}}
            data = modern(
                "subscriptions/listen", params, headers={"Accept": "application/json"}
            )
            self.assertEqual(live.ask(data).status, 406)
            self.assertEqual(live.ask(modern("subscriptions/listen", {})).status, 400)

    def test_streams_are_bounded(self):
        with Live(fixture(limits=Limits(streams=1))) as live:
            with live.client() as one, live.client() as two:
                self.listen(one, toolsListChanged=True)
                two.send(modern("subscriptions/listen", {"notifications": {}}))
                self.assertEqual(two.reply().status, 503)

    def test_json_only_servers_and_listening(self):
        with Live(json_response=True) as live, live.client() as client:
            data = modern("subscriptions/listen", {"notifications": {}})
            self.assertEqual(live.ask(data).status, 406)
            client.send(
                modern("tools/list", headers=SSE_ONLY)
                + modern("tools/call", {"name": "work"}, id=2, headers=SSE_ONLY)
            )
            client.head()
            self.assertEqual(len(client.messages()), 1)
            live.server.proceed.set()
            client.head()
            self.assertEqual([m["id"] for m in client.messages()], [2])

    def test_keep_alive_comments_HTM_19(self):
        with Live(fixture(limits=Limits(keep_alive=0.02))) as live:
            with live.client() as client:
                self.listen(client, toolsListChanged=True)
                self.assertEqual(client.chunk(), b":\n\n")
                self.assertEqual(client.chunk(), b":\n\n")

    def test_a_stuck_reader_costs_flags_and_nothing_else(self):
        limits = Limits(stream_queue=2000)
        with Live(fixture(limits=limits)) as live, live.client() as stuck:
            stuck.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            self.listen(stuck, resourceSubscriptions=["x://a"])
            connection = next(iter(live.endpoint.connections))
            server_side = connection.transport.get_extra_info("socket")
            server_side.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            connection.transport.set_write_buffer_limits(1 << 20)
            soon_full = connection.transport.get_write_buffer_size

            def is_stuck():
                for _ in range(200):
                    live.server.notify_updated("x://a")
                live.state()  # the loop has run
                return len(live.server._hub.stuck) == 1

            soon(is_stuck, "the kernel takes no more")
            for _ in range(1000):
                live.server.notify_updated("x://a")
            live.state()
            self.assertLess(soon_full(), 4000)
            with live.client() as other:  # everybody else is served
                other.send(modern("tools/list"))
                self.assertEqual(other.reply().status, 200)


class Disconnects(unittest.TestCase):
    def test_a_modern_disconnect_cancels_HTM_17(self):
        with Live() as live:
            for name in ("nap", "work"):
                live.server.entered.clear()
                live.server.proceed.clear()
                with live.client() as client:
                    client.send(modern("tools/call", {"name": name}))
                    live.server.entered.wait(PATIENCE)
                soon(lambda: not live.server._open.lines(), "the call is given up")
                live.server.proceed.set()
                wanted = "cancelled" if name == "nap" else True
                # Waited for within the round that binds `wanted`.
                soon(lambda: live.server.ended[-1:] == [wanted], name)  # noqa: B023

    def test_a_legacy_disconnect_does_not_HTL_13(self):
        with Live() as live:
            session = live.open()
            with live.client() as client:
                client.send(legacy(session, "tools/call", {"name": "work"}))
                live.server.entered.wait(PATIENCE)
                connection = next(iter(live.endpoint.connections))
            soon(lambda: connection.eof, "the end of input is seen")
            live.server.proceed.set()
            soon(lambda: live.server.ended == [False], "the handler went on")

    def test_a_legacy_client_that_half_closes_still_reads(self):
        with Live() as live, live.client() as client:
            session = live.open()
            client.send(legacy(session, "tools/call", {"name": "work"}))
            live.server.entered.wait(PATIENCE)
            client.socket.shutdown(socket.SHUT_WR)
            live.server.proceed.set()
            self.assertEqual(
                client.reply().json["result"]["content"][0]["text"], "worked"
            )

    def test_a_client_that_leaves_in_the_middle_C13(self):
        with Live() as live:
            whole = modern(
                "tools/call", {"name": "echo", "arguments": {"text": "x" * 900}}
            )
            for cut in (0, 10, 60, len(whole) - 100):
                for reset in (False, True):
                    client = live.client()
                    if reset:
                        client.reset_at_close()
                    client.send(whole[:cut])
                    client.close()
            soon(lambda: not live.endpoint.connections, "no connection is left")
            self.assertEqual(live.ask(whole).status, 200)
            self.assertEqual([t for t in live.server.logged if "connection" in t], [])


class Sessions(unittest.TestCase):
    def test_life_of_a_session_HTL_03_HTL_04_HTL_05_HTL_07_HTL_08(self):
        with Live() as live:
            session = live.open()
            self.assertRegex(session, "^[0-9a-f]{32}$")
            self.assertEqual(live.ask(legacy(session, "tools/list")).status, 200)
            self.assertEqual(live.ask(legacy(session, "ping")).json["result"], {})
            none = request(body=json.dumps(message("tools/list")).encode())
            self.assertEqual(live.ask(none).status, 400)
            response = {"jsonrpc": "2.0", "id": 99, "result": {}}
            data = request(
                body=json.dumps(response).encode(),
                headers=[("Mcp-Session-Id", session)],
            )
            self.assertEqual(live.ask(data).status, 202)
            for bad in ("deadbeef", "a b", "x" * 10000):
                reply = live.ask(legacy(bad, "tools/list"))
                self.assertEqual(reply.status, 404, bad)
                self.assertIn("initialize", reply.json["error"]["message"])
            delete = request("DELETE", headers=[("Mcp-Session-Id", session)])
            self.assertEqual(live.ask(delete).status, 204)
            self.assertEqual(live.ask(delete).status, 404)
            self.assertEqual(live.ask(legacy(session, "tools/list")).status, 404)
            self.assertEqual(live.state()[0], 0)

    def test_a_stale_id_on_initialize_gives_a_new_session_C09(self):
        with Live() as live:
            data = initialize().replace(b"Host:", b"Mcp-Session-Id: stale\r\nHost:")
            reply = live.ask(data)
            self.assertEqual(reply.status, 200)
            self.assertNotEqual(reply.headers["mcp-session-id"], "stale")

    def test_versions_HTL_01_HTL_02(self):
        with Live() as live:
            session = live.open()
            for version, status in {
                D: 200,
                "2025-06-18": 200,
                None: 200,
                "1.0": 400,
                "2020-01-01": 400,
            }.items():
                fields = [("MCP-Protocol-Version", version)]
                reply = live.ask(legacy(session, "tools/list", headers=fields))
                self.assertEqual(reply.status, status, version)

    def test_each_revision_LIF_05(self):
        with Live() as live:
            for revision in rt._LEGACY:
                reply = live.ask(initialize(revision))
                self.assertEqual(reply.json["result"]["protocolVersion"], revision)

    def test_a_batch_in_2025_03_26_only_RPC_05_RPC_07(self):
        with Live() as live:
            batch = [
                message("ping", id=1),
                message("notifications/x", id=None),
                message("tools/call", {"name": "echo", "arguments": {"text": "b"}}, 2),
            ]
            for revision, status in {"2025-03-26": 200, D: 400}.items():
                session = live.open(revision)
                fields = [("Mcp-Session-Id", session)]
                reply = live.ask(
                    request(body=json.dumps(batch).encode(), headers=fields)
                )
                self.assertEqual(reply.status, status)
            session = live.open("2025-03-26")
            fields = [("Mcp-Session-Id", session)]
            slow = [message("tools/call", {"name": "work"}, 5), message("ping", id=6)]
            with live.client() as client:
                client.send(request(body=json.dumps(slow).encode(), headers=fields))
                live.server.entered.wait(PATIENCE)
                live.server.proceed.set()
                self.assertEqual({r["id"] for r in client.reply().json}, {5, 6})
            quiet = [message("notifications/x", id=None)]
            reply = live.ask(request(body=json.dumps(quiet).encode(), headers=fields))
            self.assertEqual(reply.status, 202)

    def test_the_idlest_session_leaves_first_HTL_14(self):
        with Live(fixture(limits=Limits(sessions=2))) as live:
            one, two = live.open(), live.open()
            live.ask(legacy(one, "ping"))
            three = live.open()
            self.assertEqual(live.ask(legacy(two, "ping")).status, 404)
            self.assertEqual(live.ask(legacy(one, "ping")).status, 200)
            with live.client() as a, live.client() as b:
                for client, session in ((a, one), (b, three)):
                    client.send(request("GET", headers=[("Mcp-Session-Id", session)]))
                    client.head()
                self.assertEqual(live.ask(initialize()).status, 503)

    def test_idle_sessions_expire(self):
        with Live() as live:
            _, busy = live.open(), live.open()
            with live.client() as client:
                client.send(request("GET", headers=[("Mcp-Session-Id", busy)]))
                client.head()

                def time_passes():
                    live.server._limits.session_idle = 0.05
                    for found in list(live.endpoint.sessions.values()):
                        found.due()

                live.loop.call_soon_threadsafe(time_passes)
                live.state()
                self.assertEqual(list(live.endpoint.sessions), [busy])
            soon(lambda: busy not in live.endpoint.sessions, "the other one too")

    def test_stateless_legacy(self):
        with Live(stateless_http=True) as live:
            reply = live.ask(initialize(elicitation={}))
            self.assertEqual(reply.status, 200)
            self.assertNotIn("mcp-session-id", reply.headers)
            body = json.dumps(message("tools/call", {"name": "sure"})).encode()
            reply = live.ask(request(body=body))
            self.assertTrue(reply.json["result"]["isError"])
            body = json.dumps(message("resources/subscribe", {"uri": "x://a"})).encode()
            self.assertEqual(live.ask(request(body=body)).status, 200)
            self.assertEqual(live.ask(request("GET")).status, 405)
            self.assertEqual(live.ask(request("DELETE")).status, 405)
            self.assertEqual(live.state()[::2], (0, 0))

    def test_legacy_only_and_modern_only_VER_07(self):
        with Live(fixture(modern=False)) as live:
            self.assertEqual(live.ask(modern("tools/list")).status, 400)
            live.open()
        with Live(fixture(legacy=False)) as live:
            reply = live.ask(initialize())
            self.assertIn(E, reply.json["error"]["message"])
            self.assertEqual(live.ask(modern("tools/list")).status, 200)


class LegacyStreams(unittest.TestCase):
    def get(self, client, session, *fields):
        client.send(request("GET", headers=[("Mcp-Session-Id", session), *fields]))
        return client.head()

    def test_a_question_rides_the_stream_of_its_call_HTL_09(self):
        with Live() as live, live.client() as client:
            session = live.open(elicitation={})
            client.send(legacy(session, "tools/call", {"name": "sure"}, id=7))
            client.head()
            events = client.events()
            self.assertEqual(next(events)[1], b"")  # priming
            question = json.loads(next(events)[1])
            self.assertEqual(question["method"], "elicitation/create")
            answer = {"action": "accept", "content": {"confirm": True}}
            response = {"jsonrpc": "2.0", "id": question["id"], "result": answer}
            body = json.dumps(response).encode()
            fields = [("Mcp-Session-Id", session)]
            self.assertEqual(live.ask(request(body=body, headers=fields)).status, 202)
            reply = json.loads(next(events)[1])
            self.assertEqual(
                (reply["id"], reply["result"]["structuredContent"]),
                (7, {"result": True}),
            )

    def test_a_client_that_takes_json_only_cannot_be_asked(self):
        with Live() as live:
            session = live.open(elicitation={})
            fields = [("Accept", "application/json")]
            reply = live.ask(
                legacy(session, "tools/call", {"name": "sure"}, headers=fields)
            )
            self.assertTrue(reply.json["result"]["isError"])
        with Live(json_response=True) as live:
            session = live.open(elicitation={})
            reply = live.ask(legacy(session, "tools/call", {"name": "sure"}))
            self.assertTrue(reply.json["result"]["isError"])

    def test_get_stream_carries_changes_HTL_06_HTL_10(self):
        with Live() as live, live.client() as one, live.client() as two:
            session, other = live.open(), live.open()
            live.ask(legacy(session, "resources/subscribe", {"uri": "x://a"}))
            live.server.notify_updated("x://a")  # waits for the stream
            head = self.get(one, session)
            self.assertEqual(head.headers["content-type"], "text/event-stream")
            self.assertEqual(one.chunk().count(b"retry: "), 0)
            events = one.events()
            self.assertEqual(json.loads(next(events)[1])["params"], {"uri": "x://a"})
            self.get(two, other)
            two.chunk()
            live.server.notify_updated("x://a")
            self.assertEqual(json.loads(next(events)[1])["params"], {"uri": "x://a"})
            live.ask(legacy(session, "resources/unsubscribe", {"uri": "x://a"}))
            live.server.notify_updated("x://a")
            live.server.notify_tools_changed()
            for stream in (events, two.events()):
                changed = json.loads(next(stream)[1])
                self.assertEqual(changed["method"], "notifications/tools/list_changed")

    def test_get_is_refused_without_state(self):
        with Live() as live:
            session = live.open()
            for fields, status in (
                ([], 405),
                ([("Mcp-Session-Id", "nope")], 404),
                ([("Mcp-Session-Id", session), ("Accept", "application/json")], 406),
                ([("Mcp-Session-Id", session), ("Last-Event-ID", "garbage")], 400),
                ([("Mcp-Session-Id", session), ("Last-Event-ID", "-1-2")], 400),
                ([("Mcp-Session-Id", session), ("Last-Event-ID", "9-9")], 404),
            ):
                self.assertEqual(
                    live.ask(request("GET", headers=fields)).status, status
                )

    def test_the_newer_get_stream_replaces_the_older(self):
        with Live() as live, live.client() as one, live.client() as two:
            session = live.open()
            self.get(one, session)
            self.get(two, session)
            self.assertEqual(list(one.events()), [])
            live.server.notify_tools_changed()
            self.assertIn(b"list_changed", next(two.events())[1])

    def test_polling_client_comes_back_for_the_reply_HTL_11_HTL_12(self):
        with Live() as live, live.client() as client:
            session = live.open()
            client.send(legacy(session, "tools/call", {"name": "poll"}, id=3))
            client.head()
            first = client.chunk()
            self.assertIn(b"retry: ", first)
            event_id = first.split(b"\n")[0].partition(b": ")[2].decode()
            self.assertEqual(client.chunk(), b"")  # the stream ended without a reply
            live.server.entered.wait(PATIENCE)
            with live.client() as early:  # back before the call is done
                self.get(early, session, ("Last-Event-ID", event_id))
                events = early.events()
                live.server.proceed.set()
                self.assertEqual(json.loads(next(events)[1])["id"], 3)
                self.assertEqual(list(events), [])

    def test_replay_after_a_lost_connection_is_of_one_stream_only(self):
        with Live() as live:
            session = live.open()
            live.ask(legacy(session, "logging/setLevel", {"level": "debug"}))
            with live.client() as client:
                meta = {"progressToken": 1}
                params = {"name": "steps", "_meta": meta}
                client.send(legacy(session, "tools/call", params, id=4))
                client.head()
                events = client.events()
                ids = [next(events)[0] for _ in range(2)]
                client.messages()
            with live.client() as client:  # the last event was not seen: once more
                self.get(client, session, ("Last-Event-ID", ids[1]))
                self.assertEqual(
                    [m.get("id") for m in client.messages()], [None, None, 4]
                )
            for _ in range(20):  # streams that nobody came back for are bounded
                with live.client() as client:
                    client.send(legacy(session, "tools/call", params, id=4))
                    client.head()
                    client.messages()
            streams = live.endpoint.sessions[session].streams
            self.assertLessEqual(len(streams), 17)
            with live.client() as client:
                status = self.get(client, session, ("Last-Event-ID", ids[1])).status
                self.assertEqual(status, 404)

    def test_events_of_a_dropped_stream_are_replayed_once(self):
        with Live() as live:
            session = live.open()
            with live.client() as client:
                client.send(legacy(session, "tools/call", {"name": "poll"}, id=5))
                client.head()
                event_id = client.chunk().split(b"\n")[0][4:].decode()
                live.server.entered.wait(PATIENCE)
            live.server.proceed.set()
            streams = live.endpoint.sessions[session].streams
            soon(
                lambda: streams and next(iter(streams.values())).ended,
                "the reply is kept",
            )
            other = live.open()
            with live.client() as client:  # another session sees none of it
                self.assertEqual(
                    self.get(client, other, ("Last-Event-ID", event_id)).status, 404
                )
            with live.client() as client:
                self.get(client, session, ("Last-Event-ID", event_id))
                self.assertEqual([m["id"] for m in client.messages()], [5])

    def test_what_is_kept_for_replay_is_bounded(self):
        limits = Limits(replay_session=600)
        with Live(fixture(limits=limits)) as live:
            session = live.open()
            with live.client() as client:
                self.get(client, session)
                client.chunk()
                events = client.events()
                for _ in range(20):
                    live.server.notify_tools_changed()
                    last = next(events)[0]
                    live.state()
                kept = live.endpoint.sessions[session]
                self.assertLessEqual(kept.kept, 600)
                self.assertEqual(kept.kept, live.endpoint.kept_bytes)
            with live.client() as client:
                self.assertEqual(
                    self.get(client, session, ("Last-Event-ID", "0-1")).status, 404
                )
            with live.client() as client:
                self.assertEqual(
                    self.get(client, session, ("Last-Event-ID", last)).status, 200
                )
            self.assertEqual(
                live.ask(
                    request("DELETE", headers=[("Mcp-Session-Id", session)])
                ).status,
                204,
            )
            self.assertEqual(live.endpoint.kept_bytes, 0)

    def test_cancel_ends_the_exchange_CAN_01(self):
        with Live() as live, live.client() as client:
            session = live.open()
            client.send(legacy(session, "tools/call", {"name": "nap"}, id=8))
            live.server.entered.wait(PATIENCE)
            cancelled = message("notifications/cancelled", {"requestId": 8}, None)
            fields = [("Mcp-Session-Id", session)]
            data = request(body=json.dumps(cancelled).encode(), headers=fields)
            self.assertEqual(live.ask(data).status, 202)
            client.head()
            self.assertEqual(client.messages(), [])
            client.send(legacy(session, "ping", id=9))
            self.assertEqual(client.reply().json["id"], 9)

    def test_who_has_all_of_an_ended_stream_is_not_told_to_come_again(self):
        with Live() as live, live.client() as client:
            session = live.open()
            client.send(legacy(session, "tools/call", {"name": "poll"}, id=8))
            client.head()
            event_id = client.chunk().split(b"\n")[0][4:].decode()
            live.server.entered.wait(PATIENCE)
            cancelled = message("notifications/cancelled", {"requestId": 8}, None)
            fields = [("Mcp-Session-Id", session)]
            live.ask(request(body=json.dumps(cancelled).encode(), headers=fields))
            fields.append(("Last-Event-ID", event_id))
            self.assertEqual(live.ask(request("GET", headers=fields)).status, 405)
            self.assertEqual(live.ask(request("GET", headers=fields)).status, 404)

    def test_cancel_of_a_json_only_call_closes_the_connection(self):
        with Live() as live, live.client() as client:
            session = live.open()
            fields = [("Accept", "application/json")]
            client.send(
                legacy(session, "tools/call", {"name": "nap"}, id=8, headers=fields)
            )
            live.server.entered.wait(PATIENCE)
            live.ask(request("DELETE", headers=[("Mcp-Session-Id", session)]))
            self.assertTrue(client.closed())


class EndsOnce(unittest.TestCase):
    """An exchange, a stream and a session end once, whoever comes first."""

    def get(self, session, last):
        return request(
            "GET", headers=[("Mcp-Session-Id", session), ("Last-Event-ID", last)]
        )

    def test_what_comes_after_the_end_of_a_stream_is_dropped_HTL_11(self):
        with Live() as live, live.client() as client:
            session = live.open()
            client.send(legacy(session, "tools/call", {"name": "poll"}, id=3))
            client.head()
            event_id = client.chunk().split(b"\n")[0][4:].decode()
            live.server.entered.wait(PATIENCE)
            found = live.endpoint.sessions[session]
            exchange = found.calls[3].peer
            live.server.proceed.set()
            soon(lambda: not found.calls, "the reply is kept")
            exchange.send(b'{"late":1}')  # as a worker that was overtaken
            live.state()
            self.assertTrue(exchange.stream.ended)
            with live.client() as back:
                back.send(self.get(session, event_id))
                back.head()
                self.assertEqual([m.get("id") for m in back.messages()], [3])

    def test_a_reply_after_the_end_of_its_session_is_not_kept(self):
        with Live() as live, live.client() as client:
            session = live.open()
            client.send(legacy(session, "tools/call", {"name": "poll"}, id=3))
            client.head()
            live.server.entered.wait(PATIENCE)
            found = live.endpoint.sessions[session]
            exchange = found.calls[3].peer
            live.ask(request("DELETE", headers=[("Mcp-Session-Id", session)]))
            exchange.reply(b'{"id":3}', 0)  # it was on its way already
            live.state()
            self.assertEqual((found.kept, live.endpoint.kept_bytes), (0, 0))
            self.assertEqual(found.streams, {})

    def test_a_call_may_let_its_client_poll_again_and_again_HTL_12(self):
        with Live() as live, live.client() as client:
            session = live.open()

            @live.server.tool
            def twice(ctx: Context) -> str:
                """Poll twice."""
                ctx.close_sse_stream()
                live.server.entered.wait(PATIENCE)
                ctx.close_sse_stream()
                live.server.proceed.wait(PATIENCE)
                return "done"

            client.send(legacy(session, "tools/call", {"name": "twice"}, id=3))
            client.head()
            event_id = client.chunk().split(b"\n")[0][4:].decode()
            self.assertEqual(client.chunk(), b"")
            for event in (live.server.entered, live.server.proceed):
                with live.client() as back:
                    back.send(self.get(session, event_id))
                    back.head()
                    event.set()
                    found = [m["id"] for m in back.messages()]
            self.assertEqual(found, [3])

    def test_polling_is_for_legacy_streams_only(self):
        with Live() as live:
            session = live.open()
            live.server.proceed.set()
            fields = [("Accept", "application/json")]
            for data in (
                modern("tools/call", {"name": "poll"}),
                legacy(session, "tools/call", {"name": "poll"}, headers=fields),
            ):
                self.assertEqual(live.ask(data).json["id"], 1)

    def test_a_client_that_left_before_polling_was_offered(self):
        with Live() as live:
            session = live.open()

            @live.server.tool
            def later(ctx: Context) -> str:
                """Poll, but late."""
                live.server.entered.set()
                live.server.proceed.wait(PATIENCE)
                ctx.close_sse_stream()
                ctx.info("unheard")
                live.server.ended.append(True)
                return "done"

            with live.client() as client:
                client.reset_at_close()
                client.send(legacy(session, "tools/call", {"name": "later"}, id=3))
                live.server.entered.wait(PATIENCE)
                exchange = live.endpoint.sessions[session].calls[3].peer
            soon(lambda: exchange.connection is None, "the client is gone")
            live.server.proceed.set()
            soon(lambda: live.server.ended, "the call went on")
            soon(lambda: not live.endpoint.sessions[session].calls, "it has ended")
            self.assertEqual(live.endpoint.sessions[session].streams, {})

    def test_a_response_with_the_id_of_a_call_is_answered(self):
        with Live() as live, live.client() as client:
            session = live.open()
            client.send(legacy(session, "tools/call", {"name": "work"}, id="s1"))
            live.server.entered.wait(PATIENCE)
            body = json.dumps({"jsonrpc": "2.0", "id": "s1", "result": {}}).encode()
            fields = [("Mcp-Session-Id", session)]
            self.assertEqual(live.ask(request(body=body, headers=fields)).status, 202)

    def test_time_outs_of_one_moment_do_not_disturb_each_other(self):
        limits = Limits(keep_alive=0.05, session_idle=0.5)
        with Live(fixture(limits=limits)) as live, live.client() as client:
            session = live.open()
            client.send(request("GET", headers=[("Mcp-Session-Id", session)]))
            client.head()
            for _ in range(3):
                self.assertEqual(client.chunk(), b":\n\n")
            done = threading.Event()

            def end():  # everything is due, and the session takes its stream along
                live.endpoint.sessions[session].end()
                live.endpoint.tick(time.monotonic() + 1000)
                done.set()

            live.loop.call_soon_threadsafe(end)
            self.assertTrue(done.wait(PATIENCE))
            self.assertEqual(list(client.events()), [])
            client.send(legacy(session, "ping"))
            self.assertEqual(client.reply().status, 404)

    def test_equal_limits_for_sessions_and_connections(self):
        limits = Limits(sessions=1, session_idle=60.0, idle_timeout=60.0)
        with Live(fixture(limits=limits)) as live, live.client() as idle:
            idle.send(request("GET", target="/healthz"))
            idle.reply()
            first = live.open()
            live.open()
            self.assertEqual(live.ask(legacy(first, "ping")).status, 404)

    def test_sessions_end_with_the_endpoint(self):
        with Live() as live:
            live.open()
            self.assertEqual(len(live.server._hub.listeners), 1)
            live.end()
            self.assertEqual(len(live.server._hub.listeners), 0)


class Pipelines(unittest.TestCase):
    def test_requests_wait_while_a_call_waits(self):
        with Live() as live, live.client() as client:
            calls = [modern("tools/call", {"name": "work"}, id=1), modern("nope", id=2)]
            client.send(b"".join(calls) + modern("tools/list", id=3))
            live.server.entered.wait(PATIENCE)
            live.server.proceed.set()
            found = [client.reply() for _ in range(3)]
            self.assertEqual([reply.json["id"] for reply in found], [1, 2, 3])
            self.assertEqual([reply.status for reply in found], [200, 404, 200])

    def test_much_that_comes_while_a_call_waits_is_answered_in_order(self):
        """More than the buffers of both sides hold: the reader stops reading."""
        count = 4000
        rest = b"".join(modern("tools/list", id=n) for n in range(count))
        with Live() as live, live.client() as client:
            client.send(modern("tools/call", {"name": "work"}, id=-1))
            live.server.entered.wait(PATIENCE)
            sending = threading.Thread(target=client.send, args=(rest,))
            sending.start()
            connection = next(iter(live.endpoint.connections))
            soon(lambda: connection.more, "input while it waits")
            live.server.proceed.set()
            found = [client.reply().json["id"] for _ in range(count + 1)]
            sending.join(PATIENCE)
            self.assertEqual(found, [-1, *range(count)])

    def test_input_byte_by_byte_and_before_the_connection_runs(self):
        data = modern("tools/call", {"name": "echo", "arguments": {"text": "x"}})
        with Live() as live, live.client() as client:
            client.send(data)  # with the connect, as likely as not
            self.assertEqual(client.reply().status, 200)
            for n in range(len(data)):
                client.send(data[n : n + 1])
            self.assertEqual(client.reply().status, 200)

    def test_a_loop_may_give_input_as_bytes(self):
        """uvloop does over TLS, to a protocol that could take it in a buffer."""
        data = modern("tools/call", {"name": "echo", "arguments": {"text": "x"}})
        with Live() as live, live.client() as client:
            client.send(data)
            client.reply()
            transport = next(iter(live.endpoint.connections)).transport
            give = transport.get_protocol().data_received
            live.loop.call_soon_threadsafe(give, data)
            self.assertEqual(client.reply().status, 200)

    def test_an_idle_connection_holds_nothing_of_its_last_request(self):
        text = "x" * 500_000
        data = modern("tools/call", {"name": "echo", "arguments": {"text": text}})
        with Live() as live, live.client() as client:
            for _ in range(2):
                client.send(data)
                client.reply()
            connection = next(iter(live.endpoint.connections))
            soon(lambda: connection.reading, "it waits for the next request")
            coroutine, held = connection.task.get_coro(), [connection.bell.value]
            while hasattr(coroutine, "cr_frame"):
                held += coroutine.cr_frame.f_locals.values()
                coroutine = coroutine.cr_await
            held += [getattr(connection, name) for name in connection.__slots__]
            kinds = {type(value).__name__ for value in held}
            self.assertIn("_Connection", kinds)
            self.assertFalse(kinds & {"bytes", "bytearray", "_Exchange", "_Head"})

    def test_a_request_that_arrives_at_the_end_is_served(self):
        data = modern("tools/call", {"name": "echo", "arguments": {"text": "x"}})
        with Live() as live, live.client() as client, live.client() as other:
            other.send(modern("tools/call", {"name": "work"}))  # what the end waits for
            live.server.entered.wait(PATIENCE)
            client.send(data[:-1])
            endpoint = live.endpoint
            soon(lambda: any(c.state == "body" for c in endpoint.connections), "body")
            live.loop.call_soon_threadsafe(live.stop.set)
            soon(lambda: endpoint.closing, "the end")
            client.send(data[-1:])
            self.assertEqual(client.reply().json["result"]["isError"], False)
            live.server.proceed.set()
            self.assertEqual(other.reply().status, 200)

    def test_what_a_first_step_tells_is_a_stream(self):
        server = fixture()

        @server.tool
        async def told(ctx: Context) -> str:
            """Tell before the first await."""
            ctx.report_progress(1, 2)
            if ctx.client_info.get("name") == "waits":
                await asyncio.sleep(0.01)
            return "done"

        for name in ("waits", "does not"):
            info = {"name": name, "version": "1"}
            meta = {"progressToken": "p", "io.modelcontextprotocol/clientInfo": info}
            for accept in ("text/event-stream", None):
                data = modern("tools/call", {"name": "told"}, meta=meta)
                if accept:
                    field = b"\r\nAccept: text/event-stream\r\nHost"
                    data = data.replace(b"\r\nHost", field, 1)
                with self.subTest(name=name, accept=accept), Live(server) as live:
                    with live.client() as client:
                        client.send(data)
                        reply = client.head()
                        kind = reply.headers["content-type"]
                        self.assertEqual(kind, "text/event-stream")
                        progress, result = client.messages()
                        self.assertEqual(progress["params"]["progress"], 1)
                        self.assertEqual(result["id"], 1)

    def test_a_client_that_closed_gets_nothing_more_done(self):
        with Live() as live:
            client = live.client()
            client.reset_at_close()
            session = live.open()
            slow = legacy(session, "tools/call", {"name": "work"}, id=1)
            client.send(slow + legacy(session, "tools/call", {"name": "steps"}, id=2))
            live.server.entered.wait(PATIENCE)
            connection = next(iter(live.endpoint.connections))
            client.close()
            soon(lambda: not live.endpoint.connections, "the reset is seen")
            self.assertFalse(connection.keep)
            live.server.proceed.set()

    def test_nothing_follows_a_call_that_a_half_close_has_cancelled(self):
        """Replies are told apart by their order alone."""
        with Live() as live, live.client() as client:
            calls = modern("tools/call", {"name": "nap"}) + modern("tools/list", id=2)
            client.send(calls)
            live.server.entered.wait(PATIENCE)
            client.socket.shutdown(socket.SHUT_WR)
            self.assertTrue(client.closed())
            soon(lambda: live.server.ended, "the call is cancelled")

    def test_one_server_on_two_loops(self):
        server = fixture()

        @server.tool
        async def where() -> str:
            """Wait on the loop that reads."""
            loop = asyncio.get_running_loop()
            await asyncio.sleep(0.01)
            return str(loop is asyncio.get_running_loop())

        data = modern("tools/call", {"name": "where"})
        with Live(server) as first, Live(server) as second:
            with first.client() as one, second.client() as two:
                for client in (one, two) * 5:
                    client.send(data)
                    content = client.reply().json["result"]["content"]
                    self.assertEqual(content[0]["text"], "True")
        self.assertEqual([t for t in server.logged if "Error" in t], [])

    def test_nothing_follows_a_cancelled_json_reply(self):
        with Live() as live, live.client() as client:
            session = live.open()
            fields = [("Accept", "application/json")]
            slow = legacy(session, "tools/call", {"name": "nap"}, 8, headers=fields)
            client.send(slow + modern("tools/list", id=9))
            live.server.entered.wait(PATIENCE)
            cancelled = message("notifications/cancelled", {"requestId": 8}, None)
            fields = [("Mcp-Session-Id", session)]
            live.ask(request(body=json.dumps(cancelled).encode(), headers=fields))
            self.assertTrue(client.closed())  # not the reply to the next request

    def test_half_closed_clients_of_both_eras(self):
        with Live() as live, live.client() as client, live.client() as other:
            session = live.open(elicitation={})
            client.send(
                legacy(session, "tools/call", {"name": "echo", "arguments": {}}, id=1)
                + legacy(session, "tools/call", {"name": "work"}, id=2)
            )
            live.server.entered.wait(PATIENCE)
            client.socket.shutdown(socket.SHUT_WR)
            live.server.proceed.set()
            self.assertEqual([client.reply().json["id"] for _ in range(2)], [1, 2])
            self.assertTrue(client.closed())
            # An inline handler asks: it still reads, and the answer comes elsewhere.
            other.send(legacy(session, "tools/call", {"name": "sure"}, id=3))
            other.head()
            events = other.events()
            next(events)
            question = json.loads(next(events)[1])
            ours = live.endpoint.connections
            soon(lambda: any(c.exchange for c in ours), "the exchange waits")
            connection = next(c for c in ours if c.exchange)
            other.socket.shutdown(socket.SHUT_WR)
            soon(lambda: connection.eof, "the end of input is seen")
            answer = {"jsonrpc": "2.0", "id": question["id"]}
            answer["result"] = {"action": "decline"}
            fields = [("Mcp-Session-Id", session)]
            live.ask(request(body=json.dumps(answer).encode(), headers=fields))
            self.assertEqual(json.loads(next(events)[1])["id"], 3)

    def test_the_reply_to_a_body_too_large_is_not_lost_C16(self):
        with Live(fixture(limits=Limits(body=1000))) as live, live.client() as client:
            client.send(request(headers=[("Content-Length", "3000000")]))
            for _ in range(30):  # the client goes on sending before it reads
                client.send(b"x" * 100_000)
            self.assertEqual(client.reply().status, 413)
            self.assertTrue(client.closed())

    def test_errors_of_the_network_are_no_faults_of_ours_C13(self):
        for error in (TimeoutError(110, "timed out"), OSError(113, "no route")):
            with Live() as live, live.client() as client:
                client.send(request("GET", target="/healthz"))
                client.reply()
                transport = next(iter(live.endpoint.connections)).transport
                live.loop.call_soon_threadsafe(transport._fatal_error, error)
                self.assertTrue(client.closed())
                self.assertEqual([t for t in live.server.logged if "conn" in t], [])


class Limited(unittest.TestCase):
    def test_a_client_that_reads_nothing_is_dropped_however_little_it_is_owed(self):
        limits = Limits(idle_timeout=0.4, write_timeout=0.2)
        server, calls = fixture(limits=limits), []

        @server.tool(inline=True)
        def much() -> str:
            """Some of what the kernel takes."""
            calls.append(1)
            return "x" * 30_000

        data = modern("tools/call", {"name": "much"})
        with Live(server) as live, live.client() as client:
            client.send(data)
            client.reply()
            connection = next(iter(live.endpoint.connections))
            owed, sent = connection.transport.get_write_buffer_size, 1
            while not owed():
                client.send(data)
                sent += 1
                soon(lambda n=sent: len(calls) == n and connection.reading, "a reply")
            self.assertLess(owed(), 65536)
            soon(lambda: not live.endpoint.connections, "it is dropped")

    def test_a_stream_that_nobody_reads_is_cut_off(self):
        with Live(fixture(limits=Limits(stream_queue=1000))) as live:
            session = live.open()
            with live.client() as client:
                client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
                client.send(request("GET", headers=[("Mcp-Session-Id", session)]))
                client.head()
                peer, gone = live.endpoint.sessions[session].peer, []

                def fill():  # without asking whether the stream is ready
                    for _ in range(1000):
                        peer.send(b"x" * 60_000)
                    gone.append(True)

                live.loop.call_soon_threadsafe(fill)
                soon(lambda: gone and not live.endpoint.connections, "it is gone")
            found = live.endpoint.sessions[session]
            self.assertLessEqual(found.kept, live.server._limits.replay_session)

    def test_decisions_are_kept_for_so_many_heads_only(self):
        with Live() as live, live.client() as client:
            for number in range(150):
                client.send(modern("tools/list", headers={"X-Number": number}))
                self.assertEqual(client.reply().status, 200)
            self.assertLessEqual(len(live.endpoint.forms), 64)
            client.send(modern("tools/list", headers={"Host": "evil.example"}))
            self.assertEqual(client.reply().status, 400)

    def test_a_slow_call_becomes_a_stream_and_is_kept_alive(self):
        limits = Limits(json_or_sse=0.02, keep_alive=0.02)
        with Live(fixture(limits=limits)) as live, live.client() as client:
            client.send(modern("tools/call", {"name": "work"}))
            client.head()
            self.assertEqual(client.chunk(), b":\n\n")
            self.assertEqual(client.chunk(), b":\n\n")
            live.server.proceed.set()
            self.assertEqual(
                client.messages()[0]["result"]["structuredContent"], "worked"
            )

    def test_a_fault_at_a_time_out_ends_no_other(self):
        class Broken:
            line = None

            def due(self):
                raise RuntimeError("broken")

        with Live(fixture(limits=Limits(head_timeout=0.2))) as live:
            with live.client() as client:
                live.loop.call_soon_threadsafe(live.endpoint.start, Broken(), 0.01)
                client.send(b"POST /mc")
                self.assertEqual(client.reply().status, 408)
            logged = [text for text in live.server.logged if "time-out" in text]
            self.assertEqual(logged, ["RuntimeError at a time-out: broken"])

    def test_slow_and_silent_connections_are_closed_SEC_03(self):
        limits = Limits(head_timeout=0.05, body_timeout=0.05, idle_timeout=0.05)
        with Live(fixture(limits=limits)) as live:
            whole = modern("tools/list")
            for sent, status in ((b"", None), (b"POST /mc", 408), (whole[:-5], 408)):
                with self.subTest(sent[:8]), live.client() as client:
                    client.send(sent)
                    if status:
                        self.assertEqual(client.reply().status, status)
                    self.assertTrue(client.closed())
            soon(lambda: not live.endpoint.connections, "no connection is left")

    def test_trickling_bytes_do_not_restart_the_time_out(self):
        with (
            Live(fixture(limits=Limits(head_timeout=0.2))) as live,
            live.client() as client,
        ):
            began = time.monotonic()
            with contextlib.suppress(ConnectionError):
                for byte in modern("tools/list")[:-1]:
                    client.send(bytes([byte]))
                    time.sleep(0.01)
                    if time.monotonic() - began > PATIENCE:
                        break
            self.assertLess(time.monotonic() - began, PATIENCE)

    def test_what_a_lost_peer_has_pipelined_is_not_done(self):
        done = []
        with Live() as live, live.client() as client:

            @live.server.tool(inline=True)
            def move() -> str:
                done.append(1)
                next(iter(live.endpoint.connections)).transport.abort()
                return "moved"

            client.send(modern("tools/call", {"name": "move"}) * 3)
            self.assertTrue(client.closed())
            soon(lambda: not live.endpoint.connections, "the connection is gone")
            self.assertEqual(len(done), 1)

    def test_a_kept_connection_is_idle_from_its_last_request_on(self):
        with Live() as live, live.client() as client:
            client.send(modern("tools/list"))
            client.reply()
            connection = next(iter(live.endpoint.connections))
            passed = []

            def half_the_time_passes():
                connection.endpoint.stop(connection)
                connection.due()
                passed.append(connection.line is not None)

            for most in (2, 4):  # halves of idle_timeout, then a request: all anew
                soon(lambda: connection.state == "idle", "idle")
                for _ in range(2):
                    live.loop.call_soon_threadsafe(half_the_time_passes)
                soon(lambda most=most: len(passed) == most, "two halves")
                client.send(modern("tools/list"))
                self.assertEqual(client.reply().status, 200)
            soon(lambda: connection.state == "idle", "idle")
            for _ in range(3):
                live.loop.call_soon_threadsafe(half_the_time_passes)
            self.assertTrue(client.closed())
            self.assertEqual(passed[:6], [True] * 6)

    def test_the_connection_cap_answers_503(self):
        with Live(fixture(limits=Limits(connections=2))) as live:
            with live.client() as one, live.client() as two:
                for client in (one, two):
                    client.send(modern("tools/list"))
                    client.reply()
                with live.client() as three:
                    reply = three.reply()
                    self.assertEqual(reply.status, 503)
                    self.assertIn("retry-after", reply.headers)
                one.send(modern("tools/list"))
                self.assertEqual(one.reply().status, 200)

    def test_a_slow_reader_is_not_a_stuck_one(self):
        with Live() as live, live.client() as client:
            client.send(request("GET", target="/healthz"))
            client.reply()
            connection, found = next(iter(live.endpoint.connections)), []

            def time_passes():
                connection.state, connection.unsent = "write", 1
                for _ in range(2):  # a byte was taken, then none
                    connection.due()
                    found.append(connection.transport.is_closing())

            live.loop.call_soon_threadsafe(time_passes)
            self.assertTrue(client.closed())
            self.assertEqual(found, [False, True])

    def test_what_is_taken_from_the_kernel_is_progress(self):
        """Its buffers are larger than what a slow reader takes in write_timeout."""
        with Live() as live, live.client() as client:
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            client.send(request("GET", target="/healthz"))
            client.reply()
            connection, found = next(iter(live.endpoint.connections)), []

            def owed():
                connection.transport.write(bytes(900_000))
                connection.state, connection.unsent = "write", connection.untaken()

            def time_passes():
                connection.due()
                found.append((connection.owed(), connection.transport.is_closing()))

            live.loop.call_soon_threadsafe(owed)
            soon(lambda: connection.unsent and not connection.owed(), "it is written")
            for rounds in range(1, 4):
                left = 200_000
                while left:
                    left -= len(client.socket.recv(left))
                live.loop.call_soon_threadsafe(time_passes)
                soon(lambda rounds=rounds: len(found) == rounds, "the time passes")
            self.assertEqual(found, [(0, False)] * 3)

    def test_a_reader_that_takes_nothing_is_dropped(self):
        limits = Limits(write_timeout=0.1)
        with Live(fixture(limits=limits)) as live, live.client() as client:
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            big = modern(
                "tools/call", {"name": "echo", "arguments": {"text": "x" * 900_000}}
            )
            soon(lambda: live.endpoint.connections, "it is connected")
            for _ in range(10):
                with contextlib.suppress(ConnectionError):
                    client.send(big)
                if not live.endpoint.connections:
                    break
            soon(lambda: not live.endpoint.connections, "the connection is gone")

    def test_a_body_of_the_limit_and_one_more(self):
        with Live(fixture(limits=Limits(body=8192))) as live:

            def sized(size):
                text = "x"
                empty = len(
                    modern(
                        "tools/call", {"name": "echo", "arguments": {"text": ""}}
                    ).partition(b"\r\n\r\n")[2]
                )
                text *= size - empty
                return modern(
                    "tools/call", {"name": "echo", "arguments": {"text": text}}
                )

            self.assertEqual(live.ask(sized(8192)).status, 200)
            self.assertEqual(live.ask(sized(8193)).status, 413)


class Cors(unittest.TestCase):
    def test_configured_origin_C07(self):
        origin = "https://app.example"
        with Live(allow_origins=(origin,)) as live:
            fields = [
                ("Origin", origin),
                ("Access-Control-Request-Method", "POST"),
                (
                    "Access-Control-Request-Headers",
                    "content-type,mcp-method,mcp-param-x",
                ),
            ]
            reply = live.ask(request("OPTIONS", headers=fields))
            self.assertEqual(reply.status, 204)
            self.assertEqual(reply.headers["access-control-allow-origin"], origin)
            self.assertIn("DELETE", reply.headers["access-control-allow-methods"])
            self.assertIn("mcp-param-x", reply.headers["access-control-allow-headers"])
            self.assertEqual(reply.headers["vary"], "Origin")
            for data, status in (
                (modern("tools/list", headers={"Origin": origin}), 200),
                (modern("nope", headers={"Origin": origin}), 404),
                (
                    initialize().replace(
                        b"Host:", b"Origin: %b\r\nHost:" % origin.encode()
                    ),
                    200,
                ),
            ):
                reply = live.ask(data)
                self.assertEqual(reply.status, status)
                self.assertEqual(reply.headers["access-control-allow-origin"], origin)
                self.assertIn(
                    "Mcp-Session-Id", reply.headers["access-control-expose-headers"]
                )
            self.assertEqual(live.state()[0], 1)
            fields[0] = ("Origin", "https://evil.example")
            self.assertEqual(live.ask(request("OPTIONS", headers=fields)).status, 403)

    def test_lan_bind_C06(self):
        server = fixture()
        names = ("pi.lan:8000",)
        with Live(server, host="0.0.0.0", insecure=True, allow_hosts=names) as live:
            for host, status in {
                "192.168.1.50:8000": 200,
                "192.168.1.50": 200,
                "[fe80::1]:80": 200,
                "pi.lan": 200,
                "PI.LAN:9": 200,
                "other.lan": 421,
            }.items():
                data = modern("tools/list").replace(
                    b"Host: localhost", b"Host: " + host.encode()
                )
                self.assertEqual(live.ask(data).status, status, host)
            data = modern("tools/list", headers={"Origin": "http://192.168.1.50:80"})
            same = data.replace(b"Host: localhost", b"Host: 192.168.1.50:80")
            self.assertEqual(live.ask(same).status, 200)
            self.assertEqual(live.ask(data).status, 403)
        names = ("[fe80::1]:80", "FE80::2")  # on loopback, behind a proxy
        with Live(fixture(), allow_hosts=names) as live:
            for host, status in {
                "[fe80::1]": 200,
                "[fe80::2]": 200,
                "[fe80::3]": 421,
            }.items():
                data = modern("tools/list").replace(
                    b": localhost", b": " + host.encode()
                )
                self.assertEqual(live.ask(data).status, status, host)
        with Live(fixture(), allow_hosts=("*",)) as live:
            data = modern("tools/list").replace(b"Host: localhost", b"Host: any.where")
            self.assertEqual(live.ask(data).status, 200)


class Ending(unittest.TestCase):
    def test_in_flight_calls_get_their_grace_and_the_port_is_free(self):
        with Live() as live, live.client() as client, live.client() as idle:
            session = live.open()
            idle.send(request("GET", target="/healthz"))
            idle.reply()
            client.send(legacy(session, "tools/call", {"name": "work"}))
            live.server.entered.wait(PATIENCE)
            live.loop.call_soon_threadsafe(live.stop.set)
            self.assertTrue(idle.closed())
            live.server.proceed.set()
            self.assertEqual(
                client.reply().json["result"]["content"][0]["text"], "worked"
            )
            live.thread.join(PATIENCE)
            with socket.socket() as again:
                again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                again.bind(("127.0.0.1", live.port))

    def test_calls_beyond_the_grace_are_given_up(self):
        with Live(fixture(limits=Limits(grace=0.05))) as live, live.client() as client:
            client.send(modern("tools/call", {"name": "nap"}))
            live.server.entered.wait(PATIENCE)
            live.end()
            self.assertEqual(live.server.ended, ["cancelled"])

    def test_get_streams_end_C18(self):
        with Live() as live, live.client() as client:
            session = live.open()
            client.send(request("GET", headers=[("Mcp-Session-Id", session)]))
            client.head()
            began = time.monotonic()
            live.end()
            self.assertLess(time.monotonic() - began, 3)
            self.assertEqual(list(client.events()), [])

    def test_embedding_leaves_no_task_C19(self):
        async def main():
            server, stop, names = fixture(), asyncio.Event(), []
            before = asyncio.all_tasks()
            task = asyncio.ensure_future(
                server.serve_http(port=0, ready=names.extend, stop=stop)
            )
            while not names:
                await asyncio.sleep(0)
            reader, writer = await asyncio.open_connection(*names[0])
            for _ in range(20):
                writer.write(request(body=json.dumps(message("tools/list")).encode()))
                writer.write(request(body=b"garbage"))
            await writer.drain()
            await reader.readuntil(b"\r\n\r\n")
            stop.set()
            await task
            writer.close()
            for _ in range(100):
                if asyncio.all_tasks() == before:
                    return True
                await asyncio.sleep(0.01)
            return asyncio.all_tasks()

        self.assertIs(asyncio.run(main()), True)

    def test_localhost_is_both_families_C20(self):
        with Live(host="localhost") as live:
            hosts = {name[0] for name in live.names}
            self.assertIn("127.0.0.1", hosts)
            for host, port in live.names:
                with Client(port, host) as client:
                    client.send(modern("tools/list"))
                    self.assertEqual(client.reply().status, 200)
            self.assertEqual(len({name[1] for name in live.names}), 1)

    def test_a_fault_of_ours_ends_one_connection_only(self):
        with Live() as live:
            endpoint, handle = live.endpoint, rt._Endpoint.handle
            rt._Endpoint.handle = lambda *a: 1 / 0
            try:
                with live.client() as client:
                    client.send(modern("tools/list"))
                    self.assertTrue(client.closed())
            finally:
                rt._Endpoint.handle = handle
            self.assertTrue(any("ZeroDivisionError" in t for t in live.server.logged))
            self.assertEqual(live.ask(modern("tools/list")).status, 200)
            self.assertIs(live.endpoint, endpoint)


if __name__ == "__main__":
    unittest.main()
