"""What the protocol asks of a server, row by row, through dispatch."""

import base64
import json
import pathlib
import re
import sys
import threading
import time
import unittest

import tinymcp
from tinymcp import (
    Annotations,
    Audio,
    AudioContent,
    CallToolResult,
    Completion,
    Context,
    EmbeddedResource,
    Icon,
    Image,
    InputRequired,
    Limits,
    MCPError,
    Message,
    PromptReference,
    ResourceLink,
    ResourceNotFoundError,
    Server,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
    ToolError,
)

rt = sys.modules[tinymcp.Server.__module__]

A, B, C, D, E = rt._LEGACY + rt._MODERN
PREFIX = "io.modelcontextprotocol/"
PATIENCE = 10.0


class Peer(rt._Peer):
    """The other end: what came from the server, in order."""

    def __init__(self, server, revision=E, **capabilities):
        super().__init__(server)
        self.came = []
        self.changed = threading.Condition()
        self.revision, self.declared = revision, capabilities
        self.last = 100
        if revision != E:
            params = {"protocolVersion": revision, "capabilities": capabilities}
            params["clientInfo"] = {"name": "t", "version": "0"}
            self.welcome = self.ask("initialize", params)
            self.tell("notifications/initialized")

    def send(self, data):
        with self.changed:
            self.came += [json.loads(line) for line in data.splitlines()]
            self.changed.notify_all()

    def wait(self, wanted):
        """The first message that fits, taken out."""
        with self.changed:

            def found():
                return next((m for m in self.came if wanted(m)), None)

            if not self.changed.wait_for(found, PATIENCE):
                raise AssertionError(f"it did not come; there is {self.came}")
            message = found()
            self.came.remove(message)
            return message

    def give(self, message):
        found = self.server._dispatch(message, self, 10)
        if type(found) is tuple:
            self.send(found[0])
        elif found is not None:
            found.launch()

    def start(self, method, params=None, id=None, meta=None):
        """Send a request; its id."""
        self.last += 1
        id = self.last if id is None else id
        params = dict(params or {})
        if self.revision == E:
            own = {PREFIX + "protocolVersion": E}
            own[PREFIX + "clientCapabilities"] = self.declared
            params["_meta"] = {**own, **(meta or {})}
        elif meta:
            params["_meta"] = meta
        message = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
        self.give(message)
        return id

    def got(self, id):
        return self.wait(lambda m: m.get("id") == id and "method" not in m)

    def ask(self, method, params=None, id=None, meta=None):
        """A request and its whole reply."""
        return self.got(self.start(method, params, id, meta))

    def result(self, method, params=None, **more):
        return self.ask(method, params, **more)["result"]

    def error(self, method, params=None, **more):
        return self.ask(method, params, **more)["error"]

    def call(self, name, meta=None, **arguments):
        return self.result(
            "tools/call", {"name": name, "arguments": arguments}, meta=meta
        )

    def tell(self, method, params=None):
        self.give({"jsonrpc": "2.0", "method": method, "params": params or {}})

    def answer(self, request, result=None, **error):
        reply = {"jsonrpc": "2.0", "id": request["id"]}
        self.give({**reply, "error": error} if error else {**reply, "result": result})


def quiet(**options):
    logged = []
    server = Server("rows", "1", log=lambda level, text: logged.append(text), **options)
    server.logged = logged
    return server


def everyone(server, **capabilities):
    return [Peer(server, revision, **capabilities) for revision in (A, B, C, D, E)]


class Envelope(unittest.TestCase):
    def test_every_modern_result_says_what_it_is_RPC_06_DSC_02(self):
        server = quiet()
        server.tool(lambda: "x", name="t")
        server.add_resource("x://a", lambda: "a", name="a")
        server.add_prompt(lambda: "p", name="p")
        peer = Peer(server)
        for method, params in (
            ("server/discover", {}),
            ("tools/list", {}),
            ("resources/list", {}),
            ("resources/templates/list", {}),
            ("prompts/list", {}),
            ("tools/call", {"name": "t"}),
            ("resources/read", {"uri": "x://a"}),
            ("prompts/get", {"name": "p"}),
        ):
            result = peer.result(method, params)
            self.assertEqual(result["resultType"], "complete", method)
            info = {"name": "rows", "version": "1"}
            self.assertEqual(result["_meta"][PREFIX + "serverInfo"], info)

    def test_an_id_in_flight_is_not_taken_again_RPC_09(self):
        server, gate = quiet(), threading.Event()
        server.tool(lambda: gate.wait(PATIENCE) and "x", name="slow")
        for peer in (Peer(server), Peer(server, D)):
            gate.clear()
            peer.start("tools/call", {"name": "slow"}, id=7)
            self.assertEqual(peer.error("tools/list", id=7)["code"], -32600)
            gate.set()
            self.assertIn("result", peer.got(7))
            self.assertIn("result", peer.ask("tools/list", id=7))

    def test_unknown_methods_ERR_03(self):
        for peer in everyone(quiet()):
            self.assertEqual(peer.error("no/such")["code"], -32601)

    def test_notifications_are_never_answered_LIF_03_CAN_02(self):
        for peer in everyone(quiet()):
            for method, params in (
                ("notifications/initialized", {}),
                ("notifications/nope", {}),
                ("tools/list", {}),
                ("notifications/cancelled", {}),
                ("notifications/cancelled", {"requestId": 99}),
                ("notifications/cancelled", {"requestId": None}),
                ("notifications/cancelled", {"requestId": [1]}),
            ):
                peer.tell(method, params)
            self.assertEqual(peer.came, [])

    def test_responses_that_nobody_waits_for_are_ignored_B10(self):
        for peer in everyone(quiet()):
            peer.answer({"id": 99}, {})
            peer.answer({"id": "s1"}, code=-1, message="x")
            self.assertEqual(peer.came, [])


