"""Sections 5 and 6: what a server offers, and how each revision gets to see it."""

import base64
import json
import pathlib
import sys
import tempfile
import threading
import time
import unittest
from typing import Annotated, Any, Optional

import tinymcp
from tinymcp import DefinitionError, Server, ToolError

rt = sys.modules[tinymcp.Server.__module__]
A, B, C, D, E = REVISIONS = rt._LEGACY + rt._MODERN
META = {rt._VERSION_KEY: E, rt._CAPABILITIES_KEY: {}}


def ask(server, method, revision=E, principal=None, **params):
    """The reply to one request that is answered at once."""
    peer = rt._Peer(server)
    peer.principal = principal
    if revision == E:
        params["_meta"] = META
    else:
        peer.session = rt._Session(revision, {}, {})
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return json.loads(server._dispatch(message, peer)[0])


def listed(server, method, member, revision=E, **params):
    return ask(server, method, revision, **params)["result"][member]


class Objects(unittest.TestCase):
    def test_wire_form(self):
        table = [
            (
                tinymcp.Icon("a.png", sizes=["48x48"]),
                {"src": "a.png", "sizes": ["48x48"]},
            ),
            (tinymcp.ToolAnnotations(read_only_hint=False), {"readOnlyHint": False}),
            (
                tinymcp.TextContent("x", _meta={"a": 1}),
                {"type": "text", "_meta": {"a": 1}, "text": "x"},
            ),
            (
                tinymcp.ImageContent(b"\0", "image/png", meta={}),
                {"type": "image", "_meta": {}, "data": "AA==", "mimeType": "image/png"},
            ),
            (
                tinymcp.EmbeddedResource(tinymcp.BlobResourceContents("a:b", b"x")),
                {"type": "resource", "resource": {"uri": "a:b", "blob": "eA=="}},
            ),
            (
                tinymcp.ResourceLink(
                    uri="a:b",
                    name="n",
                    icons=(tinymcp.Icon("i"),),
                    annotations=tinymcp.Annotations(["user"], 0.5),
                ),
                {
                    "type": "resource_link",
                    "uri": "a:b",
                    "name": "n",
                    "annotations": {"audience": ["user"], "priority": 0.5},
                    "icons": [{"src": "i"}],
                },
            ),
            (
                tinymcp.AssistantMessage("hi"),
                {"role": "assistant", "content": {"type": "text", "text": "hi"}},
            ),
            (
                tinymcp.Message(tinymcp.TextContent("hi"), role="assistant"),
                {"role": "assistant", "content": {"type": "text", "text": "hi"}},
            ),
            (tinymcp.PromptReference("p"), {"type": "ref/prompt", "name": "p"}),
        ]
        for value, wanted in table:
            self.assertEqual(value.wire(), wanted)

    def test_wire_objects_are_values(self):
        one = tinymcp.TextContent("x")
        self.assertEqual(one, tinymcp.TextContent(text="x", type="text"))
        self.assertNotEqual(one, tinymcp.TextContent("y"))
        self.assertNotEqual(one, "x")
        self.assertEqual(repr(one), "TextContent(text='x', annotations=None)")
        self.assertEqual(tinymcp.UserMessage("x").role, "user")
        for wrong in (
            lambda: tinymcp.TextContent("x", "y", "z"),
            lambda: tinymcp.TextContent(txt="x"),
            lambda: tinymcp.TextContent("x", type="image"),
        ):
            with self.assertRaisesRegex(TypeError, "TextContent takes text, anno"):
                wrong()

    def test_image_and_audio(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "a.JPG")
            path.write_bytes(b"jpeg")
            block = tinymcp.Image(path).wire()
            self.assertEqual(block["mimeType"], "image/jpeg")
            self.assertEqual(base64.b64decode(block["data"]), b"jpeg")
            bare = pathlib.Path(folder, "a")
            bare.write_bytes(b"x")
            self.assertEqual(tinymcp.Image(path=bare).wire()["mimeType"], "image/png")
        for value, kind in (
            (tinymcp.Image(data=b"x"), "image/png"),
            (tinymcp.Image(data=b"x", format="svg"), "image/svg+xml"),
            (tinymcp.Image(data=b"x", format="image/x"), "image/x"),
            (tinymcp.Audio(data=b"x"), "audio/wav"),
            (tinymcp.Audio(data=b"x", format="mp3"), "audio/mpeg"),
        ):
            self.assertEqual(value.wire()["mimeType"], kind)
        for wrong in (tinymcp.Image(), tinymcp.Image("a.png", b"x")):
            with self.assertRaises(ToolError):
                wrong.wire()

    def test_blocks(self):
        table = [
            ("x", {"type": "text", "text": "x"}),
            (3, {"type": "text", "text": "3"}),
            ({"type": "zebra"}, {"type": "text", "text": '{"type":"zebra"}'}),
            ({"type": "text", "text": "x"}, {"type": "text", "text": "x"}),
            (
                {"type": "image", "data": b"\0", "mimeType": "a/b"},
                {"type": "image", "data": "AA==", "mimeType": "a/b"},
            ),
            (
                tinymcp.TextResourceContents("a:b", "x"),
                {"type": "resource", "resource": {"uri": "a:b", "text": "x"}},
            ),
            (
                tinymcp.Root("file:///a"),
                {"type": "text", "text": '{"uri":"file:///a"}'},
            ),
        ]
        for value, wanted in table:
            self.assertEqual(rt._block(value), wanted)


