"""Section 7: messages in, replies out: eras, calls, questions, changes, time."""

import asyncio
import contextlib
import dataclasses
import datetime
import json
import math
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
        for n in (1, 2):
            gate.entered()
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