class Lifecycle(unittest.TestCase):
    def test_versions_LIF_02_LIF_10(self):
        server = quiet(instructions="Be gentle.")
        for wanted, given in (
            *((revision, revision) for revision in (A, B, C, D)),
            ("2024-10-07", D),
            ("2099-01-01", D),
            ("", D),
            (E, D),
        ):
            peer = Peer(server)
            params = {"protocolVersion": wanted, "capabilities": {}}
            params["clientInfo"] = {"name": "t", "version": "0"}
            message = {
                "jsonrpc": "2.0",
                "id": 1,
                "method": "initialize",
                "params": params,
            }
            peer.give(message)
            result = peer.got(1)["result"]
            self.assertEqual(result["protocolVersion"], given)
            self.assertEqual(result["instructions"], "Be gentle.")
        self.assertEqual(
            Peer(server).result("server/discover")["instructions"], "Be gentle."
        )
        for version in (5, None, [D]):
            peer = Peer(server)
            message["params"] = {"protocolVersion": version}
            peer.give(message)
            self.assertEqual(peer.got(1)["error"]["code"], -32602)

    def test_ping_and_nothing_else_before_initialize_LIF_04_LIF_06(self):
        peer = Peer(quiet())
        peer.give({"jsonrpc": "2.0", "id": 1, "method": "ping"})
        self.assertEqual(peer.got(1)["result"], {})
        peer.give({"jsonrpc": "2.0", "id": 2, "method": "tools/list"})
        self.assertIn("initialize", peer.got(2)["error"]["message"])
        peer.give({"jsonrpc": "2.0", "id": 3, "method": "server/discover"})
        self.assertEqual(peer.got(3)["error"]["code"], -32602)

    def test_changes_wait_for_initialized_LIF_06_E01(self):
        server = quiet()
        server.tool(lambda: "x", name="t")
        peer = Peer(server)
        params = {"protocolVersion": D, "capabilities": {}, "clientInfo": {}}
        message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
        peer.give(message)
        peer.got(1)
        peer.give({"jsonrpc": "2.0", "id": 2, "method": "tools/list"})
        self.assertIn("result", peer.got(2))
        server.remove_tool("t")
        server._tick(time.monotonic())
        self.assertEqual(peer.came, [])
        peer.tell("notifications/initialized")
        server._tick(time.monotonic())
        self.assertIn("list_changed", peer.came[0]["method"])

    def test_both_eras_on_one_stream_VER_02_VER_03(self):
        server = quiet()
        server.tool(lambda: "x", name="t")
        peer = Peer(server, D)
        self.assertNotIn("resultType", peer.result("tools/list"))
        peer.revision = E
        self.assertIn("resultType", peer.result("tools/list"))
        peer.revision = D
        self.assertNotIn("resultType", peer.result("tools/list"))

    def test_a_call_out_of_time_LIF_09(self):
        server, gate = quiet(limits=Limits(call_timeout=0.01)), threading.Event()
        told = []

        @server.tool
        def slow(ctx: Context) -> str:
            gate.wait(PATIENCE)
            told.append(ctx.cancelled)
            return "late"

        server.tool(lambda: gate.wait(PATIENCE) and "x", name="own", timeout=600)
        for peer in (Peer(server), Peer(server, D)):
            id = peer.start("tools/call", {"name": "slow"})
            other = peer.start("tools/call", {"name": "own"})
            time.sleep(0.02)  # the limit itself
            server._tick(time.monotonic())
            self.assertTrue(peer.got(id)["result"]["isError"])
            gate.set()
            peer.got(other)
            gate.clear()
            self.assertEqual(peer.came, [])  # the late value went nowhere
        self.assertEqual(set(told), {True})

    def test_capabilities_say_what_there_is_DSC_01_DSC_04_CMP_02(self):
        server = quiet()
        modern, legacy = Peer(server), Peer(server, D)
        found = modern.result("server/discover")
        self.assertEqual(found["supportedVersions"], [E])
        self.assertGreaterEqual(found["ttlMs"], 0)
        self.assertIn(found["cacheScope"], ("public", "private"))
        self.assertEqual(set(found["capabilities"]), {"logging"})
        for method in ("tools/list", "prompts/list", "resources/list"):
            self.assertEqual(modern.error(method)["code"], -32601)
            self.assertIn("result", legacy.ask(method))  # old clients ask regardless
        server.tool(lambda: "x", name="t")
        server.add_prompt(lambda: "x", name="p")
        server.add_resource("x://{n}", lambda n: n, name="r")
        server.completion(lambda ref, argument: [])
        found = modern.result("server/discover")["capabilities"]
        wanted = {"logging", "tools", "prompts", "resources", "completions"}
        self.assertEqual(set(found), wanted)
        self.assertEqual(found["resources"], {"subscribe": True, "listChanged": True})
        self.assertNotIn(
            "completions", Peer(server, A).welcome["result"]["capabilities"]
        )
        self.assertIn("completions", Peer(server, B).welcome["result"]["capabilities"])