class Revisions(unittest.TestCase):
    def test_content_by_revision_TOL_09(self):
        note = {"audience": ["user"], "lastModified": "2026-01-01T00:00:00Z"}
        text = {"type": "text", "text": "x", "_meta": {}, "annotations": note}
        audio = {"type": "audio", "data": "AA==", "mimeType": "audio/wav"}
        link = {"type": "resource_link", "uri": "a:b", "name": "n", "icons": []}
        old = {"type": "text", "text": "x", "annotations": {"audience": ["user"]}}
        blob = {"uri": "data:audio/wav", "mimeType": "audio/wav", "blob": "AA=="}
        table = [
            (text, A, old),
            (text, B, old),
            (text, C, text),
            (audio, A, {"type": "resource", "resource": blob}),
            (audio, B, audio),
            (link, A, {"type": "text", "text": "n: a:b"}),
            (link, B, {"type": "text", "text": "n: a:b"}),
            (link, C, {"type": "resource_link", "uri": "a:b", "name": "n"}),
            (link, D, link),
            (link, E, link),
        ]
        for block, revision, wanted in table:
            self.assertEqual(rt._fit(block, revision), wanted)

    def test_fields_of_lists_by_revision_TOL_10_TOL_12_RES_06(self):
        server = Server("s")
        more = {"title": "T", "icons": [tinymcp.Icon("i")], "meta": {"a": 1}}
        notes = tinymcp.Annotations(["user"], 0.5, "2026-01-01T00:00:00Z")
        size = {"size": 3, "annotations": notes, **more}

        @server.tool(annotations={"readOnlyHint": True}, **more)
        def tool(x: int) -> int:
            """Does."""
            return x

        server.add_resource("a:b", lambda: "x", name="r", **size)
        server.add_resource("a:{x}", lambda x: x, name="t", **more)
        server.add_prompt(lambda topic: topic, name="p", **more)
        base = {"name", "description", "inputSchema"}
        tools = [
            (A, base),
            (B, base | {"annotations"}),
            (C, base | {"annotations", "title", "_meta", "outputSchema"}),
            (D, base | {"annotations", "title", "_meta", "outputSchema", "icons"}),
            (E, base | {"annotations", "title", "_meta", "outputSchema", "icons"}),
        ]
        for revision, wanted in tools:
            entry = listed(server, "tools/list", "tools", revision)[0]
            self.assertEqual(set(entry), wanted)
        newer = {C: {"title", "_meta"}, D: {"title", "_meta", "icons"}}
        newer[E] = newer[D]
        for method, member, base in (
            ("resources/list", "resources", {"uri", "name", "size", "annotations"}),
            ("resources/templates/list", "resourceTemplates", {"uriTemplate", "name"}),
            ("prompts/list", "prompts", {"name", "arguments"}),
        ):
            for revision in REVISIONS:
                entry = listed(server, method, member, revision)[0]
                self.assertEqual(set(entry), base | newer.get(revision, set()))
        old = listed(server, "resources/list", "resources", B)[0]["annotations"]
        self.assertEqual(old, {"audience": ["user"], "priority": 0.5})

    def test_output_schema_is_an_object_before_the_modern_era_TOL_07(self):
        tree = {
            "type": "array",
            "items": {"$ref": "#/$defs/T"},
            "$defs": {"T": {"type": "integer"}},
        }
        loop = {"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#"}}]}
        server = Server("s")
        server.add_tool(lambda: [1], name="a", output_schema=tree)
        server.add_tool(lambda: None, name="b", output_schema=loop)
        server.add_tool(lambda: {"a": 1}, name="c", output_schema={"type": "object"})
        modern = listed(server, "tools/list", "tools", E)
        self.assertEqual([t["outputSchema"] for t in modern][:2], [tree, loop])
        legacy = listed(server, "tools/list", "tools", D)
        inner = {"type": "array", "items": {"$ref": "#/$defs/T"}}
        self.assertEqual(
            legacy[0]["outputSchema"],
            {
                "type": "object",
                "properties": {"result": inner},
                "required": ["result"],
                "$defs": tree["$defs"],
            },
        )
        self.assertNotIn("outputSchema", legacy[1])  # its references would dangle
        self.assertEqual(legacy[2]["outputSchema"], {"type": "object"})


