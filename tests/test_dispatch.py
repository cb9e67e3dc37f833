"""Section 7: messages in, replies out: eras, calls, questions, changes, time."""

import asyncio
import contextlib
import contextvars
import dataclasses
import datetime
import functools
import json
import math
import signal
import sys
import threading
import time
import unittest
from typing import Annotated, Any, Literal, Optional
from unittest import mock

import tinymcp
from tinymcp import Context, InputRequired, MCPError, Server, ToolError

rt = sys.modules[tinymcp.Server.__module__]
A, B, C, D, E = REVISIONS = rt._LEGACY + rt._MODERN
LEGACY = rt._LEGACY
WAIT = 10.0  # seconds, for what comes at once unless it is broken
ALL = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {"tools": {}},
    "roots": {},
}
YES = {"action": "accept", "content": {"confirm": True}}
NO = {"action": "accept", "content": {"confirm": False}}


def meta(capabilities=None, **more):
    needed = {rt._VERSION_KEY: E, rt._CAPABILITIES_KEY: capabilities or {}}
    return {**needed, **more}


def refuse(name):
    raise AssertionError(f"{name} on the wire")


class Peer(rt._Peer):
    """The other end: keeps what it is sent, and can speak both eras."""

    __slots__ = ("able", "changed", "lost", "number", "open", "revision", "sent")

    def __init__(self, server, revision=E, capabilities=ALL, hello=True):
        super().__init__(server)
        self.sent = []
        self.changed = threading.Condition()
        self.open = True
        self.lost = self.number = 0
        self.revision, self.able = revision, capabilities
        if revision != E and hello:
            self.hello()

    def hello(self, ready=True):
        params = {"protocolVersion": self.revision, "capabilities": self.able}
        reply = self.ask("initialize", **params)
        if ready:
            self.tell("notifications/initialized")
        return reply

    # What the server calls

    def send(self, data):
        if b"\n" in data:
            raise AssertionError("a line feed in a message")
        with self.changed:
            self.sent.append(json.loads(data, parse_constant=refuse))
            self.changed.notify_all()

    def ready(self):
        return self.open

    def dropped(self):
        with self.changed:
            self.lost += 1
            self.changed.notify_all()

    # What a client does

    def take(self, message):
        found = self.server._dispatch(message, self, len(json.dumps(message)))
        if type(found) is tuple:
            self.send(found[0])
        elif found is not None:
            found.launch()

    def tell(self, method, **params):
        self.take({"jsonrpc": "2.0", "method": method, "params": params})

    def start(self, method, **params):
        """Sends a request; returns its id."""
        self.number += 1
        if self.revision == E:
            params.setdefault("_meta", {})
            params["_meta"] = {**meta(self.able), **params["_meta"]}
        message = {"jsonrpc": "2.0", "id": self.number, "method": method}
        self.take({**message, "params": params})
        return self.number

    def ask(self, method, **params):
        return self.got(self.start(method, **params))

    def call(self, tool, more=None, **arguments):
        return self.ask("tools/call", name=tool, arguments=arguments, **(more or {}))

    def begin(self, tool, more=None, **arguments):
        return self.start("tools/call", name=tool, arguments=arguments, **(more or {}))

    def text(self, tool, more=None, **arguments):
        return text_of(self.call(tool, more, **arguments))

    def objects(self):
        return [m for m in self.sent if type(m) is dict]

    def until(self, test, batches=False):
        """The first message that passes the test."""

        def found():
            return [m for m in (self.sent if batches else self.objects()) if test(m)]

        with self.changed:
            if not self.changed.wait_for(found, WAIT):
                raise AssertionError(f"not among {self.sent}")
            return found()[0]

    def got(self, id):
        return self.until(lambda m: m.get("id") == id and "method" not in m)

    def replies(self, id):
        return [m for m in self.sent if m.get("id") == id and "method" not in m]

    def notes(self, method):
        return [m["params"] for m in self.objects() if m.get("method") == method]

    def question(self, n=1):
        return self.until(lambda m: m.get("id") == f"s{n}" and "method" in m)

    def answer(self, n, result):
        self.take({"jsonrpc": "2.0", "id": f"s{n}", "result": result})


def text_of(reply):
    result = reply["result"]
    found = result["content"][0]["text"] if result["content"] else ""
    return "ERROR " + found if result["isError"] else found


def make(**options):
    """A server, and a list of what it logs."""
    lines = []
    server = Server("s", "1", log=lambda *line: lines.append(line), **options)
    return server, lines


def audited(**options):
    """As make, and a list of the audit's lines."""
    server, log = make(**options)
    lines = []
    server._write_audit = lambda line: lines.append(json.loads(line))
    return server, log, lines


def limits(**changes):
    return tinymcp.Limits(**changes)


class Gate:
    """A handler that waits inside until it is let go."""

    def __init__(self):
        self.inside = threading.Semaphore(0)
        self.free = threading.Semaphore(0)
        self.runs = 0

    def pass_through(self):
        self.runs += 1
        self.inside.release()
        if not self.free.acquire(timeout=WAIT):
            raise AssertionError("nobody opened the gate")
        return "done"

    def entered(self):
        if not self.inside.acquire(timeout=WAIT):
            raise AssertionError("nobody came")


@contextlib.contextmanager
def looped(server):
    """Runs the loop engine of section 8 in a thread, for async handlers."""
    started, over = threading.Event(), []

    async def main():
        server._loop = rt._Loop(server)
        over.append((asyncio.get_running_loop(), asyncio.Event()))
        started.set()
        await over[0][1].wait()
        await server._loop.drain(1.0)

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    started.wait(WAIT)
    try:
        yield
    finally:
        over[0][0].call_soon_threadsafe(over[0][1].set)
        thread.join(WAIT)


class Envelope(unittest.TestCase):
    def setUp(self):
        self.server, self.log = make()
        self.server.add_tool(lambda text: text, name="echo", inline=True)

    def code(self, message, peer=None):
        peer = peer or Peer(self.server, D)
        peer.sent.clear()
        peer.take(message)
        return peer.sent[-1].get("id", "none"), peer.sent[-1]["error"]["code"]

    def test_ids_come_back_as_they_are_RPC_03(self):
        for id in (0, "", -3, "1", "01", 1, 10**40, "\u2028\U0001d11e", "a" * 300):
            for peer in (Peer(self.server, D), Peer(self.server)):
                method = "ping" if peer.revision == D else "server/discover"
                params = {"_meta": meta()} if peer.revision == E else {}
                request = {"jsonrpc": "2.0", "id": id, "method": method}
                peer.take({**request, "params": params})
                reply = peer.sent[-1]
                self.assertEqual((reply["id"], type(reply["id"])), (id, type(id)))
                self.assertEqual(set(reply), {"jsonrpc", "id", "result"})

    def test_what_is_no_message_RPC_02(self):
        base = {"jsonrpc": "2.0", "id": 4, "method": "ping"}
        table = [
            (42, "none"),
            ("x", "none"),
            (None, "none"),
            ({"hello": "world"}, "none"),
            ({**base, "id": None}, "none"),
            ({**base, "id": 1.5}, "none"),
            ({**base, "id": True}, "none"),
            ({**base, "id": [1]}, "none"),
            ({**base, "method": 5}, 4),
            ({**base, "params": []}, 4),
            ({**base, "jsonrpc": "1.0"}, 4),
        ]
        for message, id in table:
            self.assertEqual(self.code(message), (id, rt.INVALID_REQUEST), message)

    def test_meta_must_be_an_object(self):
        for value in ([], "", 0, False, None, "x"):
            message = {"jsonrpc": "2.0", "id": 4, "method": "ping"}
            message["params"] = {"_meta": value}
            self.assertEqual(self.code(message), (4, rt.INVALID_PARAMS), value)

    def test_unknown_methods_ERR_02_ERR_03(self):
        legacy, modern = Peer(self.server, D), Peer(self.server)
        for peer, methods in (
            (legacy, "nope server/discover subscriptions/listen"),
            (modern, "nope initialize ping logging/setLevel resources/subscribe"),
            (modern, "resources/unsubscribe prompts/get completion/complete"),
        ):
            for method in methods.split():
                error = peer.ask(method)["error"]
                self.assertEqual(error["code"], rt.METHOD_NOT_FOUND, method)
        long = legacy.ask("x" * 9999)["error"]["message"]
        self.assertLess(len(long), 120)

    def test_nothing_for_a_notification_RPC_04(self):
        for revision in (D, E):
            peer = Peer(self.server, revision)
            peer.sent.clear()
            for method in ("notifications/nope", "tools/list", "ping", "initialize"):
                peer.tell(method)
            for method in ("notifications/nope", "notifications/cancelled"):
                for params in ([], [1], None, 5):  # positional ones are JSON-RPC's
                    peer.take({"jsonrpc": "2.0", "method": method, "params": params})
            self.assertEqual(peer.sent, [])

    def test_responses_that_nobody_waits_for_are_ignored(self):
        for peer in (Peer(self.server, D), Peer(self.server)):
            peer.sent.clear()
            peer.take({"jsonrpc": "2.0", "id": 99, "result": {}})
            error = {"code": -32700, "message": "x"}
            peer.take({"jsonrpc": "2.0", "id": None, "error": error})
            peer.take({"jsonrpc": "2.0", "id": "s1", "error": error})
            self.assertEqual(peer.sent, [])

    def test_an_id_is_used_once_while_it_is_in_flight_RPC_09(self):
        gate = Gate()
        self.server.add_tool(gate.pass_through, name="gate")
        for revision in (D, E):
            peer = Peer(self.server, revision)
            number = peer.begin("gate")
            gate.entered()
            peer.number -= 1
            with peer.changed:
                before = len(peer.sent)
            peer.begin("echo", text="x")
            self.assertEqual(peer.sent[before]["error"]["code"], rt.INVALID_REQUEST)
            peer.sent.clear()
            gate.free.release()
            self.assertEqual(text_of(peer.got(number)), "done")
            peer.number -= 1
            peer.sent.clear()
            self.assertEqual(peer.text("echo", text="again"), "again")

    def test_modern_results_say_what_they_are_RPC_06_DSC_02(self):
        server, _ = make()
        server.add_tool(lambda: None, name="t", inline=True)
        server.add_resource("a:b", lambda: "x", name="r", inline=True)
        server.add_prompt(lambda: "x", name="p", inline=True)
        peer = Peer(server)
        requests = [(method, {}) for method in rt._LISTS]
        requests += [
            ("server/discover", {}),
            ("tools/call", {"name": "t"}),
            ("resources/read", {"uri": "a:b"}),
            ("prompts/get", {"name": "p"}),
        ]
        cached = {*rt._LISTS, "server/discover", "resources/read"}  # CCH-01, CCH-04
        for method, params in requests:
            result = peer.ask(method, **params)["result"]
            self.assertEqual(result["resultType"], "complete")
            info = result["_meta"][rt._SERVER_KEY]
            self.assertEqual(info, {"name": "s", "version": "1"})
            hints = (result.get("ttlMs"), result.get("cacheScope"))
            wanted = (0, "private") if method in cached else (None, None)
            self.assertEqual(hints, wanted, method)
        old = Peer(server, D)
        for method, params in requests[:4] + requests[5:]:
            result = old.ask(method, **params)["result"]
            self.assertFalse(
                {"resultType", "ttlMs", "cacheScope", "_meta"} & set(result)
            )

    def test_too_many_in_flight(self):
        server, _ = make(limits=limits(in_flight=2))
        gate = Gate()
        server.add_tool(gate.pass_through, name="gate")
        server.add_tool(lambda: "x", name="quick", inline=True)
        peer = Peer(server)
        peer.begin("gate")
        peer.start("subscriptions/listen", notifications={})
        for again in (
            peer.call("gate"),
            peer.ask("subscriptions/listen", notifications={}),
        ):
            self.assertEqual(again["error"]["code"], rt.TOO_MANY_REQUESTS)
        self.assertEqual(peer.text("quick"), "x")
        gate.free.release()
        peer.got(1)