class Tools(unittest.TestCase):
    def test_failures_have_their_kind_TOL_02_TOL_03_TOL_04_SEC_06_ERR_08(self):
        server = quiet()

        @server.tool
        def add(a: int, b: int = 1) -> int:
            return a + b

        ran = []

        @server.tool
        def fails(how: str) -> str:
            ran.append(how)
            raise {
                "tool": ToolError("Close the vent first"),
                "value": ValueError("boom in /etc/secret/key.pem or C:\\keys\\x"),
                "file": FileNotFoundError(2, "No such file", "/etc/secret"),
                "exit": SystemExit(3),
                "deep": RecursionError("deep"),
                "rpc": MCPError(-31999, "Mine", {"a": 1}),
            }[how]

        for peer in everyone(server):
            good = peer.call("add", a=2)
            self.assertEqual(good["content"], [{"type": "text", "text": "3"}])
            self.assertIs(good["isError"], False)
            for params in (
                {"name": "nope"},
                {},
                {"name": 5},
                {"name": "add", "arguments": []},
            ):
                self.assertEqual(peer.error("tools/call", params)["code"], -32602)
            for arguments, named in (
                ({}, "a"),
                ({"a": "5"}, "a"),
                ({"a": True}, "a"),
                ({"a": 1, "c": 2}, "c"),
            ):
                wrong = peer.call("add", **arguments)
                self.assertTrue(wrong["isError"])
                self.assertRegex(wrong["content"][0]["text"], rf"\b{named}\b")
            for how, text in (
                ("tool", "Close the vent first"),
                ("value", "boom"),
                ("file", "No such file"),
                ("exit", "SystemExit"),
                ("deep", "deep"),
            ):
                wrong = peer.call("fails", how=how)
                self.assertTrue(wrong["isError"])
                shown = wrong["content"][0]["text"]
                self.assertIn(text, shown)
                self.assertNotRegex(shown, r"Traceback|/etc|secret|keys")
            error = peer.error(
                "tools/call", {"name": "fails", "arguments": {"how": "rpc"}}
            )
            self.assertEqual(
                error, {"code": -31999, "message": "Mine", "data": {"a": 1}}
            )
        self.assertEqual(len(ran), 30)

    def test_results_by_revision_TOL_07_SEC_08(self):
        server = quiet()

        @server.tool
        def numbers() -> "list[int]" if sys.version_info >= (3, 9) else list:
            return [1, 2]

        @server.tool
        def record() -> dict:
            return {"a": (1, 2), "b": {3}}

        @server.tool
        def odd() -> dict:
            return {"x": float("nan")}

        @server.tool(output_schema={"type": "object", "required": ["x"]})
        def lacking():
            return {"y": 1}

        for peer in everyone(server):
            listed = peer.call("numbers")
            wanted = {E: [1, 2], D: {"result": [1, 2]}, C: {"result": [1, 2]}}
            self.assertEqual(listed.get("structuredContent"), wanted.get(peer.revision))
            self.assertEqual(json.loads(listed["content"][0]["text"]), [1, 2])
            plain = {"a": [1, 2], "b": [3]}
            found = peer.call("record")
            self.assertEqual(found.get("structuredContent", plain), plain)
            for name in ("odd", "lacking"):
                self.assertTrue(peer.call(name)["isError"], name)

    def test_content_of_every_kind_fits_the_revision_TOL_09(self):
        server = quiet()
        link = ResourceLink("x://a", "a", mime_type="text/plain")
        text = TextResourceContents("x://a", "body", "text/plain")
        blocks = [
            TextContent("t", annotations=Annotations(["user"], 0.5)),
            Image(data=b"\x89PNG"),
            Audio(data=b"RIFF", format="mp3"),
            AudioContent(b"RIFF", "audio/wav"),
            link,
            EmbeddedResource(text),
            text,
        ]
        server.tool(lambda: blocks, name="all")
        kinds = {
            E: "text image audio audio resource_link resource resource",
            B: "text image audio audio text resource resource",
            A: "text image resource resource text resource resource",
        }
        kinds[D] = kinds[C] = kinds[E]
        for peer in everyone(server):
            content = peer.call("all")["content"]
            self.assertEqual([b["type"] for b in content], kinds[peer.revision].split())
            self.assertEqual(content[1]["data"], base64.b64encode(b"\x89PNG").decode())
        self.assertEqual(content[2]["mimeType"], "audio/mpeg")
        self.assertEqual(
            content[0]["annotations"], {"audience": ["user"], "priority": 0.5}
        )

    def test_a_whole_result_is_the_handlers_own(self):
        server = quiet()
        whole = CallToolResult([TextContent("x")], {"a": 1}, meta={"com.x/y": 1})
        server.tool(lambda: whole, name="whole")
        server.tool(lambda: CallToolResult(["no"], is_error=True), name="bad")
        for peer in everyone(server):
            found = peer.call("whole")
            self.assertEqual(found["_meta"]["com.x/y"], 1)
            self.assertEqual("structuredContent" in found, peer.revision >= C)
            self.assertIs(peer.call("bad")["isError"], True)

    def test_listed_fields_by_revision_TOL_10_TOL_12_LIF_11(self):
        server = quiet(title="T", description="d", icons=[Icon("https://x/i.png")])
        server.tool(
            lambda: "x",
            name="t",
            title="Tool",
            annotations=ToolAnnotations(read_only_hint=True, title="Old"),
            icons=[Icon("data:image/png;base64,AA==", sizes=["any"])],
            meta={"com.x/y": 1},
            output_schema={"type": "string"},
        )
        since = {
            "annotations": B,
            "title": C,
            "outputSchema": C,
            "_meta": C,
            "icons": D,
        }
        for peer in everyone(server):
            (tool,) = peer.result("tools/list")["tools"]
            for field, first in since.items():
                self.assertEqual(
                    field in tool, peer.revision >= first, (field, peer.revision)
                )
            if peer.revision == E:
                self.assertEqual(tool["outputSchema"], {"type": "string"})
                self.assertEqual(
                    tool["annotations"], {"readOnlyHint": True, "title": "Old"}
                )
            else:
                info = peer.welcome["result"]["serverInfo"]
                self.assertEqual("title" in info, peer.revision >= C)
                self.assertEqual("icons" in info, peer.revision >= D)

    def test_lists_change_at_run_time_TOL_13_RES_07_PRM_04(self):
        server = quiet()
        server.tool(lambda: "x", name="t")
        peer = Peer(server, D)
        for change, kind in (
            (lambda: server.add_tool(lambda: "y", name="u"), "tools"),
            (lambda: server.remove_tool("u"), "tools"),
            (lambda: server.add_resource("x://a", lambda: "a", name="a"), "resources"),
            (lambda: server.remove_resource("x://a"), "resources"),
            (
                lambda: server.add_resource("x://{n}", lambda n: n, name="n"),
                "resources",
            ),
            (lambda: server.remove_resource("x://{n}"), "resources"),
            (lambda: server.add_prompt(lambda: "p", name="p"), "prompts"),
            (lambda: server.remove_prompt("p"), "prompts"),
        ):
            change()
            server._tick(time.monotonic())
            (message,) = peer.came
            self.assertEqual(message["method"], f"notifications/{kind}/list_changed")
            peer.came.clear()

    def test_rates_SEC_07_CMP_04(self):
        limits = Limits(tool_rate=(3, 1000.0), completion_rate=(1, 1000.0))
        server = quiet(limits=limits)
        server.tool(lambda: "x", name="t")
        server.tool(lambda: "x", name="one", rate=(1, 1000.0))
        server.add_prompt(lambda plant: plant, name="p")
        server.completion(lambda ref, argument: [])
        peer = Peer(server)
        self.assertFalse(peer.call("one")["isError"])
        for name in ("one", "t", "t"):
            last = peer.call(name)
        self.assertTrue(last["isError"])
        self.assertRegex(last["content"][0]["text"], r"retry in \d")
        ref = {"type": "ref/prompt", "name": "p"}
        params = {"ref": ref, "argument": {"name": "plant", "value": ""}}
        self.assertIn("result", peer.ask("completion/complete", params))
        self.assertEqual(peer.error("completion/complete", params)["code"], 429)