class Tables(unittest.TestCase):
    def test_names_are_unique_TOL_11(self):
        server = Server("s")
        server.add_tool(lambda: 1, name="a")
        with self.assertRaisesRegex(DefinitionError, "tool 'a' exists already"):
            server.add_tool(lambda: 2, name="a")
        server.remove_tool("a")
        with self.assertRaises(KeyError):
            server.remove_tool("a")
        server.add_tool(lambda: 3, name="a")

    def test_inline_excludes_what_waits(self):
        async def later() -> None: ...

        for function, options in (
            (later, {}),
            (lambda: 1, {"lock": "bus0"}),
            (lambda: 1, {"timeout": 1.0}),  # nothing could end it
        ):
            with self.assertRaisesRegex(DefinitionError, "inline=True does not"):
                Server("s").add_tool(function, name="x", inline=True, **options)

    def test_pages_PAG_01_PAG_02_CCH_02(self):
        server = Server("s", page_size=2, ttl_ms=5, cache_scope="public")
        for n in range(5):
            server.add_tool(lambda: 1, name=f"t{n}")
            server.add_prompt(lambda: "x", name=f"t{n}")
            server.add_resource(f"a:{n}", lambda: "x", name=f"t{n}")
            server.add_resource(f"t{n}:{{x}}", lambda x: x, name=f"t{n}")
        for method, (_, member) in rt._LISTS.items():
            names, cursor = [], None
            for _ in range(3):
                more = {} if cursor is None else {"cursor": cursor}
                result = ask(server, method, **more)["result"]
                self.assertEqual((result["ttlMs"], result["cacheScope"]), (5, "public"))
                names += [entry["name"] for entry in result[member]]
                cursor = result.get("nextCursor")
            self.assertIsNone(cursor)
            self.assertEqual(names, [f"t{n}" for n in range(5)])
        for cursor in ("", "p", "pff", "x1", "p-1", "p1 ", 1, True, [], {}, "P1"):
            code = ask(server, "tools/list", cursor=cursor)["error"]["code"]
            self.assertEqual(code, rt.INVALID_PARAMS, cursor)

    def test_cursors_stay_stable_under_changes(self):
        server = Server("s", page_size=2)
        for n in range(4):
            server.add_tool(lambda: 1, name=f"t{n}")
        first = ask(server, "tools/list")["result"]
        server.remove_tool("t0")
        server.remove_tool("t1")  # the place of the cursor itself
        server.add_tool(lambda: 1, name="t4")
        rest = ask(server, "tools/list", cursor=first["nextCursor"])["result"]
        self.assertEqual([tool["name"] for tool in rest["tools"]], ["t2", "t3"])

    def test_made_up_cursors_cost_no_memory(self):
        server = Server("s", page_size=10)
        for n in range(40):
            server.add_tool(lambda: 1, name=f"t{n}")
        for n in range(40):
            ask(server, "tools/list", cursor=f"p{n:x}")
            ask(server, "tools/list", cursor=f"p{n:06x}")
        self.assertLessEqual(len(server._registry.tool.pages), 4)

    def test_order_and_bytes_are_the_same_for_all_TOL_01_TOL_14(self):
        server = Server("s")
        for name in "zebra apple mango".split():
            server.add_tool(lambda: 1, name=name)
        names = [tool["name"] for tool in listed(server, "tools/list", "tools")]
        self.assertEqual(names, "zebra apple mango".split())
        self.assertEqual(ask(server, "tools/list"), ask(server, "tools/list"))

    def test_lists_while_others_register(self):
        server, stop = Server("s", page_size=7), threading.Event()
        wrong = []

        def walk():
            while not stop.is_set():
                names, cursor = [], {}
                while cursor is not None:
                    result = ask(server, "tools/list", **cursor)["result"]
                    names += [int(tool["name"]) for tool in result["tools"]]
                    after = result.get("nextCursor")
                    cursor = None if after is None else {"cursor": after}
                if names != sorted(set(names)):
                    wrong.append(names)

        thread = threading.Thread(target=walk)
        server.add_tool(lambda: 1, name="0")
        thread.start()
        try:
            for n in range(1, 120):
                server.add_tool(lambda: 1, name=str(n))
                if n % 3 == 0:
                    server.remove_tool(str(n - 1))
        finally:
            stop.set()
            thread.join()
        self.assertEqual(wrong, [])

    def test_lists_by_scope(self):
        server = Server("s", page_size=2)
        for n, scopes in enumerate(((), ("a",), ("b",), ("a", "b"), ())):
            server.add_tool(lambda: 1, name=f"t{n}", scopes=scopes)
        for scopes, wanted in (
            (None, ["t0", "t1"]),
            ((), ["t0", "t4"]),
            (("a",), ["t0", "t1"]),
            (("a", "zoo"), ["t0", "t1"]),
            (("b",), ["t0", "t2"]),
        ):
            who = tinymcp.Principal("me", scopes)
            page = ask(server, "tools/list", principal=who)["result"]
            self.assertEqual([tool["name"] for tool in page["tools"]], wanted)
        reply = ask(server, "tools/call", principal=tinymcp.Principal("me"), name="t1")
        self.assertEqual(reply["error"]["code"], rt.FORBIDDEN)