class Eras(unittest.TestCase):
    def test_initialize_LIF_01_LIF_02_LIF_05(self):
        server, _ = make()
        table = [(revision, revision) for revision in LEGACY]
        table += [(v, D) for v in ("2024-10-07", "2099-01-01", "1.0", "", E)]
        for asked, wanted in table:
            peer = Peer(server, D, hello=False)
            reply = peer.ask("initialize", protocolVersion=asked, capabilities={})
            self.assertEqual(reply["result"]["protocolVersion"], wanted)
            self.assertEqual(peer.session.revision, wanted)
        for params in (
            {},
            {"protocolVersion": D, "clientInfo": None},
            {"protocolVersion": 5},
            {"protocolVersion": None},
            {"protocolVersion": D, "capabilities": []},
            {"protocolVersion": D, "capabilities": 1},
            {"protocolVersion": D, "clientInfo": "x"},
        ):
            peer = Peer(server, D, hello=False)
            error = peer.ask("initialize", **params)["error"]
            self.assertEqual(error["code"], rt.INVALID_PARAMS, params)
            self.assertIsNone(peer.session)

    def test_server_info_and_instructions_by_revision_LIF_10_LIF_11(self):
        options = {"title": "T", "description": "D", "website_url": "https://x.y"}
        options.update(instructions="Ask twice.", icons=[tinymcp.Icon("i")])
        server, _ = make(**options)
        base, newest = (
            {"name", "version"},
            {"title", "description", "icons", "websiteUrl"},
        )
        for revision, more in ((A, set()), (B, set()), (C, {"title"}), (D, newest)):
            peer = Peer(server, revision, hello=False)
            result = peer.hello()["result"]
            self.assertEqual(set(result["serverInfo"]), base | more)
            self.assertEqual(result["instructions"], "Ask twice.")
        result = Peer(server).ask("server/discover")["result"]
        self.assertEqual(set(result["_meta"][rt._SERVER_KEY]), base | newest)
        self.assertEqual(result["instructions"], "Ask twice.")

    def test_before_the_handshake_LIF_04_LIF_06(self):
        server, _ = make()
        server.add_tool(lambda: "x", name="t", inline=True)
        peer = Peer(server, D, hello=False)
        self.assertEqual(peer.ask("ping")["result"], {})
        for method in ("tools/list", "tools/call", "nope", "resources/subscribe"):
            error = peer.ask(method)["error"]
            self.assertEqual(error["code"], rt.INVALID_REQUEST)
            self.assertIn("initialize", error["message"])
        self.assertEqual(
            peer.ask("server/discover")["error"]["code"], rt.INVALID_PARAMS
        )
        peer.tell("notifications/initialized")  # LIF-03: out of order, harmless
        peer.hello(ready=False)
        self.assertEqual(peer.text("t"), "x")  # served before notifications/initialized

    def test_nothing_unasked_before_initialized_LIF_06(self):
        server, _ = make()
        server.add_tool(lambda ctx: str(ctx.confirm("Sure?")), name="sure")
        server._registry.tool.items["sure"].context = "ctx"
        server._registry.tool.items["sure"].check = None
        peer = Peer(server, D, hello=False)
        peer.hello(ready=False)
        server.notify_tools_changed()
        server._tick(time.monotonic())
        number = peer.begin("sure")
        deadline = time.monotonic() + WAIT
        while not peer.session.held and time.monotonic() < deadline:
            time.sleep(0.001)
        self.assertEqual([m for m in peer.sent if "method" in m], [])
        peer.tell("notifications/initialized")
        peer.tell("notifications/initialized")  # twice is no more than once
        server._tick(time.monotonic())
        self.assertEqual(len(peer.notes("notifications/tools/list_changed")), 1)
        peer.question(1)
        peer.answer(1, YES)
        self.assertEqual(text_of(peer.got(number)), "True")

    def test_a_question_given_up_before_initialized_is_never_sent(self):
        server, _ = make()
        server.add_tool(lambda ctx: str(ctx.confirm("Sure?")), name="sure")
        record = server._registry.tool.items["sure"]
        record.context, record.check, record.inline = "ctx", None, True
        peer = Peer(server, D, hello=False)
        peer.hello(ready=False)
        number = peer.begin("sure")
        peer.tell("notifications/cancelled", requestId=number)
        peer.tell("notifications/initialized")
        self.assertEqual([m for m in peer.sent if "method" in m], [])

    def test_capabilities_are_exact_DSC_04_CMP_02(self):
        empty = {"logging": {}}
        changes = {"listChanged": True}
        server, _ = make(experimental={"x": {}})

        def capabilities(revision):
            peer = Peer(server, revision, hello=False)
            if revision == E:
                return peer.ask("server/discover")["result"]["capabilities"]
            return peer.hello()["result"]["capabilities"]

        empty["experimental"] = {"x": {}}
        for revision in REVISIONS:
            self.assertEqual(capabilities(revision), empty)
        server.add_tool(lambda: 1, name="t")
        server.add_resource("a:{x}", lambda x: x, name="r")
        server.add_prompt(lambda: "x", name="p")
        server.completion(lambda ref, argument, context: [])
        full = {**empty, "tools": changes, "prompts": changes}
        full["resources"] = {"subscribe": True, "listChanged": True}
        self.assertEqual(capabilities(A), full)
        for revision in REVISIONS[1:]:
            self.assertEqual(capabilities(revision), {**full, "completions": {}})
        server.remove_tool("t")
        self.assertEqual(capabilities(A), full)  # an empty list is an offer, too

    def test_empty_lists_for_legacy_clients(self):
        server, _ = make()
        peer = Peer(server, D)
        for method, (_, member) in rt._LISTS.items():
            self.assertEqual(peer.ask(method)["result"], {member: []})
        for method in ("completion/complete", "nope"):
            self.assertEqual(peer.ask(method)["error"]["code"], rt.METHOD_NOT_FOUND)
        modern = Peer(server)
        for method in rt._LISTS:
            self.assertEqual(modern.ask(method)["error"]["code"], rt.METHOD_NOT_FOUND)

    def test_discover_DSC_01(self):
        result = Peer(make(ttl_ms=7)[0]).ask("server/discover")["result"]
        self.assertEqual(result["supportedVersions"], [E])
        self.assertEqual((result["ttlMs"], result["cacheScope"]), (7, "private"))

    def test_meta_of_a_modern_request_MET_01_MET_02_VER_01_LOG_03(self):
        server, _ = make()
        peer = Peer(server)
        good = {**meta(), rt._CLIENT_KEY: {"name": "c", "version": "1"}}
        without = [{k: v for k, v in good.items() if k != key} for key in good]
        table = [
            (good, None),
            (without[1], rt.INVALID_PARAMS),
            (without[2], None),
            ({**good, rt._VERSION_KEY: 7}, rt.INVALID_PARAMS),
            ({**good, rt._VERSION_KEY: []}, rt.INVALID_PARAMS),
            ({**good, rt._VERSION_KEY: None}, rt.INVALID_PARAMS),
            ({**good, rt._CAPABILITIES_KEY: []}, rt.INVALID_PARAMS),
            ({**good, rt._CLIENT_KEY: "x"}, rt.INVALID_PARAMS),
            ({**good, rt._LEVEL_KEY: "loud"}, rt.INVALID_PARAMS),
            ({**good, rt._LEVEL_KEY: []}, rt.INVALID_PARAMS),
            ({**good, rt._LEVEL_KEY: {}}, rt.INVALID_PARAMS),
            ({**good, rt._LEVEL_KEY: 3}, rt.INVALID_PARAMS),
            ({**good, rt._LEVEL_KEY: "alert"}, None),
            ({**without[1], rt._VERSION_KEY: "2027-01-01"}, rt.UNSUPPORTED_VERSION),
            ({**good, rt._VERSION_KEY: "1900-01-01"}, rt.UNSUPPORTED_VERSION),
            ({**good, rt._VERSION_KEY: D}, rt.UNSUPPORTED_VERSION),
        ]
        for value, wanted in table:
            message = {"jsonrpc": "2.0", "id": 1, "method": "server/discover"}
            peer.sent.clear()
            peer.take({**message, "params": {"_meta": value}})
            error = peer.sent[0].get("error", {})
            self.assertEqual(error.get("code"), wanted, value)
            if wanted == rt.UNSUPPORTED_VERSION:
                asked = value[rt._VERSION_KEY]
                self.assertEqual(error["data"], {"supported": [E], "requested": asked})
        peer.era = "modern"  # HTTP knows by the header
        peer.take({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
        self.assertEqual(peer.sent[-1]["error"]["code"], rt.INVALID_PARAMS)

    def test_both_eras_at_once_VER_02_VER_03_VER_09(self):
        server, _ = make()
        seen = []

        @server.tool(inline=True)
        def who(ctx: Context) -> str:
            seen.append((ctx.protocol_version, ctx.client_capabilities))
            return "x"

        peer = Peer(server, C, {"roots": {}})
        message = {"jsonrpc": "2.0", "id": 5, "method": "tools/call"}
        legacy = {"name": "who"}
        modern = {**legacy, "_meta": meta({"sampling": {}})}
        bare = {**legacy, "_meta": meta()}
        for params in (legacy, modern, bare, legacy):
            peer.take({**message, "params": params})
        wanted = [
            (C, {"roots": {}}),
            (E, {"sampling": {}}),
            (E, {}),
            (C, {"roots": {}}),
        ]
        self.assertEqual(seen, wanted)

    def test_one_era_only_VER_07(self):
        server, _ = make(legacy=False)
        server.add_tool(lambda: "x", name="t", inline=True)
        peer = Peer(server, D, hello=False)
        error = peer.ask("initialize", protocolVersion=D, capabilities={})["error"]
        self.assertEqual(error["code"], rt.METHOD_NOT_FOUND)
        self.assertIn(E, error["message"])
        for method in ("ping", "tools/list", "server/discover"):
            self.assertEqual(peer.ask(method)["error"]["code"], rt.INVALID_PARAMS)
        self.assertEqual(Peer(server).text("t"), "x")
        server, _ = make(modern=False)
        server.add_tool(lambda: "x", name="t", inline=True)
        peer = Peer(server)
        for method in ("server/discover", "tools/list"):
            error = peer.ask(method)["error"]
            self.assertEqual(error["code"], rt.INVALID_REQUEST)
            self.assertNotIn(E, error["message"])
        self.assertEqual(Peer(server, B).text("t"), "x")

    def test_a_client_says_little_about_itself(self):
        server, _ = make(limits=limits(client=100))
        peer = Peer(server, D, {"x": "y" * 100}, hello=False)
        self.assertEqual(peer.hello(ready=False)["error"]["code"], rt.INVALID_PARAMS)
        self.assertIsNone(peer.session)

    def test_a_transport_that_keeps_no_sessions(self):
        class Stateless(Peer):
            def open_session(self, session):
                return None

        server, _ = make()
        self.assertIn("result", Stateless(server, D, hello=False).hello(ready=False))
        self.assertEqual(server._hub.listeners, {})

    def test_initialize_again_on_the_same_stream(self):
        server, _ = make()
        server.add_tool(sure, name="sure", inline=True)
        peer = Peer(server, D)
        number = peer.begin("sure")
        peer.question(1)
        peer.revision = C
        peer.hello()
        server.notify_tools_changed()
        server._tick(time.monotonic())
        self.assertEqual(len(peer.notes("notifications/tools/list_changed")), 1)
        peer.answer(1, YES)
        self.assertEqual(text_of(peer.got(number)), "True")


def sure(ctx: Context) -> str:
    """Asks."""
    return str(ctx.confirm("Sure?"))


class Batches(unittest.TestCase):
    def setUp(self):
        self.server, _ = make()
        self.server.add_tool(lambda text: text, name="echo", inline=True)

    def ping(self, id):
        return {"jsonrpc": "2.0", "id": id, "method": "ping"}

    def call(self, id, name, **arguments):
        params = {"name": name, "arguments": arguments}
        return {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}

    def run_batch(self, *messages, revision=B):
        peer = Peer(self.server, revision)
        peer.sent.clear()
        peer.take(list(messages))
        return peer

    def test_one_array_RPC_07(self):
        note = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        peer = self.run_batch(self.ping(1), note, self.ping("1"))
        replies = [{"jsonrpc": "2.0", "id": id, "result": {}} for id in (1, "1")]
        self.assertEqual(peer.sent, [replies])

    def test_odd_ones(self):
        note = {"jsonrpc": "2.0", "method": "x"}
        initialize = {**self.ping(9), "method": "initialize"}
        table = [
            ([1], [("none", True)]),
            ([self.ping(1), 42, note], [(1, False), ("none", True)]),
            ([note, note], None),
            ([[self.ping(1)]], [("none", True)]),
            ([initialize], [(9, True)]),
            ([{"jsonrpc": "2.0", "method": "initialize"}, self.ping(1)], [(1, False)]),
            ([{"jsonrpc": "2.0", "id": 7, "result": {}}], None),
            ([{"jsonrpc": "2.0", "id": [7], "method": "ping"}], [("none", True)]),
        ]
        for messages, wanted in table:
            peer = self.run_batch(*messages)
            if wanted is None:
                self.assertEqual(peer.sent, [])
                continue
            found = [(m.get("id", "none"), "error" in m) for m in peer.sent[0]]
            self.assertEqual(found, wanted, messages)
        peer = self.run_batch()
        self.assertEqual(peer.sent[0]["error"]["code"], rt.INVALID_REQUEST)

    def test_long_ones(self):
        self.server._limits.batch = 2
        peer = self.run_batch(*[self.ping(n) for n in range(3)])
        self.assertEqual(peer.sent[0]["error"]["code"], rt.INVALID_REQUEST)

    def test_refused_elsewhere_RPC_05(self):
        for revision in (A, C, D, E):
            peer = self.run_batch(self.ping(1), revision=revision)
            self.assertEqual(len(peer.sent), 1)
            self.assertEqual(peer.sent[0]["error"]["code"], rt.INVALID_REQUEST)
            self.assertNotIn("id", peer.sent[0])

    def test_slow_members_and_the_same_id_twice(self):
        gate = Gate()
        self.server.add_tool(gate.pass_through, name="gate")
        peer = self.run_batch(
            self.call(1, "gate"), self.ping(2), self.call(1, "gate"), self.ping(1)
        )
        gate.entered()
        self.assertEqual(peer.sent, [])
        gate.free.release()
        replies = peer.until(lambda m: True, batches=True)
        errors = [m["id"] for m in replies if "error" in m]
        self.assertEqual(sorted(m["id"] for m in replies), [1, 1, 1, 2])
        self.assertEqual(errors, [1, 1])
        self.assertEqual(gate.runs, 1)

    def test_cancels_and_questions(self):
        gate = Gate()
        self.server.add_tool(gate.pass_through, name="gate")

        def roots(ctx: Context) -> str:  # elicitation came later than batches
            return str(len(ctx.list_roots()))

        self.server.add_tool(roots, name="sure")
        self.server.add_tool(roots, name="now", inline=True)
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled"}
        cancel["params"] = {"requestId": 1}
        peer = self.run_batch(
            self.call(1, "gate"),
            cancel,  # in the batch itself
            self.call(2, "sure"),
            self.call(3, "now"),
            self.call(4, "gate"),
        )
        gate.entered()
        for n in (1, 2):
            peer.question(n)
        peer.tell("notifications/cancelled", requestId=4)
        peer.answer(1, {"roots": []})
        peer.answer(2, {"roots": []})
        replies = peer.until(lambda m: type(m) is list, batches=True)
        self.assertEqual(sorted(m["id"] for m in replies), [2, 3])
        self.assertEqual({text_of(m) for m in replies}, {"0"})
        gate.free.release()

    def test_all_cancelled(self):
        gate = Gate()
        self.server.add_tool(gate.pass_through, name="gate")
        peer = self.run_batch(self.call(1, "gate"), self.call(2, "gate"))
        gate.entered(), gate.entered()  # one that waits would not begin any more
        for n in (1, 2):
            peer.tell("notifications/cancelled", requestId=n)
        gate.free.release(2)
        self.assertEqual((peer.sent, peer.lost), ([], 1))

    def test_progress_rides_along_and_a_stuck_peer_is_asked(self):
        def work(ctx: Context) -> str:
            ctx.report_progress(1)
            return "x"

        self.server.add_tool(work, name="work", inline=True)
        message = self.call(1, "work")
        message["params"]["_meta"] = {"progressToken": 0}
        peer = self.run_batch(message)
        self.assertEqual(peer.notes("notifications/progress")[0]["progressToken"], 0)
        peer.open = False
        peer.sent.clear()
        peer.take([{**message, "id": 2}])
        self.assertEqual([type(m) for m in peer.sent], [list])


class Tools(unittest.TestCase):
    def outcomes(self, tool, **arguments):
        """result by revision"""
        peers = {revision: Peer(self.server, revision) for revision in REVISIONS}
        return {r: p.call(tool, **arguments)["result"] for r, p in peers.items()}

    def test_structured_results_TOL_06_TOL_07(self):
        @dataclasses.dataclass
        class Point:
            x: int

        self.server, _ = make()
        table = [
            (list[int], [1, 2], "[1,2]", True),
            (int, 3, "3", True),
            (str, "a", "a", True),
            (Optional[int], None, "null", True),
            (Point, Point(1), '{"x":1}', False),
            (dict[str, int], {"a": 1}, '{"a":1}', False),
        ]
        for n, (hint, value, text, wrapped) in enumerate(table):
            function = self.returning(hint, value)
            self.server.add_tool(function, name=f"t{n}", inline=True)
            plain = rt._plain(value)
            for revision, result in self.outcomes(f"t{n}").items():
                self.assertEqual(result["content"], [{"type": "text", "text": text}])
                self.assertIs(result["isError"], False)
                if revision < C:
                    self.assertNotIn("structuredContent", result)
                elif wrapped and revision < E:
                    self.assertEqual(result["structuredContent"], {"result": plain})
                else:
                    self.assertEqual(result["structuredContent"], plain)

    def returning(self, hint, value):
        def tool():
            return value

        if hint is not None:
            tool.__annotations__["return"] = hint
        return tool

    def test_plain_results_TOL_02(self):
        self.server, _ = make()
        table = [
            (None, []),
            ("x", ["x"]),
            (["x", 3], ["x", "3"]),
            ({"a": [1]}, ['{"a":[1]}']),
            (b"x", ['"eA=="']),
        ]
        for n, (value, texts) in enumerate(table):
            self.server.add_tool(self.returning(None, value), name=f"t{n}", inline=True)
            for result in self.outcomes(f"t{n}").values():
                self.assertEqual([b["text"] for b in result["content"]], texts)
                self.assertNotIn("structuredContent", result)

    def test_whole_results(self):
        self.server, log = make()
        whole = tinymcp.CallToolResult
        shape = {"type": "object", "required": ["a"]}
        table = [
            (whole("x", meta={"a.b/c": 1}), None),
            (whole(["x", tinymcp.TextContent("y")], {"a": 1}), shape),
            (whole(structured_content=[1]), None),
            (whole("no", is_error=True), shape),
        ]
        for n, (value, schema) in enumerate(table):
            function = self.returning(None, value)
            self.server.add_tool(
                function, name=f"t{n}", output_schema=schema, inline=True
            )
        for revision, result in self.outcomes("t0").items():
            self.assertEqual(result["content"], [{"type": "text", "text": "x"}])
            self.assertEqual(result["_meta"]["a.b/c"], 1)
            self.assertEqual(rt._SERVER_KEY in result["_meta"], revision == E)
        for revision, result in self.outcomes("t1").items():
            self.assertEqual(len(result["content"]), 2)
            wanted = {"a": 1} if revision >= C else None
            self.assertEqual(result.get("structuredContent"), wanted)
        for revision, result in self.outcomes("t2").items():
            self.assertEqual(result["content"][0]["text"], "[1]")
            wanted = [1] if revision == E else {"result": [1]}
            wanted = wanted if revision >= C else None
            self.assertEqual(result.get("structuredContent"), wanted)
        for result in self.outcomes("t3").values():
            self.assertIs(result["isError"], True)
        self.assertEqual(log, [])

    def test_results_are_checked_SEC_08(self):
        self.server, log = make()
        odd = [
            self.returning(int, "x"),
            self.returning(None, tinymcp.CallToolResult("x")),
            self.returning(None, tinymcp.CallToolResult("x", {"b": 1})),
        ]
        shape = {"type": "object", "required": ["a"]}
        self.server.add_tool(odd[0], name="t0", inline=True)
        self.server.add_tool(odd[1], name="t1", output_schema=shape, inline=True)
        self.server.add_tool(odd[2], name="t2", output_schema=shape, inline=True)
        peer = Peer(self.server)
        for n in range(3):
            self.assertIn("output schema", peer.text(f"t{n}"))
        self.assertEqual([level for level, _ in log], ["error"] * 3)

    def test_nothing_but_json_leaves_SEC_08(self):
        self.server, _ = make()
        for n, value in enumerate(
            (
                math.nan,
                {"m": math.inf},
                [1, -math.inf],
                object(),
                {1: {2}, "x": object()},
            )
        ):
            self.server.add_tool(self.returning(None, value), name=f"t{n}", inline=True)
            self.assertTrue(Peer(self.server).text(f"t{n}").startswith("ERROR "))
        self.server.add_tool(self.returning(float, math.nan), name="f", inline=True)
        self.assertTrue(Peer(self.server).text("f").startswith("ERROR "))

    def test_calls_that_are_no_calls_TOL_03(self):
        self.server, _ = make()
        self.server.add_tool(lambda: "ran", name="t", inline=True)
        for peer in (Peer(self.server, D), Peer(self.server)):
            for name in ("nope", "", None, 5, [], {}, "T", "x" * 9999):
                error = peer.ask("tools/call", name=name)["error"]
                self.assertEqual(error["code"], rt.INVALID_PARAMS)
                self.assertLess(len(error["message"]), 120)
            for arguments in ([], "", 0, False, "x"):
                reply = peer.ask("tools/call", name="t", arguments=arguments)
                self.assertEqual(reply["error"]["code"], rt.INVALID_PARAMS)
            for params in ({}, {"arguments": None}, {"arguments": {}}):
                reply = peer.ask("tools/call", name="t", **params)
                self.assertEqual(text_of(reply), "ran")

    def test_wrong_arguments_TOL_05_SEC_06(self):
        self.server, _ = make()
        seen = []

        @self.server.tool(inline=True)
        def set_vent(
            percent: Annotated[int, {"maximum": 100}],
            on: Optional[datetime.date] = None,
        ) -> str:
            seen.append(on)
            return "ran"

        for peer in (Peer(self.server, A), Peer(self.server)):
            for arguments, word in (
                ({}, "percent"),
                ({"percent": 250}, "100"),
                ({"percent": "5"}, "percent"),
                ({"percent": True}, "percent"),
                ({"percent": 5, "ctx": {}}, "ctx"),
                ({"percent": 5, "on": "2026-02-30"}, "on"),
            ):
                text = peer.text("set_vent", **arguments)
                self.assertTrue(text.startswith("ERROR "), text)
                self.assertIn(word, text)
            self.assertEqual(seen, [])
        self.assertEqual(peer.text("set_vent", percent=5, on="2026-02-28"), "ran")
        self.assertEqual(seen, [datetime.date(2026, 2, 28)])

    def test_an_argument_that_cannot_be_made(self):
        @dataclasses.dataclass
        class Even:
            n: int

            def __post_init__(self):
                if self.n % 2:
                    raise SystemExit("/etc/passwd")

        def tool(even):
            return str(even.n)

        tool.__annotations__["even"] = Even
        self.server, _ = make()
        self.server.add_tool(tool, name="t", inline=True)
        peer = Peer(self.server)
        self.assertEqual(peer.text("t", even={"n": 2}), "2")
        self.assertTrue(peer.text("t", even={"n": 1}).startswith("ERROR "))
        self.assertNotIn("passwd", json.dumps(peer.sent))

    def test_failures_TOL_04_ERR_08_SEC_08(self):
        self.server, log = make()
        text = "no /etc/shadow and C:\\secret\\x here; see https://a.b/c and 3/4"

        class Odd(Exception):
            def __str__(self):
                raise RuntimeError

        @self.server.tool(inline=True)
        def fail(kind: str) -> str:
            raise {
                "foreseen": ToolError("Turn it on first."),
                "value": ValueError(text),
                "silent": KeyError(),
                "file": FileNotFoundError(2, "No such file", "/root/key"),
                "exit": SystemExit(3),
                "odd": Odd(),
                "stray": asyncio.CancelledError(),
                "long": ValueError("x" * 9999),
            }[kind]

        table = [
            ("foreseen", "Turn it on first."),
            (
                "value",
                "ValueError: no <path> and <path> here; see https://a.b/c and 3/4",
            ),
            ("silent", "KeyError"),
            ("file", "FileNotFoundError: No such file"),
            ("exit", "SystemExit: 3"),
            ("stray", "CancelledError"),
            ("long", "ValueError: " + "x" * 500),
        ]
        for peer in (Peer(self.server, D), Peer(self.server)):
            for kind, wanted in table:
                self.assertEqual(peer.text("fail", kind=kind), "ERROR " + wanted)
            self.assertTrue(peer.text("fail", kind="odd").startswith("ERROR Odd"))
            self.assertNotIn("Traceback", json.dumps(peer.sent))
        self.assertIn("Traceback", log[0][1])
        self.assertEqual({level for level, _ in log}, {"error"})
        self.assertEqual(len(log), 2 * len(table))  # nothing for what was foreseen

    def test_keyboard_interrupt_is_not_swallowed(self):
        self.server, _ = make()

        @self.server.tool(inline=True)
        def stop() -> str:
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGINT, before)
        with self.assertRaises(KeyboardInterrupt):
            Peer(self.server).begin("stop")

    def test_errors_of_a_handler_RPC_11_ERR_05(self):
        self.server, _ = make()

        @self.server.tool(inline=True)
        def fail(code: int, data: Any = None) -> str:
            if code == 0:
                raise tinymcp.ResourceNotFoundError("a:b")
            raise MCPError(code, "m", data)

        legacy, modern = Peer(self.server, D), Peer(self.server)
        for peer, code, wanted in (
            (legacy, 7, 7),
            (modern, 7, 7),
            (legacy, 0, rt.RESOURCE_NOT_FOUND),
            (modern, 0, rt.INVALID_PARAMS),
            (legacy, rt.RESOURCE_NOT_FOUND, rt.RESOURCE_NOT_FOUND),
            (modern, rt.RESOURCE_NOT_FOUND, rt.INVALID_PARAMS),
        ):
            self.assertEqual(peer.call("fail", code=code)["error"]["code"], wanted)
        error = modern.call("fail", code=7, data={"a": [1]})["error"]
        self.assertEqual(error, {"code": 7, "message": "m", "data": {"a": [1]}})

    def test_rates_SEC_07(self):
        self.server, _ = make(limits=limits(tool_rate=(3, 60.0)))
        self.server.add_tool(lambda: "x", name="slow", rate=(1, 2.0), inline=True)
        self.server.add_tool(lambda: "x", name="t", inline=True)
        now = time.monotonic()
        with mock.patch.object(rt.time, "monotonic", lambda: now):
            peer = Peer(self.server)
            self.assertEqual(peer.text("slow"), "x")
            self.assertIn("retry in 2.0 seconds", peer.text("slow"))
            now += 1.0
            self.assertIn("retry in 1.0 seconds", peer.text("slow"))
            now += 1.0
            self.assertIn(
                "retry in 18", peer.text("t")
            )  # three are gone, for all tools
            now += 60.0
            self.assertEqual(peer.text("slow"), "x")

    def test_a_bucket(self):
        now = 1e9 + 0.1
        with mock.patch.object(rt.time, "monotonic", lambda: now):
            bucket = rt._Bucket((3, 1.0))
            self.assertEqual([bucket.take() for _ in range(3)], [0, 0, 0])
            self.assertAlmostEqual(bucket.take(), 1 / 3, 4)
            now += 1 / 3 + 1e-5
            self.assertEqual(bucket.take(), 0)
            self.assertGreater(bucket.take(), 0)
            now += 100
            self.assertEqual([bucket.take() for _ in range(3)], [0, 0, 0])
            self.assertGreater(bucket.take(), 0)

    def test_audit_of_arguments_that_a_handler_changed(self):
        server, log, lines = audited(audit_arguments=True)

        @server.tool(inline=True)
        def spoil(things: list) -> str:
            things.append(object())
            return "done"

        peer = Peer(server)
        self.assertEqual(peer.text("spoil", things=[]), "done")
        self.assertEqual((log, lines[0]["arguments"]), ([], None))

    def test_a_question_is_audited_as_one(self):
        server, _, lines = audited(audit=True)

        @server.tool(inline=True)
        def purge(ctx: Context) -> str:
            return "gone" if ctx.confirm("Sure?") else "kept"

        server.add_tool(purge, name="slow")
        peer = Peer(server)
        for name in ("purge", "slow"):
            result = peer.call(name)["result"]
            self.assertEqual(result["resultType"], "input_required")
            answer = {"inputResponses": dict.fromkeys(result["inputRequests"], YES)}
            again = {**answer, "requestState": result["requestState"]}
            self.assertEqual(peer.text(name, again), "gone")
        outcomes = [line["outcome"] for line in lines]
        self.assertEqual(outcomes, ["asked", "ok"] * 2)

    def test_audit_lines(self):
        self.server, _ = make(audit=True)
        lines = []
        self.server._write_audit = lambda line: lines.append(json.loads(line))
        self.server.add_tool(lambda x=1: "x", name="t", inline=True)
        peer = Peer(self.server)
        trace = {"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01"}
        peer.call("t", {"_meta": trace})
        peer.call("t", x=2)
        peer.call("t", y=2)
        peer.ask("tools/call", name=["x"] * 99)
        peer.ask("tools/list")
        outcomes = [line["outcome"] for line in lines]
        self.assertEqual(
            outcomes, ["ok", "ok", "error", f"refused {rt.INVALID_PARAMS}"]
        )
        self.assertEqual((lines[0]["name"], lines[0]["trace"]), ("t", "a" * 32))
        self.assertNotIn("arguments", lines[1])
        self.server._audit = True
        self.server.add_tool(lambda: "x", name="slow")
        self.assertEqual(peer.text("slow"), "x")
        self.assertEqual((lines[-1]["outcome"], lines[-1]["arguments"]), ("ok", {}))
        self.assertLess(len(lines[3]["name"]), 100)


class Others(unittest.TestCase):
    """Resources, prompts, completion."""

    def test_reading_RES_01_RES_02_RES_04(self):
        server, _ = make(ttl_ms=1)
        wire = tinymcp
        table = [
            ("x", {}, {"mimeType": "text/plain", "text": "x"}),
            ("x", {"mime_type": "a/b"}, {"mimeType": "a/b", "text": "x"}),
            (b"x", {}, {"mimeType": "application/octet-stream", "blob": "eA=="}),
            ({"v": 1}, {}, {"mimeType": "application/json", "text": '{"v":1}'}),
            ([], {}, {"mimeType": "application/json", "text": "[]"}),
            ([1], {}, {"mimeType": "application/json", "text": "[1]"}),
            (wire.TextResourceContents("c:d", "x"), {}, {"uri": "c:d", "text": "x"}),
            (
                [wire.EmbeddedResource(wire.BlobResourceContents("c:d", b"x"))],
                {},
                {"uri": "c:d", "blob": "eA=="},
            ),
        ]
        for n, (value, options, wanted) in enumerate(table):
            uri = f"a:{n}"
            self.add(server, uri, value, options)
            for peer in (Peer(server, A), Peer(server)):
                result = peer.ask("resources/read", uri=uri)["result"]
                self.assertEqual(result["contents"], [{"uri": uri, **wanted}])
        many = [wire.TextResourceContents("c:d", "x")] * 2
        self.add(server, "a:many", many, {"ttl_ms": 9, "cache_scope": "public"})
        result = Peer(server).ask("resources/read", uri="a:many")["result"]
        self.assertEqual(len(result["contents"]), 2)
        self.assertEqual((result["ttlMs"], result["cacheScope"]), (9, "public"))
        for revision in REVISIONS:
            error = Peer(server, revision).ask("resources/read", uri="a:none")["error"]
            code = rt.INVALID_PARAMS if revision == E else rt.RESOURCE_NOT_FOUND
            self.assertEqual((error["code"], error["data"]), (code, {"uri": "a:none"}))
        for uri in (None, 5, [], {}):
            error = Peer(server).ask("resources/read", uri=uri)["error"]
            self.assertEqual(error["code"], rt.INVALID_PARAMS)
        error = Peer(server).ask("resources/read", uri="a:" + "x" * 9999)["error"]
        self.assertLess(len(error["data"]["uri"]), 4096)

    def add(self, server, uri, value, options):
        server.add_resource(uri, lambda: value, name="r", inline=True, **options)

    def test_a_handler_without_a_result_says_little_ERR_08(self):
        server, log = make()

        def fail():
            raise ValueError("/etc/passwd")

        server.add_resource("a:b", fail, name="r", inline=True)
        server.add_prompt(fail, name="p", inline=True)
        for peer in (Peer(server, D), Peer(server)):
            for method, key in (("resources/read", "uri"), ("prompts/get", "name")):
                value = "a:b" if key == "uri" else "p"
                error = peer.ask(method, **{key: value})["error"]
                self.assertEqual(error["code"], rt.INTERNAL_ERROR)
                self.assertEqual(error["message"], "Internal error")
        self.assertEqual(len(log), 4)

    def test_a_resource_may_say_what_is_wrong(self):
        server, _ = make()

        @server.resource("a:b")
        def read() -> str:
            raise ToolError("sensor unplugged")

        error = Peer(server, E).ask("resources/read", uri="a:b")["error"]
        self.assertEqual(error["message"], "sensor unplugged")

    def test_prompts_PRM_01_PRM_02_PRM_03(self):
        server, _ = make()

        @server.prompt(inline=True)
        def review(
            code: str, lines: int = 3, day: Optional[datetime.date] = None
        ) -> Any:
            """Reviews."""
            return [
                f"{code} {lines + 1} {day}",
                tinymcp.AssistantMessage(tinymcp.Image(data=b"x")),
                {"role": "assistant", "content": "y"},
                {
                    "role": "user",
                    "content": {"type": "audio", "data": "", "mimeType": "a"},
                },
            ]

        server.add_prompt(lambda: tinymcp.Message("x"), name="one", inline=True)
        for peer in (Peer(server, A), Peer(server)):
            result = peer.ask(
                "prompts/get", name="review", arguments={"code": "7", "lines": "4"}
            )["result"]
            self.assertEqual(result["description"], "Reviews.")
            roles = [m["role"] for m in result["messages"]]
            kinds = [m["content"]["type"] for m in result["messages"]]
            self.assertEqual(roles, ["user", "assistant", "assistant", "user"])
            sound = "audio" if peer.revision == E else "resource"
            self.assertEqual(kinds, ["text", "image", "text", sound])
            first = result["messages"][0]["content"]["text"]
            self.assertEqual(first, "7 5 None")
            result = peer.ask("prompts/get", name="one", arguments=None)["result"]
            self.assertNotIn("description", result)
            for params in (
                {"name": "nope"},
                {"name": []},
                {},
                {"name": "review"},
                {"name": "review", "arguments": {}},
                {"name": "review", "arguments": []},
                {"name": "review", "arguments": {"code": 5}},
                {"name": "review", "arguments": {"code": "x", "more": "y"}},
                {"name": "review", "arguments": {"code": "x", "lines": "many"}},
                {"name": "review", "arguments": {"code": "x", "day": "2026-02-30"}},
            ):
                error = peer.ask("prompts/get", **params)["error"]
                self.assertEqual(error["code"], rt.INVALID_PARAMS, params)

    def test_completion_CMP_01_CMP_03_CMP_04(self):
        server, _ = make(limits=limits(completion_rate=(40, 1e6)))
        given = []
        result = []

        @server.completion
        def complete(ref, argument, context):
            given.append((ref, argument.name, argument.value, context.arguments))
            return result[-1]

        server._completer.inline = True
        server.add_prompt(lambda topic: "x", name="p")
        server.add_resource("a:{x}", lambda x: "x", name="t")
        server.add_resource("a:b", lambda: "x", name="r")
        peer = Peer(server, D)
        prompt = {"type": "ref/prompt", "name": "p"}
        template = {"type": "ref/resource", "uri": "a:{x}"}
        argument = {"name": "topic", "value": "a"}
        table = [
            (None, [], 0, False),
            (["a", 5], ["a", "5"], 2, False),
            ("only", ["only"], 1, False),
            (range(150), [str(n) for n in range(100)], 150, True),
            (tinymcp.Completion(["a"], 9, True), ["a"], 9, True),
            (tinymcp.Completion(), [], 0, False),
        ]
        for value, values, total, more in table:
            result.append(value)
            context = {"arguments": {"lang": "py"}}
            reply = peer.ask(
                "completion/complete", ref=prompt, argument=argument, context=context
            )
            wanted = {"values": values, "total": total, "hasMore": more}
            self.assertEqual(reply["result"]["completion"], wanted)
        self.assertEqual(
            given[0], (tinymcp.PromptReference("p"), "topic", "a", {"lang": "py"})
        )
        peer.ask(
            "completion/complete", ref=template, argument={"name": "x", "value": ""}
        )
        self.assertEqual(
            given[-1], (tinymcp.ResourceTemplateReference("a:{x}"), "x", "", {})
        )
        count = len(given)
        for params in (
            {},
            {"ref": [], "argument": argument},
            {"ref": {"type": "ref/prompt"}, "argument": argument},
            {"ref": {**prompt, "name": []}, "argument": argument},
            {"ref": {**prompt, "name": "nope"}, "argument": argument},
            {"ref": {**prompt, "type": []}, "argument": argument},
            {"ref": {**template, "uri": {}}, "argument": argument},
            {"ref": {"type": "ref/resource", "uri": "a:b"}, "argument": argument},
            {"ref": prompt},
            {"ref": prompt, "argument": "topic"},
            {"ref": prompt, "argument": {"name": "topic"}},
            {"ref": prompt, "argument": {"name": [], "value": "a"}},
            {"ref": prompt, "argument": {"name": "other", "value": "a"}},
            {"ref": prompt, "argument": {"name": "topic", "value": 5}},
            {"ref": prompt, "argument": argument, "context": []},
            {"ref": prompt, "argument": argument, "context": {"arguments": []}},
        ):
            error = peer.ask("completion/complete", **params)["error"]
            self.assertEqual(error["code"], rt.INVALID_PARAMS, params)
        self.assertEqual(len(given), count)
        for _ in range(40):
            reply = peer.ask("completion/complete", ref=prompt, argument=argument)
        self.assertEqual(reply["error"]["code"], rt.TOO_MANY_REQUESTS)

    def test_completion_cannot_ask_MRT_01(self):
        server, _ = make()

        def complete(ref, argument, ctx: Context):
            return [str(ctx.confirm("Sure?"))]

        server.completion(complete)
        server.add_prompt(lambda topic: "x", name="p")
        for peer in (Peer(server, D), Peer(server)):
            params = {"ref": {"type": "ref/prompt", "name": "p"}}
            params["argument"] = {"name": "topic", "value": ""}
            error = peer.ask("completion/complete", **params)["error"]
            self.assertEqual(error["code"], rt.INTERNAL_ERROR)


class Says(unittest.TestCase):
    """What goes to the client while a handler runs."""

    def test_progress_PRG_01_PRG_02(self):
        server, _ = make()
        kept = []

        @server.tool(inline=True)
        def work(ctx: Context) -> str:
            kept.append(ctx)
            for value in (0, 0.5, 0.5, 0.25, math.nan, math.inf, 1.0):
                ctx.report_progress(value, total=1, message="m")
            ctx.report_progress(2)
            return "x"

        for revision in REVISIONS:
            for token in (0, "", "a", 5):
                peer = Peer(server, revision)
                peer.call("work", {"_meta": {"progressToken": token}})
                notes = peer.notes("notifications/progress")
                self.assertEqual([n["progress"] for n in notes], [0, 0.5, 1.0, 2])
                for note in notes:
                    self.assertEqual(
                        (note["progressToken"], type(note["progressToken"])),
                        (token, type(token)),
                    )
                self.assertEqual("message" in notes[0], revision >= B)
                self.assertEqual(set(notes[3]), {"progressToken", "progress"})
                kept[-1].report_progress(3)  # after the reply
                self.assertEqual(len(peer.notes("notifications/progress")), 4)
            for token in ({}, {"progressToken": None}, {"progressToken": True}):
                peer.sent.clear()
                peer.call("work", {"_meta": token})
                self.assertEqual(peer.notes("notifications/progress"), [])

    def test_a_stuck_peer_gets_no_progress(self):
        server, _ = make()

        @server.tool(inline=True)
        def work(ctx: Context) -> str:
            ctx.report_progress(1)
            return "x"

        peer = Peer(server)
        peer.open = False
        peer.call("work", {"_meta": {"progressToken": 1}})
        self.assertEqual(peer.notes("notifications/progress"), [])

    def test_log_levels_LOG_01_LOG_02_LOG_03(self):
        server, _ = make()

        @server.tool(inline=True)
        def work(ctx: Context) -> str:
            for level in rt._LEVELS:
                ctx.log(level, level)
            ctx.debug("x"), ctx.info("x"), ctx.notice("x"), ctx.warning("x")
            ctx.error("x"), ctx.critical({"a": 1}, logger="l")
            return "x"

        names = [*rt._LEVELS]
        peer = Peer(server, D)
        for n, level in enumerate(names):
            self.assertEqual(peer.ask("logging/setLevel", level=level)["result"], {})
            peer.sent.clear()
            peer.call("work")
            levels = [note["level"] for note in peer.notes("notifications/message")]
            self.assertEqual(levels, names[n:] + names[n:6])
        for level in ("loud", "", None, 5, [], {}, "INFO"):
            error = peer.ask("logging/setLevel", level=level)["error"]
            self.assertEqual(error["code"], rt.INVALID_PARAMS)
        fresh = Peer(server, D)
        fresh.call("work")
        notes = fresh.notes("notifications/message")
        self.assertEqual(notes[0]["level"], "info")
        self.assertEqual(
            notes[-1], {"level": "critical", "data": {"a": 1}, "logger": "l"}
        )
        modern = Peer(server)
        modern.call("work")
        self.assertEqual(modern.notes("notifications/message"), [])
        modern.call("work", {"_meta": {rt._LEVEL_KEY: "alert"}})
        levels = [note["level"] for note in modern.notes("notifications/message")]
        self.assertEqual(levels, ["alert", "emergency"])

    def test_a_log_message_never_fails_the_call(self):
        server, _ = make()

        @server.tool(inline=True)
        def work(ctx: Context) -> str:
            ctx.info(object())
            ctx.info(math.nan)
            ctx.info(datetime.date(2026, 1, 2))
            with contextlib.suppress(ValueError):
                ctx.log("loud", "x")
            return "x"

        peer = Peer(server, D)
        self.assertEqual(peer.text("work"), "x")
        data = [note["data"] for note in peer.notes("notifications/message")]
        self.assertIn("<object object at", data[0])
        self.assertEqual(data[1:], ["nan", "2026-01-02"])

    def test_floods_are_cut_LOG_04_PRG_02(self):
        server, _ = make(limits=limits(log_rate=(5, 1e9)))

        @server.tool(inline=True)
        def work(ctx: Context) -> str:
            for n in range(100):
                ctx.info("x")
                ctx.report_progress(n)
            return "x"

        peer = Peer(server, D)
        peer.sent.clear()
        peer.call("work", {"_meta": {"progressToken": 1}})
        self.assertEqual(len(peer.sent), 6)

    def test_what_a_handler_learns_MET_03_MET_04_MET_05_OTL_01(self):
        lifespan = object()
        server, _ = make()
        server._lifespan_value = lifespan
        told = {
            "traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01",
            "tracestate": "x=y",
            "baggage": "k=v",
            "com.example/odd": {"deep": [1]},
            rt._CLIENT_KEY: {"name": "admin", "version": "9"},
        }
        seen = []

        @server.tool(inline=True)
        def look(ctx: Context[int]) -> str:
            seen.append(ctx)
            same = ctx.session is ctx.request_context is ctx
            return f"{same} {ctx.request_id} {ctx.protocol_version}"

        peer = Peer(server, E, {"roots": {}})
        peer.principal = "me"
        self.assertEqual(peer.text("look", {"_meta": told}), f"True 1 {E}")
        ctx = seen[0]
        for key, value in told.items():
            self.assertEqual(ctx.meta[key], value)
        self.assertEqual(ctx.client_info["name"], "admin")
        self.assertEqual(ctx.client_capabilities, {"roots": {}})
        self.assertEqual((ctx.principal, ctx.server), ("me", server))
        self.assertIs(ctx.lifespan, lifespan)
        self.assertIs(ctx.request_context.lifespan_context, lifespan)
        self.assertFalse(ctx.cancelled)
        ctx.meta["x"] = 1
        self.assertNotIn("x", ctx.meta)
        self.assertNotIn("admin", json.dumps(peer.sent))

    def test_the_trace_is_in_the_log_OTL_01(self):
        server, log = make()

        @server.tool(inline=True)
        def fail() -> str:
            raise ValueError

        good = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
        for trace in (good, "x\ny", 5):
            Peer(server).call("fail", {"_meta": {"traceparent": trace}})
        self.assertIn(good, log[0][1])
        self.assertNotIn("x\ny", log[1][1])

    def test_reading_resources_from_a_handler(self):
        server, _ = make()

        async def later():
            return b"x"

        server.add_resource("a:text", lambda: "x", name="r", mime_type="a/b")
        server.add_resource("a:json", lambda: {"v": 1}, name="r")
        server.add_resource("a:later", later, name="r")

        @server.resource("b:{n}")
        def numbered(n: int, ctx: Context) -> str:
            return f"{n} {ctx.request_id}"

        @server.tool(inline=True)
        def read(uri: str, ctx: Context) -> str:
            (item,) = ctx.read_resource(uri)
            return f"{item.content} {item.mime_type}"

        peer = Peer(server)
        self.assertEqual(peer.text("read", uri="a:text"), "x a/b")
        self.assertEqual(peer.text("read", uri="a:json"), '{"v":1} None')
        self.assertEqual(peer.text("read", uri="b:7"), "7 3 None")
        self.assertIn("async", peer.text("read", uri="a:later"))
        error = peer.call("read", uri="a:none")["error"]
        self.assertEqual(error["code"], rt.INVALID_PARAMS)
        error = Peer(server, D).call("read", uri="a:none")["error"]
        self.assertEqual(error["code"], rt.RESOURCE_NOT_FOUND)

    def test_changes_from_a_handler(self):
        server, _ = make()
        server.add_resource("a:b", lambda: "x", name="r")
        server.add_prompt(lambda: "x", name="p")

        @server.tool(inline=True)
        def change(ctx: Context) -> str:
            ctx.notify_tools_changed()
            ctx.session.send_resource_list_changed()
            ctx.notify_prompts_changed()
            ctx.session.send_resource_updated("a:b")
            ctx.close_sse_stream()
            return "x"

        peer = Peer(server, D)
        peer.ask("resources/subscribe", uri="a:b")
        peer.call("change")
        server._tick(time.monotonic())
        methods = {m.get("method") for m in peer.sent}
        self.assertLessEqual({name for name, _ in rt._CHANGES.values()}, methods)

    def test_close_sse_stream_reaches_the_peer(self):
        server, _ = make()
        closed = []

        class Streamed(Peer):
            def close_stream(self):
                closed.append(self)

        @server.tool(inline=True)
        def close(ctx: Context) -> str:
            ctx.close_sse_stream()
            return "x"

        peer = Streamed(server, D)
        peer.call("close")
        self.assertEqual(closed, [peer])


def asker(*, inline=True, **options):
    """A server with tools that ask, and what their handlers did."""
    server, log = make(**options)
    ran = []

    @server.tool(inline=inline)
    def sure(ctx: Context) -> str:
        ran.append("sure")
        return str(ctx.confirm("Sure?"))

    @server.tool(inline=inline)
    def both(ctx: Context) -> str:
        ran.append("both")
        first = ctx.confirm("One?")
        ran.append("between")
        return f"{first} {ctx.confirm('Two?', key='second')}"

    @server.tool(inline=inline)
    def form(ctx: Context) -> str:
        answer = ctx.elicit("Who?", Person)
        return f"{answer.action} {answer.content} {answer.data}"

    @server.tool(inline=inline)
    def page(ctx: Context) -> str:
        return ctx.elicit_url("Sign in", "https://a.b/c").action

    @server.tool(inline=inline)
    def think(ctx: Context) -> str:
        answer = ctx.sample("Why?", 50, system_prompt="Be brief", temperature=0.5)
        return f"{answer.role} {answer.model} {answer.text} {answer.stop_reason}"

    @server.tool(inline=inline)
    def roots(ctx: Context) -> str:
        return " ".join(f"{root.uri} {root.name}" for root in ctx.list_roots())

    @server.tool(inline=inline)
    def counted(ctx: Context) -> str:
        def act():
            ran.append("act")
            return {"n": (1, 2)}

        kept = ctx.once("act", act)
        return f"{kept} {ctx.confirm('Sure?')}"

    @server.tool(inline=inline)
    def explicit(ctx: Context) -> Any:
        given, state = ctx.input_responses, ctx.request_state or {"round": 0}
        if len(given) < 2:
            state = {"round": state["round"] + 1}
            ask = {"method": "elicitation/create", "params": {"message": "?"}}
            ask["params"]["requestedSchema"] = {"type": "object", "properties": {}}
            both = {"a": ask, "b": {"method": "roots/list"}}
            return InputRequired({k: both[k] for k in both if k not in given}, state)
        return f"{sorted(given)} {state['round']}"

    server.ran = ran
    return server, log


@dataclasses.dataclass
class Person:
    name: str
    age: Optional[int] = None
    mood: Literal["good", "bad"] = "good"


class Questions(unittest.TestCase):
    """Both eras behave alike: what a handler asks, and what it gets."""

    ANSWERS = (
        # tool, answers in order, what the tool says
        ("sure", [YES], "True"),
        ("sure", [NO], "False"),
        ("sure", [{"action": "decline"}], "False"),
        ("sure", [{"action": "cancel"}], "False"),
        ("sure", [{"action": "decline", "content": {"confirm": True}}], "False"),
        ("both", [YES, NO], "True False"),
        (
            "form",
            [{"action": "accept", "content": {"name": "Ann", "age": 7}}],
            "accept {'name': 'Ann', 'age': 7} Person(name='Ann', age=7, mood='good')",
        ),
        ("form", [{"action": "cancel", "content": {"name": "Ann"}}], "cancel {} None"),
        ("page", [{"action": "accept"}], "accept"),
        (
            "think",
            [
                {
                    "role": "assistant",
                    "content": {"type": "text", "text": "So."},
                    "model": "m",
                }
            ],
            "assistant m So. None",
        ),
        ("roots", [{"roots": [{"uri": "file:///a", "name": "A"}]}], "file:///a A"),
        ("roots", [{"roots": []}], ""),
        ("counted", [YES], "{'n': [1, 2]} True"),
    )

    def rounds(self, peer, tool, answers, **arguments):
        """Plays the client: the last reply."""
        if peer.revision != E:
            number = peer.begin(tool, **arguments)
            base = peer.session.asked
            for n, answer in enumerate(answers):
                peer.question(max(base, 1) + n)
                peer.answer(max(base, 1) + n, answer)
            return peer.got(number)
        more = {}
        for answer in answers:
            result = peer.call(tool, more, **arguments)["result"]
            self.assertEqual(result["resultType"], "input_required")
            (key,) = result["inputRequests"]
            more = {"inputResponses": {key: answer}}
            more["requestState"] = result["requestState"]
        return peer.call(tool, more, **arguments)

    def test_answers_ELI_02_MRT_04_MRT_09(self):
        for tool, answers, wanted in self.ANSWERS:
            for revision in (D, E):
                server, log = asker()
                reply = self.rounds(Peer(server, revision), tool, answers)
                self.assertEqual(text_of(reply), wanted, (tool, revision))
                self.assertEqual(log, [])

    def test_a_form_that_is_none_is_refused_in_sight_of_the_handler(self):
        """It cannot be written for the older revisions, and would never be answered."""
        for schema in ("x", {"properties": "x"}, {"properties": {"a": "string"}}):
            for inline in (True, False):
                server, _ = make()
                params = {"message": "?", "requestedSchema": schema}
                asked = {"q": {"method": "elicitation/create", "params": params}}
                server.add_tool(
                    lambda asked=asked: InputRequired(asked), name="t", inline=inline
                )
                peer = Peer(server, C, capabilities={"elicitation": {}})
                reply = peer.got(peer.begin("t"))
                self.assertTrue(reply["result"]["isError"])
                self.assertIn("requestedSchema is an object", text_of(reply))

    def test_an_exception_that_has_no_text_is_a_reply_too(self):
        class Mute(ToolError):
            def __str__(self):
                return self.args[9]

        faults = (Mute("x"), OSError(5, 7), MCPError(1, "x", {"data": {1}}))
        for fault in faults:
            for inline in (True, False):

                def fail(fault=fault):
                    raise fault

                server, _ = make()
                server.add_tool(fail, name="t", inline=inline)
                server.add_tool(lambda: "x", name="next", inline=inline)
                for revision in (D, E):
                    peer = Peer(server, revision)
                    reply = peer.got(peer.begin("t"))
                    self.assertTrue(reply.get("error") or reply["result"]["isError"])
                    self.assertEqual(text_of(peer.got(peer.begin("next"))), "x")

    def test_a_replay_starts_again_and_once_is_kept(self):
        for revision in (D, E):
            server, _ = asker()
            self.rounds(Peer(server, revision), "both", [YES, NO])
            self.assertEqual(server.ran, ["both", *["both", "between"] * 2])
            server, _ = asker()
            self.rounds(Peer(server, revision), "counted", [YES])
            self.assertEqual(server.ran, ["act"])

    def test_async_handlers_ask_alike(self):
        server, log = make()
        ran = []

        @server.tool
        async def ask(ctx: Context) -> str:
            async def act():
                await asyncio.sleep(0)
                ran.append("act")
                return {"n": 1}

            kept = await ctx.once("act", act)
            again = await ctx.once("plain", lambda: 2)
            await ctx.info("x")
            await ctx.report_progress(1)
            yes = await ctx.confirm("Sure?")
            loose = ctx.confirm("Sure?", key="1")  # without await as true as its value
            form = await ctx.elicit("Who?", Person, key="who")
            roots = await ctx.list_roots(key="roots")
            text = (await ctx.sample("Why?", key="why")).text
            (item,) = await ctx.read_resource("a:later")
            told = f"{kept} {again} {yes} {bool(loose)} {form.data.name}"
            return f"{told} {roots} {text} {item.content}"

        @server.resource("a:later")
        async def later() -> bytes:
            return b"x"

        answers = [
            NO,
            {"action": "accept", "content": {"name": "Ann"}},
            {"roots": []},
            {"role": "assistant", "content": [{"type": "text", "text": "So"}]},
        ]
        wanted = "{'n': 1} 2 False False Ann [] So b'x'"
        with looped(server):
            for revision in (D, E):
                reply = self.rounds(Peer(server, revision), "ask", answers)
                self.assertEqual(text_of(reply), wanted)
        self.assertEqual((ran, log), (["act"] * 2, []))

    def test_what_async_handlers_get_wrong(self):
        server, _ = make()

        @server.tool
        async def wait(ctx: Context) -> str:
            await asyncio.to_thread(ctx.wait, 0.001)  # stops nobody
            return str(ctx.wait(0.001))

        @server.tool
        async def forget(ctx: Context):
            return ctx.confirm("Sure?", key="1")

        with looped(server):
            text = text_of(Peer(server, E).call("wait"))
            self.assertIn("would stop every async handler: use await asyncio", text)
            text = text_of(self.rounds(Peer(server, E), "forget", [YES]))
            self.assertIn("a ctx call without await has no JSON form", text)

    def test_explicit_requests_MRT_07_MRT_09(self):
        person = {"action": "accept", "content": {"x": 1}}
        server, _ = asker()
        peer = Peer(server)
        first = peer.call("explicit")["result"]
        self.assertEqual(set(first["inputRequests"]), {"a", "b"})
        self.assertNotIn("ttlMs", first)  # CCH-02
        more = {"requestState": first["requestState"]}
        more["inputResponses"] = {"a": person, "unknown": {}}
        second = peer.call("explicit", more)["result"]
        self.assertEqual(set(second["inputRequests"]), {"b"})
        more = {"requestState": second["requestState"]}
        again = peer.call("explicit", more)["result"]
        self.assertEqual(set(again["inputRequests"]), {"b"})
        more["inputResponses"] = {"b": {"roots": []}}
        self.assertEqual(peer.text("explicit", more), "['a', 'b'] 2")
        more = {"inputResponses": {"a": person, "b": {}}}  # without a state: as given
        self.assertEqual(peer.text("explicit", more), "['a', 'b'] 0")
        server, _ = asker()
        peer = Peer(server, D)
        number = peer.begin("explicit")
        self.assertEqual(peer.question(2)["method"], "roots/list")
        peer.answer(2, {"roots": []})
        peer.answer(1, person)
        self.assertEqual(text_of(peer.got(number)), "['a', 'b'] 1")

    def test_a_state_alone(self):
        server, _ = make()

        @server.tool(inline=True)
        def steps(ctx: Context) -> Any:
            n = ctx.request_state or 0
            return f"{n}" if n == 3 else InputRequired(state=n + 1)

        self.assertEqual(Peer(server, D).text("steps"), "3")
        peer, more = Peer(server), {}
        for _ in range(3):
            result = peer.call("steps", more)["result"]
            self.assertEqual(result["resultType"], "input_required")
            self.assertNotIn("inputRequests", result)
            more = {"requestState": result["requestState"]}
        self.assertEqual(peer.text("steps", more), "3")
        error = peer.call("steps", more)["error"]
        self.assertEqual(error["message"], "Invalid requestState")
        with self.assertRaises(ToolError):
            InputRequired()

    def test_asking_in_resources_and_prompts_MRT_01(self):
        server, _ = make()
        server.add_resource("a:b", sure, name="r", inline=True)
        server.add_prompt(sure, name="p", inline=True)
        for method, params in (
            ("resources/read", {"uri": "a:b"}),
            ("prompts/get", {"name": "p"}),
        ):
            peer = Peer(server)
            result = peer.ask(method, **params)["result"]
            self.assertEqual(result["resultType"], "input_required")
            more = {
                "inputResponses": {"1": YES},
                "requestState": result["requestState"],
            }
            self.assertIn("True", json.dumps(peer.ask(method, **params, **more)))
            peer = Peer(server, D)
            number = peer.start(method, **params)
            peer.question(1)
            peer.answer(1, YES)
            self.assertIn("True", json.dumps(peer.got(number)))

    def test_wrong_answers_MRT_07(self):
        table = [
            ("sure", {"action": "maybe"}),
            ("sure", {}),
            ("sure", {"action": "accept", "content": {"confirm": "yes"}}),
            ("sure", {"action": "accept", "content": [1]}),
            ("form", {"action": "accept"}),
            ("form", {"action": "accept", "content": {"name": 5}}),
            ("page", {"action": 5}),
            ("think", {"role": "assistant"}),
            ("think", {"role": "assistant", "content": 5}),
            ("think", {"role": 5, "content": []}),
            ("think", {"role": "assistant", "content": {"text": "no type"}}),
            ("think", {"role": "assistant", "content": {"type": "text", "text": 5}}),
            ("think", {"role": "assistant", "content": [{"type": "text"}, 5]}),
            ("roots", {"roots": 5}),
            ("roots", {"roots": [5]}),
            ("roots", {"roots": [{}]}),
            ("roots", {"roots": [{"uri": 5}]}),
            ("roots", {"roots": [{"uri": "file:///a", "name": 5}]}),
            ("roots", {}),
        ]
        for tool, answer in table:
            for revision in (D, E):
                server, _ = asker()
                reply = self.rounds(Peer(server, revision), tool, [answer])
                self.assertEqual(reply["error"]["code"], rt.INVALID_PARAMS, tool)

    def test_open_questions_are_bounded(self):
        server, _ = asker(limits=limits(body=600))
        peer = Peer(server, D)
        for _ in range(20):
            peer.begin("sure", {"_meta": {"x": "y" * 100}})
        refused = [m for m in peer.sent if "Too many questions" in json.dumps(m)]
        self.assertGreater(len(refused), 10)
        self.assertLess(len(peer.session.pending), 8)

    def test_a_legacy_client_that_fails_to_answer(self):
        server, _ = asker()
        peer = Peer(server, D)
        number = peer.begin("sure")
        error = {"code": -1, "message": "no user here"}
        peer.question(1)
        peer.take({"jsonrpc": "2.0", "id": "s1", "error": error})
        self.assertIn("no user here", text_of(peer.got(number)))

    def test_a_malformed_answer_ends_the_call_that_asked(self):
        """It names the question, and the client thinks that it has answered."""
        table = [
            {"result": 5},
            {"result": None},
            {"error": "no"},
            {"error": {"code": "x", "message": "no"}},
            {"error": {"code": -1}},
            {"result": {}, "error": {"code": -1, "message": "no"}},
            {"method": 5, "result": {}},
            {},
        ]
        for answer in table:
            server, _ = asker()
            peer = Peer(server, D)
            number = peer.begin("sure")
            peer.question(1)
            before = len(peer.sent)
            peer.take({"jsonrpc": "2.0", "id": "s1", **answer})
            text = text_of(peer.got(number))
            self.assertIn("could not answer: a malformed answer", text, answer)
            self.assertEqual(len(peer.sent), before + 1, "an answer is not answered")

    def test_what_nobody_asked_for_is_no_part_of_an_answer_MRT_07(self):
        content = {"name": "Ann", "age": 7, "zoo": 1}
        answer = {"action": "accept", "content": content}
        for revision in (D, E):
            reply = self.rounds(Peer(asker()[0], revision), "form", [answer])
            known = "{'name': 'Ann', 'age': 7}"
            self.assertIn(f"accept {known} Person(name='Ann'", text_of(reply))

    def test_missing_and_unknown_answers_MRT_07(self):
        server, _ = asker()
        peer = Peer(server)
        result = peer.call("sure")["result"]
        more = {"requestState": result["requestState"], "inputResponses": {"zoo": {}}}
        again = peer.call("sure", more)["result"]
        self.assertEqual(again["inputRequests"], result["inputRequests"])
        more["inputResponses"] = {"1": YES, "zoo": {}}
        self.assertEqual(peer.text("sure", more), "True")  # nothing was spent before
        for responses in ([], None, "x", {"1": 5}, {"1": None}):
            error = peer.call("sure", {"inputResponses": responses})["error"]
            self.assertEqual(error["code"], rt.INVALID_PARAMS)
        # answers without a state belong to no question
        result = peer.call("sure", {"inputResponses": {"1": YES}})["result"]
        self.assertEqual(result["resultType"], "input_required")

    def test_a_changed_question_is_asked_again(self):
        for revision in (D, E):
            server, _ = make()
            server.ran = []

            @server.tool(inline=True)
            def fickle(ctx: Context) -> str:
                ctx.server.ran.append(1)
                return str(ctx.confirm(f"Version {min(len(ctx.server.ran), 2)}?"))

            reply = self.rounds(Peer(server, revision), "fickle", [NO, YES])
            self.assertEqual(text_of(reply), "True")

    def test_rounds_are_bounded(self):
        for revision in (D, E):
            server, _ = make(limits=limits(rounds=3))

            @server.tool(inline=True)
            def endless(ctx: Context) -> str:
                n = 0
                while True:
                    n += 1
                    ctx.confirm("Again?", key=f"k{n}")

            reply = self.rounds(Peer(server, revision), "endless", [YES] * 3)
            self.assertIn("More than 3 questions", text_of(reply))

    CAPABLE = (
        # tool, capability declared, revision, what is missing (None: it is asked)
        ("sure", {}, C, "elicitation"),
        ("sure", {}, D, "elicitation"),
        ("sure", {}, E, {"elicitation": {}}),
        ("sure", {"elicitation": {}}, B, "elicitation"),
        ("sure", {"elicitation": {}}, C, None),
        ("sure", {"elicitation": {}}, D, None),
        ("sure", {"elicitation": {}}, E, None),
        ("sure", {"elicitation": {"form": {}}}, E, None),
        ("sure", {"elicitation": {"url": {}}}, D, "elicitation form"),
        ("sure", {"elicitation": {"url": {}}}, E, {"elicitation": {"form": {}}}),
        ("sure", {"elicitation": True}, E, {"elicitation": {"form": {}}}),
        ("page", {"elicitation": {}}, E, {"elicitation": {"url": {}}}),
        ("page", {"elicitation": {"form": {}}}, D, "elicitation url"),
        ("page", {"elicitation": {"url": {}}}, C, "elicitation url"),
        ("page", {"elicitation": {"url": {}}}, D, None),
        ("page", {"elicitation": {"url": {}}}, E, None),
        ("think", {"elicitation": {}}, A, "sampling"),
        ("think", {"sampling": {}}, A, None),
        ("think", {"sampling": {}}, E, None),
        ("tools", {"sampling": {}}, D, "sampling tools"),
        ("tools", {"sampling": {}}, E, {"sampling": {"tools": {}}}),
        ("tools", {"sampling": {"tools": {}}}, C, "sampling tools"),
        ("tools", {"sampling": {"tools": {}}}, D, None),
        ("roots", {}, E, {"roots": {}}),
        ("roots", {"roots": {}}, A, None),
    )

    def test_capabilities_LIF_07_MRT_02_ELI_05_SMP_03(self):
        for tool, able, revision, missing in self.CAPABLE:
            server, _ = asker()

            @server.tool(inline=True)
            def tools(ctx: Context) -> str:
                ctx.sample("x", tools=[{"name": "t", "inputSchema": {}}])

            peer = Peer(server, revision, able)
            number = peer.begin(tool)
            if missing is None and revision != E:
                request = peer.question(1)
                self.assertEqual(
                    "mode" in request["params"],
                    tool in ("sure", "page") and revision == D,
                )
            elif missing is None:
                result = peer.got(number)["result"]
                self.assertEqual(result["resultType"], "input_required")
            elif revision == E:
                error = peer.got(number)["error"]
                self.assertEqual(error["code"], rt.MISSING_CLIENT_CAPABILITY)
                self.assertEqual(error["data"], {"requiredCapabilities": missing})
            else:
                text = text_of(peer.got(number))
                self.assertIn(f"capability {missing}, which", text)
                self.assertEqual([m for m in peer.sent if "method" in m], [])

    def test_a_peer_that_cannot_be_asked(self):
        class Deaf(Peer):
            can_ask = False

        server, _ = asker()
        self.assertIn("carries no requests", Deaf(server, D).text("sure"))

    def test_what_goes_out_in_which_revision_SMP_04_ELI_06_STD_04(self):
        server, _ = asker()
        forms = {}
        for revision in (C, D):
            peer = Peer(server, revision)
            for tool in ("form", "think"):
                peer.begin(tool)
            forms[revision] = peer.question(1)["params"]
            self.assertNotIn("includeContext", peer.question(2)["params"])
        fields = forms[C]["requestedSchema"]["properties"]
        self.assertNotIn("mode", forms[C])
        self.assertEqual(forms[D]["mode"], "form")
        self.assertNotIn("default", json.dumps(fields))
        new = forms[D]["requestedSchema"]["properties"]
        self.assertEqual(new["mood"]["default"], "good")
        self.assertEqual(new["age"], {"type": "integer"})
        self.assertEqual(forms[D]["requestedSchema"]["required"], ["name"])
        peer = Peer(server, D)
        peer.begin("page")
        self.assertRegex(peer.question(1)["params"]["elicitationId"], "^[0-9a-f]{24}$")
        peer = Peer(server)
        result = peer.call("page")["result"]
        (request,) = result["inputRequests"].values()
        self.assertNotIn("elicitationId", request["params"])
        self.assertEqual([m for m in peer.sent if "method" in m], [])

    def test_forms_are_flat_ELI_01(self):
        multiple = {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}}
        titled = {"type": "array", "items": {"anyOf": [{"const": "a", "title": "A"}]}}
        good = {"type": "object", "properties": {"m": multiple, "t": titled}}
        table = [
            (None, {"type": "object", "properties": {}}),
            (good, good),
            ({**good, "additionalProperties": False}, good),
        ]
        for schema, wanted in table:
            form, _ = Context._flat_form(schema)
            self.assertEqual(form, wanted)
        for schema in (
            {"type": "string"},
            {"type": "object", "properties": {"x": {"type": "object"}}},
            {"type": "object", "properties": {"x": {"type": "array", "items": {}}}},
            {"type": "object", "properties": {"x": {"anyOf": [{"type": "object"}]}}},
            list[int],
        ):
            with self.assertRaises(ToolError):
                Context._flat_form(schema)

    def test_sampling_messages_SMP_03(self):
        text = {"type": "text", "text": "x"}
        use = {"type": "tool_use", "id": "1", "name": "t", "input": {}}
        result = {"type": "tool_result", "toolUseId": "1", "content": [text]}

        def message(role, *content):
            return {"role": role, "content": list(content)}

        user, model = message("user", text), message("assistant", text, use)
        for good in (
            "x",
            tinymcp.UserMessage("x"),
            {"role": "user", "content": "x"},
            [user],
            [user, model, message("user", result)],
            [
                user,
                model,
                {"role": "user", "content": result},
                model,
                message("user", result),
            ],
            ["x", tinymcp.AssistantMessage("y"), {"role": "user", "content": "z"}],
        ):
            for each in Context._talk(good):
                self.assertIn(type(each["content"]), (dict, list))
        for bad in (
            [user, model],
            [user, model, user],
            [user, message("user", result)],
            [user, model, message("user", result, text)],
            [user, model, message("user", {**result, "toolUseId": "2"})],
        ):
            with self.assertRaisesRegex(ToolError, "tool uses"):
                Context._talk(bad)

    def test_odd_questions(self):
        server, _ = make()
        odd = iter(
            [
                {"a": 5},
                {5: {"method": "roots/list"}},
                {"a": {"method": "tools/call"}},
                {"a": {"method": []}},
                {"a": {"method": "roots/list", "params": 5}},
                {"a": {"method": "roots/list", "params": {"x": object()}}},
                {"a": {"method": "roots/list", "params": {"x": math.nan}}},
            ]
            * 2
        )

        @server.tool(inline=True)
        def ask(ctx: Context) -> Any:
            return InputRequired(next(odd))

        @server.tool(inline=True)
        def wrong(ctx: Context) -> str:
            return ctx.sample("x", colour="red").text

        for peer in (Peer(server, D), Peer(server)):
            for _ in range(7):
                self.assertTrue(peer.text("ask").startswith("ERROR "))
            self.assertIn("ctx.sample takes", peer.text("wrong"))
            self.assertEqual([m for m in peer.sent if "method" in m], [])

    def test_a_rate_token_is_taken_on_the_first_round_only(self):
        for revision in (D, E):
            server, _ = make()
            server.add_tool(sure, name="sure", rate=(1, 1e6), inline=True)
            reply = self.rounds(Peer(server, revision), "sure", [YES])
            self.assertEqual(text_of(reply), "True")
            self.assertIn("Rate limit", Peer(server).text("sure"))