class Resources(unittest.TestCase):
    def server(self):
        server = quiet()
        server.add_resource("x://text", lambda: "é", name="text")
        server.add_resource(
            "x://bytes", lambda: b"\0\1", name="b", mime_type="image/png"
        )
        server.add_resource("x://json", lambda: {"a": 1}, name="json", size=7)
        server.add_resource("x://many/{a}/{b}", lambda a, b: f"{a}|{b}", name="many")
        server.add_resource("x://deep/{+path}", lambda path: path, name="deep")
        server.add_resource("file:///srv/{name}", lambda name: name, name="file")

        @server.resource("x://q{?n,on}")
        def query(n: int = 1, on: bool = False) -> dict:
            return {"n": n, "on": on}

        @server.resource("x://list{/parts*}")
        def listed(parts: list) -> list:
            return parts

        @server.resource("x://gone/{n}")
        def gone(n: str) -> str:
            raise ResourceNotFoundError(n) if n == "1" else ValueError("/etc/secret")

        return server

    def test_what_is_read_RES_03(self):
        server = self.server()
        for peer in (Peer(server), Peer(server, D)):
            for uri, kind, value in (
                ("x://text", "text/plain", "é"),
                ("x://bytes", "image/png", "AAE="),
                ("x://json", "application/json", '{"a":1}'),
                ("x://many/1/b%20c", "text/plain", "1|b c"),
                ("x://deep/a/b/c", "text/plain", "a/b/c"),
                ("x://q", "application/json", '{"n":1,"on":false}'),
                ("x://q?n=5&on=true", "application/json", '{"n":5,"on":true}'),
                ("x://list/a/b", "application/json", '["a","b"]'),
                ("file:///srv/a.txt", "text/plain", "a.txt"),
            ):
                (content,) = peer.result("resources/read", {"uri": uri})["contents"]
                self.assertEqual(content["uri"], uri)
                self.assertEqual(content["mimeType"], kind)
                self.assertEqual(content.get("text", content.get("blob")), value)
            listed = peer.result("resources/templates/list")["resourceTemplates"]
            self.assertIn("x://many/{a}/{b}", [t["uriTemplate"] for t in listed])

    def test_what_is_missing_or_outside_RES_04_RES_08_ERR_05(self):
        server = self.server()
        for peer, code in ((Peer(server), -32602), (Peer(server, D), -32002)):
            for uri in (
                "x://none",
                "x://many/1",
                "x://q?n=x",
                "x://many/%ff/b",
                "file:///srv/../etc/passwd",
                "file:///srv/%2e%2e",
                "file:///srv/..%2fetc",
                "file:///srv/a%5c..%5cb",
                "file:///srv/a%00b",
                "x://gone/1",
            ):
                error = peer.error("resources/read", {"uri": uri})
                self.assertEqual(error["code"], code, uri)
                self.assertIn("uri", error["data"])
            for uri in (None, 5, ["x://text"]):
                self.assertEqual(
                    peer.error("resources/read", {"uri": uri})["code"], -32602
                )
            error = peer.error("resources/read", {"uri": "x://gone/2"})
            self.assertEqual(error["code"], -32603)
            self.assertNotIn("secret", json.dumps(error))

    def test_uris_and_metadata_RES_06_RES_09(self):
        server = quiet()
        for uri in ("no-scheme", "1x://a", "x: a", ""):
            with self.assertRaisesRegex(tinymcp.DefinitionError, "scheme"):
                server.add_resource(uri, lambda: "x", name="x")
        for uri in ("x://{a", "x://{#a}", "x://{a,b}", "x://{a:3}", "x://{a}}"):
            with self.assertRaises(tinymcp.DefinitionError):
                server.add_resource(uri, lambda a: "x", name="x")
        notes = Annotations(["user"], 0.9, "2026-07-28T00:00:00Z")
        server.add_resource(
            "x://a",
            lambda: "a",
            name="a",
            annotations=notes,
            size=1,
            icons=[Icon("https://i")],
        )
        (found,) = Peer(server).result("resources/list")["resources"]
        self.assertEqual(found["annotations"]["lastModified"], "2026-07-28T00:00:00Z")
        self.assertEqual((found["size"], found["icons"]), (1, [{"src": "https://i"}]))

    def test_cache_hints_CCH_02_CCH_04(self):
        server = quiet(page_size=1)
        server.add_resource("x://a", lambda: "a", name="a")
        server.add_resource(
            "x://b", lambda: "b", name="b", ttl_ms=5, cache_scope="public"
        )

        @server.resource("x://ask", inline=True)
        def ask(ctx: Context) -> str:
            return str(ctx.confirm("?"))

        peer = Peer(server, elicitation={})
        first = peer.result("resources/list")
        second = peer.result("resources/list", {"cursor": first["nextCursor"]})
        for page in (first, second):
            self.assertEqual((page["ttlMs"], page["cacheScope"]), (0, "private"))
        read = peer.result("resources/read", {"uri": "x://b"})
        self.assertEqual((read["ttlMs"], read["cacheScope"]), (5, "public"))
        asked = peer.result("resources/read", {"uri": "x://ask"})
        self.assertEqual(asked["resultType"], "input_required")
        self.assertFalse({"ttlMs", "cacheScope"} & set(asked))