class Templates(unittest.TestCase):
    MATCH = (
        # template, URI, arguments or None
        ("a://{x}", "a://b", {"x": "b"}),
        ("a://{x}", "a://", None),
        ("a://{x}", "a://b/c", None),
        ("a://{x}", "a://b?c", None),
        ("a://{x}", "a://b%2Fc", {"x": "b/c"}),
        ("a://{x}", "a://%C3%A9%20%F0%9D%84%9E", {"x": "\xe9 \U0001d11e"}),
        ("a://{x}", "a://%ff", None),
        ("a://{x}", "a://b%00", None),
        ("a://{x}", "a://100%", {"x": "100%"}),
        ("a://{x}/{y}", "a://b/c", {"x": "b", "y": "c"}),
        ("a://{x}.json", "a://b.c.json", {"x": "b.c"}),
        ("a://{x}.json", "a://bxjson", None),
        ("a://{x}-{y}", "a://b-c-d", {"x": "b-c", "y": "d"}),
        ("a://{x}-{y}-{z}", "a://b-c-d-e", {"x": "b-c", "y": "d", "z": "e"}),
        ("a://{+x}", "a://b/c", {"x": "b/c"}),
        ("a://{+x}/{y}", "a://b/c/d", {"x": "b/c", "y": "d"}),
        ("a://{x}/{+y}", "a://b/c/d", {"x": "b", "y": "c/d"}),
        ("a://b{/x}", "a://b/c", {"x": "c"}),
        ("a://b{/x*}", "a://b/c/d%2Fe", {"x": ["c", "d/e"]}),
        ("a://b{/x*}", "a://b", {"x": []}),
        ("a://b{/x*}", "a://b//", None),
        ("a://b{?x,y}", "a://b", {}),
        ("a://b{?x,y}", "a://b?", {}),
        ("a://b{?x,y}", "a://b?y=1&x=%20&z=3", {"y": "1", "x": " "}),
        ("a://b{?x,y}", "a://b?x", {"x": ""}),
        ("a://{x}{?y}", "a://b?y=2", {"x": "b", "y": "2"}),
        # RES-08: nothing climbs, and under file: nothing leaves the root
        ("a://{+x}", "a://../etc", None),
        ("a://{x}", "a://%2E%2e", None),
        ("a://{+x}", "a://b/..%2fc", None),
        ("a://{+x}", "a://b/..%5Cc", None),
        ("a://{+x}", "a:///etc", {"x": "/etc"}),
        ("a://{+x}", "a://b..c/...", {"x": "b..c/..."}),
        ("file:///srv/{+x}", "file:///srv/a/b", {"x": "a/b"}),
        ("file:///srv/{+x}", "file:///srv/../etc/passwd", None),
        ("file:///srv/{+x}", "file:///srv/%2e%2e/etc/passwd", None),
        ("file:///srv/{+x}", "file:///srv//etc/passwd", None),
        ("file:///srv/{+x}", "file:///srv/a%2fb", None),
        ("FILE:///srv/{x}", "FILE:///srv/a%5cb", None),
        ("file:///srv{/x*}", "file:///srv/a/b", {"x": ["a", "b"]}),
        ("file:///srv{/x*}", "file:///srv/../b", None),
        ("file:///srv/{x}{?q}", "file:///srv/a?q=", {"x": "a", "q": ""}),
        ("file:///srv/{x}{?q}", "file:///srv/a?q=/etc", None),
    )

    def test_match_RES_03_RES_08(self):
        for template, uri, wanted in self.MATCH:
            _, match = rt._template(template, "test")
            self.assertEqual(match(uri), wanted, (template, uri))

    def test_what_cannot_be_matched_is_refused(self):
        for template in (
            "a://{}",
            "a://{x",
            "a://x}",
            "a://{x}{y}",
            "a://{x}{+y}",
            "a://{x,y}",
            "a://{/x,y}",
            "a://{x*}",
            "a://{+x*}",
            "a://{?x*}",
            "a://{?x}b",
            "a://{?x}{y}",
            "a://{?x}{?y}",
            "a://{#x}",
            "a://{.x}",
            "a://{;x}",
            "a://{&x}",
            "a://{x:3}",
            "a://{1x}",
            "a://{{x}}",
        ):
            with self.assertRaisesRegex(DefinitionError, "where: "):
                rt._template(template, "where")

    def test_matching_takes_little_time(self):
        for template in (
            "a://{x}-{y}-{z}-{u}.txt",
            "a://{+x}/{+y}/{z}/{u}.txt",
            "a://{+x}{/y*}.txt",
        ):
            server = Server("s")
            names = rt._template(template, "test")[0]
            scope = {}
            exec(f"def read({', '.join(names)}): return 'x'", scope)
            for name in names:
                hint = list[str] if "{/y*}" in template and name == "y" else str
                scope["read"].__annotations__[name] = hint
            server.add_resource(template, scope["read"])
            before = time.process_time()
            for path in ("-" * 2000, "/" * 2000, "-" * (1 << 20)):
                uri = "a://" + path
                reply = ask(server, "resources/read", uri=uri)
                self.assertEqual(reply["error"]["code"], rt.INVALID_PARAMS)
            self.assertLess(time.process_time() - before, 2.0)

    def test_typed_arguments_RES_03(self):
        server = Server("s")
        seen = []

        @server.resource("a://{n}{?on,limit,name,word}", inline=True)
        def read(
            n: int,
            on: bool = False,
            limit: Optional[float] = None,
            name: Optional[str] = None,
            word: Any = None,
        ) -> str:
            seen.append((n, on, limit, name, word))
            return "x"

        ask(server, "resources/read", uri="a://3?on=true&limit=2.5&name=7&word=8")
        self.assertEqual(seen, [(3, True, 2.5, "7", "8")])
        for uri in ("a://x", "a://3?on=yes", "a://1e999", "a://[1]", "a://3?limit=x"):
            reply = ask(server, "resources/read", uri=uri)
            self.assertEqual(reply["error"]["code"], rt.INVALID_PARAMS, uri)
        self.assertEqual(len(seen), 1)

    def test_a_conversion_that_fails_is_no_such_resource(self):
        import datetime

        server = Server("s")

        @server.resource("a://{day}", inline=True)
        def read(day: datetime.date) -> str:
            return day.isoformat()

        good = ask(server, "resources/read", uri="a://2026-02-28")
        self.assertEqual(good["result"]["contents"][0]["text"], "2026-02-28")
        for revision, code in ((E, rt.INVALID_PARAMS), (D, rt.RESOURCE_NOT_FOUND)):
            reply = ask(server, "resources/read", revision, uri="a://2026-02-30")
            self.assertEqual(reply["error"]["code"], code)

    def test_uris_RES_09(self):
        for uri in ("noscheme", "1a://b", "a b://c", "://x", "a:", "a: b"):
            with self.assertRaisesRegex(DefinitionError, "scheme"):
                Server("s").add_resource(uri, lambda: "x", name="n")
        for uri in ("a:b", "a+b.c-1:x", "file:///a", "urn:x:y"):
            Server("s").add_resource(uri, lambda: "x", name="n")

    def test_a_resource_goes_before_a_template(self):
        server = Server("s")
        server.add_resource("a://{x}", lambda x: x, name="t", inline=True)
        server.add_resource("a://b", lambda: "exact", name="r", inline=True)
        for uri, text in (("a://b", "exact"), ("a://c", "c")):
            contents = ask(server, "resources/read", uri=uri)["result"]["contents"]
            self.assertEqual(contents[0]["text"], text)
        server.remove_resource("a://b")
        server.remove_resource("a://{x}")
        self.assertIn("error", ask(server, "resources/read", uri="a://b"))