class Seals(unittest.TestCase):
    """requestState: what a client holds and cannot change."""

    def first(self, server, principal=None, **arguments):
        peer = Peer(server)
        peer.principal = principal
        result = peer.call("sure", **arguments)["result"]
        return {"requestState": result["requestState"], "inputResponses": {"1": YES}}

    def refused(self, peer, more, tool="sure", **arguments):
        error = peer.call(tool, more, **arguments)["error"]
        self.assertEqual(error["code"], rt.INVALID_PARAMS)
        self.assertEqual(error["message"], "Invalid requestState")
        self.assertNotIn("data", error)

    def test_hostile_states_MRT_03(self):
        server, _ = asker()
        more = self.first(server)
        good = more["requestState"]
        flipped = ("B" if good[0] == "A" else "A") + good[1:]
        params = {"name": "sure"}
        message = {"id": 1, "method": "tools/call", "params": params}
        call = rt._Call(server, rt._Peer(server), message, 0)
        hostile = [5, [], {}, True, "", "x", "\xff", "A" * 44, "A" * 100000]
        hostile += [good[:-4], flipped, good + "\n", " " + good, good + "===="]
        # Nothing is parsed that was not sealed here.
        with mock.patch.object(rt.json, "loads", side_effect=AssertionError):
            for text in hostile:
                with self.assertRaises(MCPError) as caught:
                    server._seal.open(call, text)
                self.assertEqual(caught.exception.code, rt.INVALID_PARAMS, text)
        self.refused(Peer(server), {**more, "requestState": flipped})
        self.assertEqual(Peer(server).text("sure", more), "True")

    def test_bound_to_the_request_MRT_05(self):
        server, _ = make()

        def asks(n: int, ctx: Context) -> str:
            return str(ctx.confirm("Sure?"))

        server.add_tool(asks, name="sure", inline=True)
        server.add_tool(asks, name="other", inline=True)
        more = self.first(server, n=1)
        peer = Peer(server)
        self.refused(peer, more, n=2)
        self.refused(peer, more, "other", n=1)
        self.assertEqual(peer.text("sure", more, n=1), "True")
        self.refused(peer, more, n=1)  # used once

    def test_bound_to_the_principal_MRT_05_MRT_06_ELI_07_VER_10(self):
        server, _ = asker()
        ann, bob = tinymcp.Principal("ann", None), tinymcp.Principal("bob", None)
        peer = Peer(server)
        for mine, other in ((ann, bob), (ann, None), (None, ann), ("ann", "bob")):
            more = self.first(server, mine)
            peer.principal = other
            self.refused(peer, more)
            peer.principal = mine
            self.assertEqual(peer.text("sure", more), "True")

    def test_expires_MRT_05(self):
        server, _ = asker(limits=limits(state_age=5.0))
        now = time.monotonic()
        server._seal.clock = lambda: now
        late, soon = self.first(server), self.first(server)
        now += 4.9
        self.assertEqual(Peer(server).text("sure", soon), "True")
        now += 0.2
        self.refused(Peer(server), late)

    def test_a_fleet_shares_keys_MRT_04(self):
        keys = [b"k" * 16, b"old" * 8]
        one, _ = asker(state_keys=keys)
        two, _ = asker(state_keys=[keys[1], keys[0]])
        other, _ = asker(state_keys=[b"x" * 16])
        more = self.first(one)
        self.refused(Peer(other), more)
        self.assertEqual(Peer(two).text("sure", more), "True")
        self.assertIs(one._seal.clock, time.time)
        with self.assertRaisesRegex(ValueError, "16 bytes"):
            Server("s", state_keys=[b"short"])

    def test_states_differ_and_hold_no_secret_SEC_09(self):
        server, _ = asker()
        states = {self.first(server)["requestState"] for _ in range(50)}
        self.assertEqual(len(states), 50)

    def test_what_was_used_is_forgotten_in_time(self):
        seal = rt._Seal([], 5.0)
        now = 0.0
        seal.clock = lambda: now
        for n in range(100):
            seal.use({"n": str(n), "e": now + 5.0})
        now = 6.0
        seal.use({"n": "x", "e": now + 5.0})
        self.assertEqual(set(seal.used), {"x"})
        with self.assertRaises(MCPError):
            seal.use({"n": "x", "e": 0})
        seal.used.update(dict.fromkeys(range(16384), now + 5.0))
        with self.assertRaises(MCPError) as caught:  # rather than forget one
            seal.use({"n": "y", "e": now})
        self.assertEqual(caught.exception.code, rt.TOO_MANY_REQUESTS)

    def test_busy_does_not_spend_a_state(self):
        server, _ = asker(inline=False, limits=limits(waiting=1, workers=1))
        gate = Gate()
        server.add_tool(gate.pass_through, name="gate")
        more = self.first(server)
        peer = Peer(server)
        peer.begin("gate")
        gate.entered()
        waiting = peer.begin("gate")
        self.assertIn("busy", peer.text("sure", more))
        gate.free.release(2)
        peer.got(waiting)
        self.assertEqual(peer.text("sure", more), "True")