class Prompts(unittest.TestCase):
    def test_get_PRM_02_PRM_03(self):
        server = quiet()

        @server.prompt
        def greet(name: str, times: int = 1):
            return [
                Message(f"Hi {name}"),
                {"role": "assistant", "content": "x" * times},
            ]

        for peer in everyone(server):
            params = {"name": "greet", "arguments": {"name": "A", "times": "3"}}
            found = peer.result("prompts/get", params)["messages"]
            self.assertEqual([m["content"]["text"] for m in found], ["Hi A", "xxx"])
            for bad in (
                {"name": "nope"},
                {"name": None},
                {"name": "greet"},
                {"name": "greet", "arguments": {"name": 5}},
                {"name": "greet", "arguments": {"name": "A", "times": "x"}},
                {"name": "greet", "arguments": []},
            ):
                self.assertEqual(peer.error("prompts/get", bad)["code"], -32602, bad)

    def test_completion_CMP_01_CMP_03(self):
        server, seen = quiet(), []
        server.add_prompt(lambda plant: plant, name="p")
        server.add_resource("x://{plant}", lambda plant: plant, name="r")

        @server.completion()
        def complete(ref, argument, context):
            seen.append((isinstance(ref, PromptReference), context.arguments))
            if argument.value == "many":
                return [str(n) for n in range(150)]
            return (
                Completion(["fern"], total=1, has_more=False)
                if argument.value
                else None
            )

        peer = Peer(server)
        prompt = {"type": "ref/prompt", "name": "p"}
        template = {"type": "ref/resource", "uri": "x://{plant}"}

        def ask(ref, value, **more):
            argument = {"name": "plant", "value": value}
            params = {"ref": ref, "argument": argument, **more}
            return peer.ask("completion/complete", params)

        found = ask(prompt, "many")["result"]["completion"]
        self.assertEqual(len(found["values"]), 100)
        self.assertEqual((found["total"], found["hasMore"]), (150, True))
        self.assertEqual(ask(template, "f")["result"]["completion"]["values"], ["fern"])
        ask(prompt, "", context={"arguments": {"soil": "dry"}})
        self.assertEqual(seen, [(True, {}), (False, {}), (True, {"soil": "dry"})])
        for ref in ({"type": "ref/prompt", "name": "x"}, {"type": "x"}, {}, 5):
            self.assertEqual(ask(ref, "x")["error"]["code"], -32602)
        self.assertEqual(ask(prompt, 5)["error"]["code"], -32602)

    def test_pages_PAG_01_PAG_02(self):
        server = quiet(page_size=2)
        for n in range(5):
            server.tool(lambda: "x", name=f"t{n}")
        for peer in everyone(server):
            names, cursor = [], None
            while True:
                page = peer.result("tools/list", {"cursor": cursor} if cursor else {})
                names += [tool["name"] for tool in page["tools"]]
                cursor = page.get("nextCursor")
                if cursor is None:
                    break
            self.assertEqual(names, [f"t{n}" for n in range(5)])
            for bad in ("", "p", "zzz", "p" + "f" * 12, 5, ["p1"]):
                self.assertEqual(
                    peer.error("tools/list", {"cursor": bad})["code"], -32602
                )
        first = peer.result("tools/list")
        server.remove_tool("t1")
        rest = peer.result("tools/list", {"cursor": first["nextCursor"]})
        self.assertEqual([tool["name"] for tool in rest["tools"]], ["t2", "t3"])