class Headers(unittest.TestCase):
    def schema(self, **properties):
        return {"type": "object", "properties": properties}

    def test_found_HTM_13(self):
        one = {"type": "string", "x-mcp-header": "Region"}
        schema = self.schema(
            region=one,
            deep=self.schema(n={"type": "integer", "x-mcp-header": "Deep-N"}),
            x={"type": "string", "description": 'no "x-mcp-header": here'},
        )
        schema["properties"]["x-mcp-header"] = {"type": "string"}
        self.assertEqual(
            dict(rt._x_headers(schema, "t")),
            {"mcp-param-region": ("region",), "mcp-param-deep-n": ("deep", "n")},
        )
        self.assertEqual(rt._x_headers({"type": "object"}, "t"), [])

    def test_refused(self):
        good = {"type": "string", "x-mcp-header": "A"}
        for schema in (
            {"type": "object", "x-mcp-header": "A"},
            self.schema(a={"type": "string", "x-mcp-header": ""}),
            self.schema(a={"type": "string", "x-mcp-header": "a b"}),
            self.schema(a={"type": "string", "x-mcp-header": 5}),
            self.schema(a={"type": "number", "x-mcp-header": "A"}),
            self.schema(a={"x-mcp-header": "A"}),
            self.schema(a=good, b={"type": "string", "x-mcp-header": "a"}),
            self.schema(a={"type": "array", "items": good}),
            self.schema(a={"anyOf": [good]}),
            {"type": "object", "$defs": {"a": good}},
            {"type": "object", "properties": {}, "if": self.schema(a=good)},
        ):
            with self.assertRaisesRegex(DefinitionError, "where: each x-mcp-header"):
                rt._x_headers(schema, "where")

    def test_at_registration(self):
        hint = Annotated[str, {"x-mcp-header": "Region"}]

        def tool(region):
            return region

        tool.__annotations__["region"] = hint
        server = Server("s")
        server.add_tool(tool, name="t")
        found = server._registry.tool.items["t"].headers
        self.assertEqual(found, [("mcp-param-region", ("region",))])


if __name__ == "__main__":
    unittest.main()