class Calls(unittest.TestCase):
    """Done, cancelled, timed out and disconnected: one of them, once."""

    def test_a_slow_call_holds_up_nothing_RPC_12(self):
        gate = Gate()
        server, _ = make()
        server.add_tool(gate.pass_through, name="gate")
        server.add_tool(lambda: "x", name="quick")
        peer = Peer(server)
        slow = peer.begin("gate")
        gate.entered()
        self.assertEqual(peer.text("quick"), "x")
        self.assertEqual(peer.replies(slow), [])
        gate.free.release()
        self.assertEqual(text_of(peer.got(slow)), "done")

    def test_cancel_CAN_01(self):
        server, log = make(log_level="debug")
        gate = Gate()
        told = []

        @server.tool
        def work(ctx: Context) -> str:
            gate.inside.release()
            told.append(ctx.wait(WAIT))
            told.append(ctx.cancelled)
            told.append(ctx.wait(WAIT))  # at once
            ctx.report_progress(1)
            gate.inside.release()
            return "late"

        for revision in (D, E):
            peer = Peer(server, revision)
            number = peer.begin("work", {"_meta": {"progressToken": 1}})
            gate.entered()
            peer.tell("notifications/cancelled", requestId=number, reason="bored")
            gate.entered()
            self.assertEqual(told, [True, True, True])
            self.assertEqual(peer.replies(number), [])
            self.assertEqual(peer.notes("notifications/progress"), [])
            self.assertEqual((peer.calls, peer.lost), ({}, 1))
            told.clear()
        self.assertEqual([level for level, _ in log], ["debug"] * 2)
        self.assertIn("bored", log[0][1])
        self.settled(server)

    def settled(self, server):
        """Workers and lanes get free, and no deadline is left behind."""
        deadline = time.monotonic() + WAIT
        while server._free < server._threads or server._waiting or server._lanes:
            if time.monotonic() > deadline:
                self.fail("a worker is not free")
            time.sleep(0.001)
        self.assertEqual(server._open.lines(), [])
        self.assertEqual(server._waiting_bytes, 0)

    def test_cancels_of_nothing_CAN_02(self):
        server, _ = make()
        server.add_tool(lambda: "x", name="t")
        peer = Peer(server, D)
        number = peer.begin("t")
        peer.got(number)
        before = len(peer.sent)
        for params in (
            {"requestId": number},
            {"requestId": 999},
            {"requestId": None},
            {"requestId": []},
            {"requestId": True},
            {"requestId": {}},
            {},
        ):
            peer.tell("notifications/cancelled", **params)
        peer.take({"jsonrpc": "2.0", "method": "notifications/cancelled"})
        self.assertEqual(peer.ask("ping")["result"], {})
        self.assertEqual(len(peer.sent), before + 1)

    def test_time_out_LIF_09(self):
        server, _ = make(limits=limits(call_timeout=50.0))
        gate = Gate()
        server.add_tool(gate.pass_through, name="short", timeout=5.0)
        server.add_tool(gate.pass_through, name="long")
        server.add_resource("a:b", gate.pass_through, name="r", timeout=5.0)
        peer = Peer(server)
        short, long = peer.begin("short"), peer.begin("long")
        read = peer.start("resources/read", uri="a:b")
        for _ in range(3):
            gate.entered()
        now = time.monotonic()
        due = server._tick(now + 4)
        self.assertLess(due, now + 5.1)
        self.assertEqual(peer.sent, [])
        due = server._tick(now + 6)
        self.assertIn("No result within 5 s", text_of(peer.got(short)))
        self.assertEqual(peer.got(read)["error"]["code"], rt.INTERNAL_ERROR)
        self.assertGreater(due, now + 40)
        gate.free.release(3)
        self.assertEqual(text_of(peer.got(long)), "done")
        self.settled(server)
        self.assertEqual(len(peer.sent), 3)  # the late values are dropped
        self.assertIsNone(server._tick(time.monotonic()))

    def test_time_out_of_a_question(self):
        server, _ = asker(limits=limits(answer_timeout=5.0))
        peer = Peer(server, D)
        number = peer.begin("sure")
        peer.question(1)
        server._tick(time.monotonic() + 6)
        self.assertIn("Nobody answered", text_of(peer.got(number)))
        withdrawn = peer.notes("notifications/cancelled")
        self.assertEqual([note["requestId"] for note in withdrawn], ["s1"])
        peer.answer(1, YES)  # too late
        self.assertEqual((len(peer.replies(number)), server.ran), (1, ["sure"]))
        self.assertEqual(peer.session.pending, {})

    def test_cancel_of_a_question_CAN_04(self):
        server, _ = asker()
        peer = Peer(server, D)
        number = peer.begin("explicit")
        peer.question(2)
        peer.answer(1, {"action": "decline"})
        peer.tell("notifications/cancelled", requestId=number)
        peer.answer(2, {"roots": []})
        self.assertEqual(peer.replies(number), [])
        withdrawn = peer.notes("notifications/cancelled")
        self.assertEqual([note["requestId"] for note in withdrawn], ["s2"])
        self.assertEqual(peer.session.pending, {})

    def test_a_cancelled_handler_asks_nothing_any_more(self):
        server, _ = make()
        gate = Gate()

        @server.tool(lock="bus0")
        def work(ctx: Context) -> str:
            gate.pass_through()
            return str(ctx.confirm("Sure?"))

        peer = Peer(server, D)
        number = peer.begin("work")
        gate.entered()
        peer.tell("notifications/cancelled", requestId=number)
        gate.free.release()
        self.settled(server)
        self.assertEqual([m for m in peer.sent if "method" in m], [])
        self.assertEqual((peer.session.pending, peer.calls), ({}, {}))

    def test_settles_once_whoever_comes_first(self):
        """Many calls, each finished, cancelled, timed out and answered at once."""
        server, _ = make(limits=limits(call_timeout=0.001, workers=4))

        @server.tool
        def work(ctx: Context) -> str:
            ctx.list_roots()
            ctx.wait(0.001)
            return "x"

        peer = Peer(server, D)
        stop = threading.Event()

        def tick():
            while not stop.is_set():
                server._tick(time.monotonic())

        def cancel():
            while not stop.is_set():
                for number in list(peer.calls):
                    if number % 3 == 0:
                        peer.tell("notifications/cancelled", requestId=number)

        def answer():
            while not stop.is_set():
                for request in list(peer.session.pending):
                    peer.answer(int(request[1:]), {"roots": []})

        threads = [threading.Thread(target=f) for f in (tick, cancel, answer)]
        for thread in threads:
            thread.start()
        numbers = [peer.begin("work") for _ in range(150)]
        deadline = time.monotonic() + WAIT
        while peer.calls and time.monotonic() < deadline:
            time.sleep(0.001)
        stop.set()
        for thread in threads:
            thread.join()
        self.settled(server)
        self.assertEqual(peer.calls, {})
        self.assertLessEqual(max(len(peer.replies(n)) for n in numbers), 1)
        answered = sum(len(peer.replies(n)) for n in numbers)
        self.assertEqual(answered + peer.lost, len(numbers))
        self.assertEqual(peer.session.pending, {})

    def test_an_answer_races_with_the_end(self):
        server, _ = asker()
        peer = Peer(server, D)
        peer.begin("sure")
        peer.question(1)
        (call,) = peer.calls.values()
        call.claim()
        peer.answer(1, YES)
        self.assertEqual(server.ran, ["sure"])
        self.assertFalse(server._owe(call, 1.0))
        call.settle((b"{}", 0))
        call.cancel()
        self.assertEqual(len(peer.sent), 2)

    def test_busy(self):
        server, _ = make(limits=limits(waiting=3, workers=1, waiting_bytes=1000))
        gate = Gate()
        server.add_tool(gate.pass_through, name="gate", input_schema={"type": "object"})
        server._registry.tool.items["gate"].function = lambda **k: gate.pass_through()
        peer = Peer(server)
        running = peer.begin("gate")
        gate.entered()
        waiting = [peer.begin("gate") for _ in range(2)]
        self.assertIn("busy", peer.text("gate", x="x" * 1000))  # over the bytes
        waiting.append(peer.begin("gate"))
        self.assertIn("busy", peer.text("gate"))  # over the number
        gate.free.release(9)
        for number in (running, *waiting):
            self.assertEqual(text_of(peer.got(number)), "done")
        self.settled(server)
        self.assertEqual(text_of(peer.call("gate", x="x" * 2000)), "done")  # alone

    def test_a_transport_that_fails_costs_no_worker(self):
        server, log = make(limits=limits(workers=1))
        gate = Gate()
        server.add_tool(gate.pass_through, name="gate")
        server.add_tool(lambda: "x", name="quick")

        class Broken(Peer):
            def reply(self, body, code):
                raise RuntimeError("no more")

        peer = Peer(server)
        Broken(server).begin("gate")
        gate.entered()
        number = peer.begin("quick")
        gate.free.release()
        self.assertEqual(text_of(peer.got(number)), "x")
        self.assertEqual(peer.text("quick"), "x")
        self.settled(server)
        self.assertEqual(log, [("critical", "RuntimeError in a worker: no more")])
        self.assertEqual(server._threads, 1)

    def test_workers_are_made_when_needed_and_bounded(self):
        server, _ = make(limits=limits(workers=2))
        gate = Gate()
        server.add_tool(gate.pass_through, name="gate")
        server.add_tool(lambda: "x", name="quick")
        peer = Peer(server)
        self.assertEqual(server._threads, 0)
        for _ in range(3):
            peer.text("quick")
            self.settled(server)
        self.assertEqual(server._threads, 1)
        numbers = [peer.begin("gate") for _ in range(4)]
        for _ in range(2):
            gate.entered()
        self.assertEqual(server._threads, 2)
        gate.free.release(4)
        for number in numbers:
            peer.got(number)

    def test_no_thread_to_be_had(self):
        server, log = make()
        gate = Gate()
        server.add_tool(gate.pass_through, name="gate")
        server.add_tool(gate.pass_through, name="lane", lock="a")
        peer = Peer(server)
        with mock.patch.object(rt.threading.Thread, "start", side_effect=RuntimeError):
            for name in ("gate", "lane", "lane"):  # refused: nobody might ever come
                self.assertIn("start no thread", peer.text(name))
        self.assertEqual([level for level, _ in log], ["critical"] * 3)
        self.settled(server)
        first = peer.begin("gate")  # the next one brings a thread
        gate.entered()
        with mock.patch.object(rt.threading.Thread, "start", side_effect=RuntimeError):
            second = peer.begin("gate")  # which this one waits for
        gate.free.release(2)
        for number in (first, second):
            self.assertEqual(text_of(peer.got(number)), "done")
        self.settled(server)

    def test_lanes(self):
        server, _ = make()
        gates = {"a": Gate(), "b": Gate()}
        order = []

        def work(lane: str, n: int) -> str:
            order.append(n)
            return gates[lane].pass_through()

        for lane in gates:
            server.add_tool(work, name=lane, lock=lane)
        peer = Peer(server)
        first = [peer.begin("a", lane="a", n=n) for n in range(3)]
        other = peer.begin("b", lane="b", n=9)
        for lane in gates:
            gates[lane].entered()
        self.assertEqual(sorted(order), [0, 9])
        gates["b"].free.release()
        peer.got(other)
        for _ in first:
            self.assertLess(len(order), 5)
            gates["a"].free.release()
        for number in first:
            peer.got(number)
        self.assertEqual([n for n in order if n != 9], [0, 1, 2])
        self.settled(server)

    def test_a_lane_is_held_until_the_function_has_ended(self):
        server, _ = make()
        gate = Gate()
        server.add_tool(gate.pass_through, name="move", lock="arm", timeout=5.0)
        peer = Peer(server)
        peer.begin("move")
        gate.entered()
        peer.tell("notifications/cancelled", requestId=1)
        second = peer.begin("move")
        peer.begin("move")
        self.assertEqual(gate.runs, 1)  # the arm is still moving
        server._tick(time.monotonic() + 6)  # both that wait are given up
        self.assertIn("No result within 5 s", text_of(peer.got(second)))
        self.assertEqual(server._waiting, 0)
        fourth = peer.begin("move")
        self.assertEqual(gate.runs, 1)
        gate.free.release(2)
        self.assertEqual(text_of(peer.got(fourth)), "done")
        self.settled(server)
        self.assertEqual(gate.runs, 2)

    def test_a_cancelled_call_leaves_its_lane(self):
        server, _ = make(limits=limits(waiting=2))
        gate = Gate()
        server.add_tool(gate.pass_through, name="move", lock="arm")
        server.add_tool(lambda: "x", name="quick")
        peer = Peer(server)
        peer.begin("move")
        gate.entered()
        for _ in range(50):  # a stuck lane does not use up the places of others
            number = peer.begin("move")
            peer.tell("notifications/cancelled", requestId=number)
        self.assertEqual(peer.text("quick"), "x")
        gate.free.release()
        peer.got(1)
        self.settled(server)
        self.assertEqual(gate.runs, 1)

    def test_a_question_frees_its_lane(self):
        server, _ = make()
        gate = Gate()

        @server.tool(lock="arm")
        def move(ctx: Context) -> str:
            gate.runs += 1
            return str(ctx.confirm("Sure?"))

        peer = Peer(server, D)
        numbers = [peer.begin("move") for _ in range(3)]
        for n in (1, 2, 3):
            peer.question(n)
        for n in (3, 1, 2):
            peer.answer(n, YES)
        for number in numbers:
            self.assertEqual(text_of(peer.got(number)), "True")
        self.settled(server)
        self.assertEqual(gate.runs, 6)

    def test_what_waits_in_a_lane_sees_no_context_variable_of_the_one_before(self):
        server, _ = make()
        user = contextvars.ContextVar("user", default="nobody")
        entered, gate = threading.Event(), threading.Event()

        @server.tool(lock="arm")
        async def work(name: str) -> str:
            before = user.get()
            user.set(name)
            entered.set()
            while not gate.is_set():
                await asyncio.sleep(0)
            return before

        with looped(server):
            peer = Peer(server)
            numbers = [peer.begin("work", name=name) for name in ("anna", "bert")]
            self.assertTrue(entered.wait(WAIT))
            gate.set()
            self.assertEqual([text_of(peer.got(n)) for n in numbers], ["nobody"] * 2)

    def test_async_handlers(self):
        server, log = make()
        events = []

        @server.tool(lock="arm")
        async def work(seconds: float) -> str:
            try:
                events.append("in")
                await asyncio.sleep(seconds)
                return "done"
            except asyncio.CancelledError:
                events.append("cancelled")
                raise

        @server.tool
        async def now() -> str:
            return "now"

        @server.tool
        async def fail() -> str:
            raise ValueError("x")

        async def inner() -> str:
            return "wrapped"

        server.add_tool(inner, name="plain")
        server._registry.tool.items["plain"].function = lambda: "plain"
        with looped(server):
            peer = Peer(server)
            self.assertEqual(peer.text("now"), "now")
            self.assertEqual(peer.text("plain"), "plain")
            self.assertEqual(peer.text("fail"), "ERROR ValueError: x")
            self.assertEqual(peer.text("work", seconds=0), "done")
            events.clear()
            number = peer.begin("work", seconds=60)
            waiting = peer.begin("work", seconds=60)
            third = peer.begin("work", seconds=0)
            deadline = time.monotonic() + WAIT
            while "in" not in events and time.monotonic() < deadline:
                time.sleep(0.001)
            peer.tell("notifications/cancelled", requestId=waiting)
            peer.tell("notifications/cancelled", requestId=number)
            self.assertEqual(text_of(peer.got(third)), "done")
            self.assertEqual(events, ["in", "cancelled", "in"])
            self.assertEqual(peer.replies(number) + peer.replies(waiting), [])
        self.assertEqual(len(log), 1)  # a cancelled call is no fault

    def test_the_loop_may_be_gone(self):
        server, _ = make()
        call = rt._Call(server, rt._Peer(server), {"id": 1, "method": "x"}, 0)
        loop = asyncio.new_event_loop()
        loop.close()
        call.task = mock.Mock()
        call.task.get_loop.return_value = loop
        call.handler = rt._Handler("tool", "x", {}, None)
        call.cancel()
        self.assertTrue(call.cancelled)

    def test_the_end_waits_until_replies_are_written(self):
        server, _ = make()
        gate, written = Gate(), []
        server.add_tool(gate.pass_through, name="gate")

        class Slow(Peer):
            def send(self, data):
                written.append(server._owes())
                super().send(data)

        peer = Slow(server)
        server._drained = threading.Event()
        peer.begin("gate")
        gate.entered()
        gate.free.release()
        self.assertTrue(server._drained.wait(WAIT))
        self.assertEqual(written, [True])
        self.assertFalse(server._owes())

    def test_disconnect(self):
        server, _ = make()
        gate = Gate()
        server.add_tool(gate.pass_through, name="gate")
        peer = Peer(server)
        peer.begin("gate")
        gate.entered()
        for call in list(peer.calls.values()):
            call.cancel()
        gate.free.release()
        self.settled(server)
        self.assertEqual(peer.sent, [])