class Reports(unittest.TestCase):
    def server(self, **limits):
        server = quiet(limits=Limits(**limits))

        @server.tool(inline=True)
        def work(ctx: Context) -> str:
            for done in (0, 0.5, 0.5, 0.2, float("nan"), 1.0):
                ctx.report_progress(done, 1, "step")
            ctx.debug("d")
            ctx.warning({"w": 1}, logger="x")
            server.kept = ctx
            return "done"

        return server

    def test_progress_needs_a_token_PRG_02_B09(self):
        for token, count in (
            (0, 3),
            ("", 3),
            ("a", 3),
            (None, 0),
            (1.5, 0),
            (True, 0),
            ([], 0),
        ):
            for peer in everyone(self.server()):
                level = {PREFIX + "logLevel": "emergency"} if peer.revision == E else {}
                peer.call("work", meta={"progressToken": token, **level})
                found = [m["params"] for m in peer.came if "progress" in m["method"]]
                self.assertEqual(len(found), count, token)
                self.assertEqual([p["progress"] for p in found], [0, 0.5, 1.0][:count])
                self.assertTrue(all(p["progressToken"] == token for p in found))
                if count:
                    self.assertEqual("message" in found[0], peer.revision >= B)

    def test_nothing_after_the_reply(self):
        server = self.server()
        peer = Peer(server, D)
        peer.call("work", meta={"progressToken": 1})
        peer.came.clear()
        server.kept.report_progress(9)
        server.kept.error("late")
        self.assertEqual(peer.came, [])

    def test_levels_LOG_03_LOG_04(self):
        server = self.server()
        modern, legacy = Peer(server), Peer(server, D)
        for level, wanted in (("debug", 2), ("warning", 1), ("error", 0), (None, 0)):
            meta = {} if level is None else {PREFIX + "logLevel": level}
            modern.call("work", meta=meta)
            self.assertEqual(len(modern.came), wanted)
            modern.came.clear()
        error = modern.error("tools/list", meta={PREFIX + "logLevel": "loud"})
        self.assertEqual(error["code"], -32602)
        self.assertEqual(
            legacy.error("logging/setLevel", {"level": "loud"})["code"], -32602
        )
        legacy.result("logging/setLevel", {"level": "debug"})
        legacy.call("work")
        self.assertEqual(
            [m["params"]["level"] for m in legacy.came], ["debug", "warning"]
        )
        server.kept._call.server._log_bucket = rt._Bucket((1, 1000.0))
        legacy.came.clear()
        for _ in range(3):
            legacy.call("work")
        self.assertEqual(len(legacy.came), 1)

    def test_meta_and_traces_reach_the_handler_MET_03_MET_04_MET_05_OTL_01(self):
        server, seen = quiet(), []

        @server.tool(inline=True)
        def look(ctx: Context) -> str:
            seen.append((ctx.meta, ctx.client_info, ctx.protocol_version))
            return "x"

        trace = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "com.x/y": {"z": 1}}
        for peer in everyone(server):
            more = (
                {PREFIX + "clientInfo": {"name": "evil"}} if peer.revision == E else {}
            )
            before = peer.call("look")
            self.assertEqual(peer.call("look", meta={**trace, **more}), before)
            meta, info, version = seen[-1]
            self.assertEqual({k: meta[k] for k in trace}, trace)
            self.assertEqual(info["name"], "evil" if more else "t")
            self.assertEqual(version, peer.revision)


class Questions(unittest.TestCase):
    def server(self, **options):
        server = quiet(**options)
        server.ran = []

        @server.tool(lock="vent")
        def vent(percent: int, ctx: Context) -> dict:
            moved = ctx.once(
                "move", lambda: server.ran.append(percent) or len(server.ran)
            )
            first = ctx.confirm(f"Open to {percent}?")
            second = ctx.confirm("Really?", key="really") if first else False
            return {"moved": moved, "yes": first and second}

        @server.tool
        def later(ctx: Context) -> str:
            answer = ctx.elicit(
                "Name?",
                {
                    "type": "object",
                    "properties": {"name": {"type": "string", "minLength": 1}},
                },
            )
            return f"{answer.action} {answer.content.get('name')}"

        @server.tool
        def model(ctx: Context, tools: bool = False) -> str:
            more = {"tools": [], "tool_choice": {"mode": "none"}} if tools else {}
            return ctx.sample("Hi", 5, system_prompt="s", **more).text

        @server.tool
        def roots(ctx: Context) -> str:
            return ",".join(root.uri for root in ctx.list_roots())

        @server.tool
        def page(ctx: Context) -> str:
            return ctx.elicit_url("Pay", "https://pay.example").action

        @server.tool
        def several(ctx: Context):
            wanted = {"a": {"method": "roots/list"}, "b": {"method": "roots/list"}}
            if set(wanted) <= set(ctx.input_responses):
                return f"{ctx.request_state} {len(ctx.input_responses)}"
            left = {k: v for k, v in wanted.items() if k not in ctx.input_responses}
            return InputRequired(left, state="mine")

        return server

    def rounds(self, peer, name, answers, **arguments):
        """Answer questions in order until the call is complete; its result."""
        params = {"name": name, "arguments": arguments}
        answers = list(answers)
        if peer.revision == E:
            while True:
                result = peer.result("tools/call", params)
                if result["resultType"] == "complete":
                    return result
                given = {key: answers.pop(0) for key in result["inputRequests"]}
                params = {**params, "inputResponses": given}
                params["requestState"] = result["requestState"]
        id = peer.start("tools/call", params)
        while True:
            message = peer.wait(lambda m: "id" in m)
            if message["id"] == id and "method" not in message:
                return message["result"]
            peer.answer(message, answers.pop(0))

    YES = {"action": "accept", "content": {"confirm": True}}

    def test_alike_in_both_eras_and_side_effects_once_LIF_07_ELI_02(self):
        for revision in (C, D, E):
            server = self.server()
            peer = Peer(server, revision, elicitation={})
            result = self.rounds(peer, "vent", [self.YES, self.YES], percent=90)
            self.assertEqual(result["structuredContent"], {"moved": 1, "yes": True})
            self.assertEqual(server.ran, [90])
            for no in (
                {"action": "decline"},
                {"action": "cancel"},
                {"action": "accept", "content": {"confirm": False}},
            ):
                result = self.rounds(peer, "vent", [no], percent=1)
                self.assertIs(result["structuredContent"]["yes"], False)
            named = {"action": "accept", "content": {"name": "x"}}
            result = self.rounds(peer, "later", [named])
            self.assertEqual(result["content"][0]["text"], "accept x")

    def test_a_modern_server_writes_no_requests_STD_04_MRT_01(self):
        peer = Peer(self.server(), elicitation={})
        peer.call("vent", percent=5)
        self.assertEqual(peer.came, [])

    def test_only_what_the_client_declared_LIF_07_SMP_03_ELI_05(self):
        server = self.server()
        for name, arguments, needed, enough in (
            (
                "vent",
                {"percent": 1},
                {"elicitation": {}},
                {"elicitation": {"form": {}}},
            ),
            ("vent", {"percent": 1}, {"elicitation": {}}, {"elicitation": {}}),
            ("page", {}, {"elicitation": {"url": {}}}, {"elicitation": {"url": {}}}),
            ("model", {}, {"sampling": {}}, {"sampling": {}}),
            (
                "model",
                {"tools": True},
                {"sampling": {"tools": {}}},
                {"sampling": {"tools": {}}},
            ),
            ("roots", {}, {"roots": {}}, {"roots": {}}),
        ):
            params = {"name": name, "arguments": arguments}
            error = Peer(server).error("tools/call", params)
            self.assertEqual(error["code"], -32021)
            self.assertEqual(error["data"]["requiredCapabilities"], needed)
            asked = Peer(server, **enough).result("tools/call", params)
            self.assertEqual(asked["resultType"], "input_required")
            told = Peer(server, D).result("tools/call", params)
            self.assertTrue(told["isError"])
            self.assertIn(next(iter(needed)), told["content"][0]["text"])
        url_only = Peer(server, elicitation={"url": {}})
        params = {"name": "vent", "arguments": {"percent": 1}}
        self.assertEqual(url_only.error("tools/call", params)["code"], -32021)
        old = Peer(server, B, elicitation={})
        self.assertTrue(old.result("tools/call", params)["isError"])
        self.assertTrue(
            Peer(server, C, elicitation={"url": {}}).call("page")["isError"]
        )

    def test_sampling_and_roots_SMP_04_ELI_06(self):
        server = self.server()
        answer = {
            "role": "assistant",
            "content": {"type": "text", "text": "yo"},
            "model": "m",
        }
        for revision in (A, D, E):
            peer = Peer(server, revision, sampling={}, roots={})
            text = self.rounds(peer, "model", [answer])["content"][0]["text"]
            self.assertEqual(text, "yo")
            listed = {
                "roots": [{"uri": "file:///a"}, {"uri": "file:///b", "name": "b"}]
            }
            text = self.rounds(peer, "roots", [listed])["content"][0]["text"]
            self.assertEqual(text, "file:///a,file:///b")
        request = Peer(server, sampling={}).call("model")["inputRequests"]["1"][
            "params"
        ]
        self.assertEqual(set(request), {"messages", "maxTokens", "systemPrompt"})
        peer = Peer(server, D, elicitation={"url": {}})
        peer.start("tools/call", {"name": "page"})
        asked = peer.wait(lambda m: "method" in m)["params"]
        self.assertEqual(asked["mode"], "url")
        self.assertRegex(asked["elicitationId"], "^[0-9a-f]{24}$")

    def test_the_explicit_form_MRT_09(self):
        for revision in (D, E):
            peer = Peer(self.server(), revision, roots={})
            found = {"roots": []}
            text = self.rounds(peer, "several", [found, found])["content"][0]["text"]
            self.assertEqual(text, "mine 2")
        peer = Peer(self.server(), roots={})
        first = peer.call("several")
        params = {"name": "several", "requestState": first["requestState"]}
        params["inputResponses"] = {"a": found, "zzz": {}}
        second = peer.result("tools/call", params)
        self.assertEqual(set(second["inputRequests"]), {"b"})  # asked again, no error

    def test_state_is_bound_and_used_once_MRT_05_SEC_09_ELI_07(self):
        server = self.server(limits=Limits(state_age=1000.0))
        peer = Peer(server, elicitation={})
        first = peer.call("vent", percent=5)
        self.assertNotEqual(
            first["requestState"], peer.call("vent", percent=5)["requestState"]
        )
        good = {"name": "vent", "arguments": {"percent": 5}}
        good["requestState"] = first["requestState"]
        good["inputResponses"] = {"1": self.YES}
        for change in (
            {"arguments": {"percent": 6}},
            {"name": "later", "arguments": {}},
            {"requestState": first["requestState"] + "A"},
            {"requestState": first["requestState"][:-8] + "AAAAAAA="},
            {"requestState": "x"},
            {"requestState": ""},
            {"requestState": 5},
            {"inputResponses": 5},
            {"inputResponses": {"1": 5}},
        ):
            error = peer.error("tools/call", {**good, **change})
            self.assertEqual(error["code"], -32602, change)
        peer.principal = tinymcp.Principal("other", None)
        self.assertEqual(peer.error("tools/call", good)["code"], -32602)
        peer.principal = None
        self.assertEqual(
            peer.result("tools/call", good)["resultType"], "input_required"
        )
        self.assertEqual(peer.error("tools/call", good)["code"], -32602)  # spent
        server._seal.age = -1.0
        late = peer.call("vent", percent=5)
        params = {**good, "requestState": late["requestState"]}
        self.assertEqual(peer.error("tools/call", params)["code"], -32602)

    def test_answers_are_checked_MRT_07(self):
        server = self.server()
        for bad in (
            {},
            {"action": "maybe"},
            {"action": "accept", "content": {"name": ""}},
            {"action": "accept", "content": {"name": 5}},
        ):
            peer = Peer(server, elicitation={})
            first = peer.call("later")
            params = {"name": "later", "requestState": first["requestState"]}
            params["inputResponses"] = {"1": bad}
            self.assertEqual(peer.error("tools/call", params)["code"], -32602, bad)
        peer = Peer(server, D, elicitation={})
        peer.start("tools/call", {"name": "later"}, id=3)
        question = peer.wait(lambda m: "method" in m)
        peer.answer(question, code=-1, message="user is away")
        result = peer.got(3)["result"]
        self.assertTrue(result["isError"])
        self.assertIn("user is away", result["content"][0]["text"])

    def test_rounds_are_bounded(self):
        server = quiet(limits=Limits(rounds=3))

        @server.tool(inline=True)
        def nag(ctx: Context) -> str:
            for n in range(99):
                ctx.confirm(f"{n}?")
            return "never"

        for revision in (D, E):
            peer = Peer(server, revision, elicitation={})
            result = self.rounds(peer, "nag", [self.YES] * 9)
            self.assertTrue(result["isError"])

    def test_cancel_while_a_person_thinks(self):
        server = self.server()
        peer = Peer(server, D, elicitation={})
        peer.start("tools/call", {"name": "vent", "arguments": {"percent": 1}}, id=4)
        question = peer.wait(lambda m: "method" in m)
        peer.tell("notifications/cancelled", {"requestId": 4})
        withdrawn = peer.wait(lambda m: m.get("method") == "notifications/cancelled")
        self.assertEqual(withdrawn["params"]["requestId"], question["id"])
        peer.answer(question, self.YES)
        self.assertEqual(peer.came, [])
        result = self.rounds(peer, "vent", [self.YES, self.YES], percent=2)
        self.assertTrue(result["structuredContent"]["yes"])  # the lane is free