class Changes(unittest.TestCase):
    """Announced once, to whoever asked, after the acknowledgement."""

    ACK = "notifications/subscriptions/acknowledged"

    def setUp(self):
        self.server, _ = make()
        for uri in ("a:b", "a:c"):
            self.server.add_resource(uri, lambda: "x", name=uri)
        self.server.add_resource("t:{x}", lambda x: x, name="t", min_interval=5.0)
        self.server.add_tool(lambda: "x", name="t")
        self.server.add_prompt(lambda: "x", name="p")

    def listen(self, peer, **wanted):
        return peer.start("subscriptions/listen", notifications=wanted)

    def tick(self, ahead=0.0):
        return self.server._tick(time.monotonic() + ahead)

    def test_acknowledged_first_SUB_01_SUB_02_SUB_03(self):
        self.server.notify_tools_changed()
        table = [
            ({}, {}),
            ({"toolsListChanged": True}, {"toolsListChanged": True}),
            ({"toolsListChanged": False, "x": 1}, {}),
            ({"toolsListChanged": 1}, {}),
            (
                {"resourceSubscriptions": ["a:b", "no:pe", "a:b", "t:5"]},
                {"resourceSubscriptions": ["a:b", "t:5"]},
            ),
        ]
        peer = Peer(self.server)
        for wanted, honoured in table:
            peer.sent.clear()
            number = self.listen(peer, **wanted)
            self.assertEqual(
                peer.notes(self.ACK),
                [
                    {
                        "_meta": {rt._SUBSCRIPTION_KEY: number},
                        "notifications": honoured,
                    }
                ],
            )
        peer.sent.clear()
        self.server.notify_tools_changed()
        self.server.notify_prompts_changed()
        self.server.notify_updated("a:b")
        self.server.notify_updated("a:b")
        self.server.notify_updated("a:c")
        self.tick()
        found = {
            (m["method"], m["params"]["_meta"][rt._SUBSCRIPTION_KEY]) for m in peer.sent
        }
        self.assertEqual(
            found,
            {
                ("notifications/tools/list_changed", 2),
                ("notifications/resources/updated", 5),
            },
        )
        self.assertEqual(len(peer.sent), 2)
        updated = peer.notes("notifications/resources/updated")[0]
        self.assertEqual(updated["uri"], "a:b")

    def test_ids_of_streams(self):
        for id in (0, "", -3, "x"):
            peer = Peer(self.server)
            params = {"_meta": meta(), "notifications": {"toolsListChanged": True}}
            message = {"jsonrpc": "2.0", "id": id, "method": "subscriptions/listen"}
            peer.take({**message, "params": params})
            self.server.notify_tools_changed()
            self.tick()
            tags = [m["params"]["_meta"][rt._SUBSCRIPTION_KEY] for m in peer.sent]
            self.assertEqual(tags, [id, id])
            self.server._end_listen(peer.calls[id])
            self.assertEqual(peer.sent[-1]["id"], id)

    def test_odd_filters(self):
        server, _ = make(limits=limits(streams=2))
        for uri in ("a:1", "a:2", "a:3"):
            server.add_resource(uri, lambda: "x", name=uri)
        peer = Peer(server)
        for params in (
            {},
            {"notifications": None},
            {"notifications": []},
            {"notifications": {"resourceSubscriptions": "a:1"}},
            {"notifications": {"resourceSubscriptions": [5]}},
            {"notifications": {"resourceSubscriptions": None}},
            {"notifications": {"resourceSubscriptions": ["a:1", "a:2", "a:3"]}},
        ):
            error = peer.ask("subscriptions/listen", **params)["error"]
            self.assertEqual(error["code"], rt.INVALID_PARAMS, params)
        old = Peer(server, D)
        for n in (1, 2):
            old.ask("resources/subscribe", uri=f"a:{n}")
        error = old.ask("resources/subscribe", uri="a:3")["error"]
        self.assertEqual(error["code"], rt.INVALID_PARAMS)

    def test_the_end_of_a_stream_SUB_04_CAN_04(self):
        peer = Peer(self.server)
        one = self.listen(peer, toolsListChanged=True)
        two = self.listen(peer, toolsListChanged=True)
        peer.tell("notifications/cancelled", requestId=one)
        peer.sent.clear()
        self.server.notify_tools_changed()
        self.tick()
        self.assertEqual(len(peer.sent), 1)
        self.server.notify_tools_changed()
        self.server._end_listen(peer.calls[two])
        self.tick()
        result = peer.sent[-1]["result"]
        self.assertEqual(peer.sent[-1]["id"], two)
        self.assertEqual(result["resultType"], "complete")
        self.assertEqual(result["_meta"][rt._SUBSCRIPTION_KEY], two)
        self.assertEqual((peer.replies(one), peer.calls), ([], {}))
        self.assertEqual(self.server._hub.wanted, {})
        self.assertFalse(self.server._owes())

    def test_list_changes_reach_both_eras_TOL_13_RES_07_PRM_04(self):
        old, new = Peer(self.server, D), Peer(self.server)
        self.listen(
            new,
            toolsListChanged=True,
            promptsListChanged=True,
            resourcesListChanged=True,
        )
        changes = [
            (lambda: self.server.add_tool(lambda: 1, name="x"), "tools"),
            (lambda: self.server.remove_tool("x"), "tools"),
            (lambda: self.server.add_prompt(lambda: "x", name="x"), "prompts"),
            (lambda: self.server.remove_prompt("x"), "prompts"),
            (lambda: self.server.add_resource("x:y", lambda: 1, name="x"), "resources"),
            (lambda: self.server.remove_resource("x:y"), "resources"),
            (lambda: self.server.remove_resource("t:{x}"), "resources"),
        ]
        for change, kind in changes:
            for peer in (old, new):
                peer.sent.clear()
            change()
            self.tick()
            for peer in (old, new):
                methods = [m["method"] for m in peer.sent]
                self.assertEqual(methods, [f"notifications/{kind}/list_changed"])

    def test_legacy_subscriptions_RES_05(self):
        peer, other = Peer(self.server, A), Peer(self.server, D)
        for uri in ("a:b", "t:5"):
            self.assertEqual(peer.ask("resources/subscribe", uri=uri)["result"], {})
        error = peer.ask("resources/subscribe", uri="no:pe")["error"]
        self.assertEqual(error["code"], rt.RESOURCE_NOT_FOUND)
        for method in ("resources/subscribe", "resources/unsubscribe"):
            for uri in (None, 5, []):
                error = peer.ask(method, uri=uri)["error"]
                self.assertEqual(error["code"], rt.INVALID_PARAMS)
        self.server.notify_updated("a:b")
        self.tick()
        self.assertEqual(
            peer.notes("notifications/resources/updated"), [{"uri": "a:b"}]
        )
        for _ in range(2):
            reply = peer.ask("resources/unsubscribe", uri="a:b")
            self.assertEqual(reply["result"], {})
        self.server.notify_updated("a:b")
        self.tick()
        self.assertEqual(len(peer.notes("notifications/resources/updated")), 1)
        self.assertEqual(other.notes("notifications/resources/updated"), [])

    def test_a_session_without_a_stream_of_its_own(self):
        peer = Peer(self.server, D, hello=False)
        peer.session = rt._Session(D, {}, {})  # as stateless HTTP makes one
        self.assertEqual(peer.ask("resources/subscribe", uri="a:b")["result"], {})
        self.assertEqual(self.server._hub.wanted, {})

    def test_min_interval(self):
        peer = Peer(self.server)
        self.listen(peer, resourceSubscriptions=["t:1"])
        peer.sent.clear()
        now = time.monotonic()
        for _ in range(5):
            self.server.notify_updated("t:1")
        self.assertIsNone(self.server._tick(now))
        self.assertEqual(len(peer.sent), 1)
        for _ in range(5):
            self.server.notify_updated("t:1")
        self.assertAlmostEqual(self.server._tick(now + 1), now + 5)
        self.assertEqual(len(peer.sent), 1)
        self.assertIsNone(self.server._tick(now + 5))
        self.assertEqual(len(peer.sent), 2)
        self.server.notify_updated("t:1")
        peer.tell("notifications/cancelled", requestId=1)
        self.assertIsNone(self.server._tick(now + 6))
        hub = self.server._hub
        self.assertEqual((hub.told, hub.changed, hub.wanted), ({}, {}, {}))

    def test_a_stuck_reader_costs_its_flags_and_nothing_else(self):
        stuck, quick = Peer(self.server), Peer(self.server, D)
        self.listen(stuck, toolsListChanged=True, resourceSubscriptions=["a:b", "a:c"])
        quick.ask("resources/subscribe", uri="a:b")
        stuck.open = False
        stuck.sent.clear()
        for _ in range(100):
            self.server.notify_updated("a:b")
            self.server.notify_updated("a:c")
            self.server.notify_tools_changed()
            self.tick()
        self.assertEqual(stuck.sent, [])
        self.assertEqual(len(quick.notes("notifications/resources/updated")), 100)
        stuck.open = True
        self.tick()
        self.assertEqual(len(stuck.sent), 3)
        self.tick()
        self.assertEqual(len(stuck.sent), 3)
        stuck.open = False
        self.server.notify_updated("a:b")
        self.tick()
        stuck.tell("notifications/cancelled", requestId=1)
        stuck.open = True
        self.tick()
        self.assertEqual(len(stuck.sent), 3)
        self.assertEqual(self.server._hub.stuck, {})

    def test_an_unsubscribed_flag_is_not_sent_late(self):
        peer = Peer(self.server, D)
        for uri in ("a:b", "a:c"):
            peer.ask("resources/subscribe", uri=uri)
        peer.open = False
        for uri in ("a:b", "a:c"):
            self.server.notify_updated(uri)
        self.tick()
        peer.ask("resources/unsubscribe", uri="a:b")
        peer.open = True
        self.tick()
        self.assertEqual(
            peer.notes("notifications/resources/updated"), [{"uri": "a:c"}]
        )

    def test_nobody_wants_to_hear(self):
        woken = []
        self.server._wake = lambda: woken.append(1)
        self.server.notify_updated("a:b")
        self.server.notify_tools_changed()
        self.assertEqual((woken, self.server._hub.changed), ([], {}))
        Peer(self.server, D)
        woken.clear()
        self.server.notify_tools_changed()
        self.assertEqual(woken, [1])

    def test_who_may_watch_SUB_06(self):
        self.server.add_resource("s:1", lambda: "x", name="s", scopes=("a",))
        for scopes, code in (((), rt.FORBIDDEN), (("a",), None), (None, None)):
            for revision in (D, E):
                peer = Peer(self.server, revision)
                peer.principal = tinymcp.Principal("me", scopes)
                if revision == D:
                    peer.ask("resources/subscribe", uri="s:1")
                    peer.ask("resources/read", uri="s:1")
                else:
                    self.listen(peer, resourceSubscriptions=["s:1"])
                found = [m["error"]["code"] for m in peer.sent if "error" in m]
                self.assertEqual(set(found), {code} - {None})

    def test_no_notice_after_the_end_whatever_the_threads_do(self):
        stop = threading.Event()

        def change():
            while not stop.is_set():
                self.server.notify_tools_changed()
                self.server.notify_updated("a:b")
                self.tick()

        threads = [threading.Thread(target=change) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(25):
                peer = Peer(self.server)
                wanted = {"toolsListChanged": True, "resourceSubscriptions": ["a:b"]}
                number = self.listen(peer, **wanted)
                peer.until(lambda m: m["method"] == "notifications/resources/updated")
                self.server._end_listen(peer.calls[number])
                self.assertEqual(peer.sent[0]["method"], self.ACK)
                with peer.changed:
                    count = len(peer.sent)
                self.assertIn("result", peer.sent[count - 1])
                self.tick()
                self.assertEqual(len(peer.sent), count)
        finally:
            stop.set()
            for thread in threads:
                thread.join()


class Time(unittest.TestCase):
    def test_deadlines(self):
        lines = rt._Deadlines()
        self.assertEqual(
            (lines.next_due(), lines.due(1e99), lines.lines()), (None, [], [])
        )
        now = time.monotonic()
        for key, seconds in (("a", 5.0), ("b", 1.0), ("c", 5.0), ("d", math.inf)):
            lines.start(key, seconds)
        self.assertAlmostEqual(lines.next_due(), now + 1, 1)
        self.assertEqual(lines.due(now + 3), ["b"])
        self.assertEqual(sorted(lines.due(now + 9)), ["a", "b", "c"])
        line = lines.by_length[1.0]
        line.pop("b")
        self.assertAlmostEqual(lines.next_due(), now + 5, 1)

    def test_the_engine_is_woken_for_a_nearer_deadline_only(self):
        server, _ = make()
        gate, woken = Gate(), []
        server.add_tool(gate.pass_through, name="gate", timeout=100.0)
        server.add_tool(gate.pass_through, name="soon", timeout=1.0)
        server._wake = lambda: woken.append(1)
        peer = Peer(server)
        peer.begin("gate")
        server._alarm = server._tick(time.monotonic())
        peer.begin("gate")
        self.assertEqual(len(woken), 1)
        peer.begin("soon")
        self.assertEqual(len(woken), 2)
        gate.free.release(3)
        for number in (1, 2, 3):
            peer.got(number)

    def test_calls_that_end_soon_do_not_wake_the_engine_each_time(self):
        server, _ = make()
        server.add_tool(lambda: "x", name="quick", timeout=100.0)
        woken, now = [], time.monotonic()
        server._wake = lambda: woken.append(1)
        peer = Peer(server)
        for _ in range(3):
            peer.got(peer.begin("quick"))
            kept, server._alarm = server._alarm, math.inf
            server._alarm = server._tick(time.monotonic(), kept)
            self.assertAlmostEqual(server._alarm, now + 100, 0)
        self.assertEqual(len(woken), 1)
        self.assertIsNone(server._tick(now + 200, server._alarm))

    def test_on_idle(self):
        server, log = make()
        fired = threading.Semaphore(0)
        woken = []
        server._wake = lambda: woken.append(1)

        def fall_asleep():
            fired.release()
            raise ValueError("x")

        async def sleep():
            fired.release()

        server.on_idle(5, fall_asleep)
        now = time.monotonic()
        self.assertAlmostEqual(server._tick(now), now + 5, 1)
        self.assertIsNone(server._tick(now + 6))
        self.assertTrue(fired.acquire(timeout=WAIT))
        self.assertIsNone(server._tick(now + 60))  # once
        woken.clear()
        Peer(server).ask("server/discover")
        self.assertEqual(woken, [1])
        self.assertIsNotNone(server._tick(time.monotonic()))
        server._tick(time.monotonic() + 6)
        self.assertTrue(fired.acquire(timeout=WAIT))
        deadline = time.monotonic() + WAIT
        while len(log) < 2 and time.monotonic() < deadline:
            time.sleep(0.001)
        self.assertEqual([level for level, _ in log], ["error"] * 2)
        with looped(server):
            server._idle.clear()
            server.on_idle(0, sleep)
            self.assertTrue(fired.acquire(timeout=WAIT))

    def test_on_idle_takes_what_is_no_python_function(self):
        server, _ = make()
        fired = threading.Event()
        server.on_idle(0, fired.set)
        server.on_idle(0, functools.partial(int, "1"))
        server._tick(time.monotonic() + 1)
        self.assertTrue(fired.wait(WAIT))


if __name__ == "__main__":
    unittest.main()