class Lanes(unittest.TestCase):
    def test_a_lane_is_free_only_when_its_function_has_ended(self):
        server, order = quiet(), []
        gates = {name: threading.Event() for name in "ab"}
        began = {name: threading.Event() for name in "ab"}

        @server.tool(lock="bus")
        def move(name: str) -> str:
            order.append("+" + name)
            began[name].set()
            gates[name].wait(PATIENCE)
            order.append("-" + name)
            return name

        peer = Peer(server)
        first = peer.start("tools/call", {"name": "move", "arguments": {"name": "a"}})
        began["a"].wait(PATIENCE)
        second = peer.start("tools/call", {"name": "move", "arguments": {"name": "b"}})
        third = peer.start("tools/call", {"name": "move", "arguments": {"name": "a"}})
        peer.tell("notifications/cancelled", {"requestId": first})
        peer.tell("notifications/cancelled", {"requestId": third})  # waits, never runs
        self.assertFalse(began["b"].wait(0.05))
        gates["a"].set()
        began["b"].wait(PATIENCE)
        gates["b"].set()
        self.assertEqual(peer.got(second)["result"]["structuredContent"], "b")
        self.assertEqual(order, ["+a", "-a", "+b", "-b"])
        self.assertEqual(peer.came, [])

    def test_too_many_waiting_calls_are_told_to_come_back(self):
        server, gate = quiet(limits=Limits(workers=1, waiting=2)), threading.Event()
        began = threading.Event()

        @server.tool
        def slow() -> str:
            began.set()
            gate.wait(PATIENCE)
            return "x"

        peer = Peer(server)
        ids = [peer.start("tools/call", {"name": "slow"})]
        began.wait(PATIENCE)
        ids += [peer.start("tools/call", {"name": "slow"}) for _ in range(6)]
        busy = [peer.wait(lambda m: True) for _ in range(4)]
        self.assertTrue(all(m["result"]["isError"] for m in busy))
        gate.set()
        for id in set(ids) - {m["id"] for m in busy}:
            self.assertFalse(peer.got(id)["result"]["isError"])


class Streams(unittest.TestCase):
    def test_the_server_cancels_nothing_CAN_04(self):
        server = quiet()
        server.tool(lambda: "x", name="t")
        peer = Peer(server)
        peer.start(
            "subscriptions/listen", {"notifications": {"toolsListChanged": True}}, id=0
        )
        first = peer.wait(lambda m: True)
        self.assertEqual(first["method"], "notifications/subscriptions/acknowledged")
        rt._finish(server)
        (last,) = peer.came
        self.assertEqual((last["id"], last["result"]["resultType"]), (0, "complete"))

    def test_listen_filters(self):
        server = quiet()
        server.tool(lambda: "x", name="t")
        peer = Peer(server)
        wanted = {"toolsListChanged": True, "promptsListChanged": True}
        wanted["resourceSubscriptions"] = ["x://none"]
        peer.start("subscriptions/listen", {"notifications": wanted}, id=1)
        first = peer.wait(lambda m: True)
        self.assertEqual(first["params"]["notifications"], {"toolsListChanged": True})
        for bad in (
            None,
            [],
            {"resourceSubscriptions": "x"},
            {"resourceSubscriptions": [5]},
        ):
            error = peer.error("subscriptions/listen", {"notifications": bad})
            self.assertEqual(error["code"], -32602)
        peer.tell("notifications/cancelled", {"requestId": 1})
        self.assertEqual(server._hub.listeners, {})

    def test_min_interval_last_value_wins(self):
        server = quiet()
        server.add_resource("x://a", lambda: "a", name="a", min_interval=100.0)
        peer = Peer(server, D)
        peer.result("resources/subscribe", {"uri": "x://a"})
        self.assertEqual(
            peer.error("resources/subscribe", {"uri": "x://n"})["code"], -32002
        )
        now = time.monotonic()
        for _ in range(5):
            server.notify_updated("x://a")
            server._tick(now)
        self.assertEqual(len(peer.came), 1)
        self.assertIsNotNone(server._tick(now + 50))
        server._tick(now + 101)
        self.assertEqual(len(peer.came), 2)


class Standard(unittest.TestCase):
    def test_no_authorization_on_stdio_STD_08_STD_03(self):
        """Nothing in the byte streams looks for a token; stderr may be closed."""
        source = pathlib.Path(rt.__file__).read_text("utf-8")
        start = source.index("# ---- 8 Byte streams")
        part = source[start : source.index("# ---- 9 HTTP/1.1")]
        self.assertIsNone(re.search("token|authorization", part, re.IGNORECASE))
        server = Server("x")
        server._log_outlet = rt._Outlet(2, 100, drop=True)
        server._log_outlet.broken = True
        server._log("error", "é")  # dropped, not raised

    def test_without_a_version_header_it_is_2025_03_26_HTM_12(self):
        session = rt._Session(B, {}, {})
        self.assertEqual(session.revision, B)
        from tests import test_endpoint as http

        with http.Live(stateless_http=True) as live:
            batch = [http.message("ping", id=1), http.message("ping", id=2)]
            reply = live.ask(http.request(body=json.dumps(batch).encode()))
            self.assertEqual([r["id"] for r in reply.json], [1, 2])


if __name__ == "__main__":
    unittest.main()
