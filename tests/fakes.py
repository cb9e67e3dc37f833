"""Fake servers for the tests of the client: scripted, in the loop of the test."""

import asyncio
import inspect
import json

META = "io.modelcontextprotocol/"
MODERN, LEGACY = "2026-07-28", "2025-11-25"
CAPABILITIES = {
    "tools": {"listChanged": True},
    "resources": {"subscribe": True},
    "prompts": {},
    "completions": {},
    "logging": {},
}


class Failure(Exception):
    """What a handler raises to answer with an error."""

    def __init__(self, code, message="no", data=None):
        super().__init__(code, message)
        self.error = {"code": code, "message": message}
        if data is not None:
            self.error["data"] = data


class Script:
    """Answers by method: a dict, or a function of params that returns a result.

    A function may be async, may raise Failure, and gives no answer by returning None.
    """

    def __init__(self, era="modern", capabilities=CAPABILITIES, **methods):
        self.era = era
        self.capabilities = capabilities
        self.methods = {name.replace("__", "/"): m for name, m in methods.items()}
        self.seen = []  # messages
        self.news = asyncio.Event()

    def sent(self, method):
        """The params of all messages of a method."""
        return [m.get("params") for m in self.seen if m.get("method") == method]

    async def until(self, test):
        """The first message seen that passes a test."""
        while True:
            found = [message for message in self.seen if test(message)]
            if found:
                return found[0]
            self.news.clear()
            await asyncio.wait_for(self.news.wait(), 10)

    async def until_method(self, method, count=1):
        return await self.until(lambda m: len(self.sent(method)) >= count)

    def default(self, method):
        modern = self.era == "modern"
        info = {"name": "fake", "version": "1"}
        if method == "server/discover" and modern:
            result = {"supportedVersions": [MODERN], "capabilities": self.capabilities}
            return {
                **result,
                "instructions": "Hi.",
                "_meta": {META + "serverInfo": info},
            }
        if method == "initialize" and not modern:
            result = {"protocolVersion": LEGACY, "capabilities": self.capabilities}
            return {**result, "serverInfo": info, "instructions": "Hi."}
        lists = {
            "tools/list": "tools",
            "resources/list": "resources",
            "resources/templates/list": "resourceTemplates",
            "prompts/list": "prompts",
        }
        if method in lists:
            return {lists[method]: []}
        if method in ("ping", "resources/subscribe", "resources/unsubscribe"):
            return {}
        raise Failure(-32601, "Method not found")

    async def reply(self, message):
        """The whole response to a message; None for none."""
        self.seen.append(message)
        self.news.set()
        method, id = message.get("method"), message.get("id")
        handler = self.methods.get(method)
        try:
            if handler is None:
                if id is None or method is None:
                    return None
                result = self.default(method)
            elif callable(handler):
                result = handler(message.get("params") or {})
                if inspect.isawaitable(result):
                    result = await result
            else:
                result = handler
        except Failure as failure:
            return {"jsonrpc": "2.0", "id": id, "error": failure.error}
        if result is None or id is None:
            return None
        if self.era == "modern":
            result = {"resultType": "complete", **result}
        return {"jsonrpc": "2.0", "id": id, "result": result}


class FakeStream(Script):
    """A Client takes it for a Server of this process."""

    run = None

    async def serve(self, reader, writer):
        self.writer = writer
        tasks = set()
        try:
            async for line in reader:
                task = asyncio.ensure_future(self._answer(json.loads(line)))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
        finally:
            for task in tasks:
                task.cancel()
            writer.close()

    async def _answer(self, message):
        reply = await self.reply(message)
        if reply is not None:
            self.send(reply)

    def send(self, message):
        self.writer.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def notify(self, method, **params):
        self.send({"method": method, "params": params})

    def hang_up(self):
        self.writer.transport.abort()


class Request:
    def __init__(self, method, path, headers, body):
        self.method, self.path, self.headers, self.body = method, path, headers, body

    @property
    def json(self):
        return json.loads(self.body)


def response(status=200, body=b"", **headers):
    """An HTTP response; body is bytes or JSON."""
    kind = "application/json"
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    elif "content_type" not in headers:
        kind = "text/plain"
    lines = [f"HTTP/1.1 {status} Status"]
    headers = {"content_type": kind, "content_length": len(body), **headers}
    for name, value in headers.items():
        if value is not None:
            lines.append(f"{name.replace('_', '-')}: {value}")
    return "\r\n".join([*lines, "", ""]).encode() + body


SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


def event(message=None, id=None, retry=None):
    """One event of a stream."""
    lines = [] if id is None else [f"id: {id}"]
    lines += [] if retry is None else [f"retry: {retry}"]
    data = "" if message is None else json.dumps({"jsonrpc": "2.0", **message})
    return "\n".join([*lines, f"data: {data}", "", ""]).encode()


def chunk(data):
    return b"%x\r\n%s\r\n" % (len(data), data)


class FakeHttp:
    """An HTTP server: `async with FakeHttp(answer) as server: server.url`.

    answer(request, writer) gives the bytes of the response, or None when it has
    written them itself; then the connection is closed, unless `keep` says otherwise.
    """

    def __init__(self, answer, ssl=None):
        self._answer = answer
        self._ssl = ssl
        self.seen = []
        self.connections = 0
        self._tasks = set()
        self._news = asyncio.Event()

    async def __aenter__(self):
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", 0, ssl=self._ssl
        )
        self.port = self._server.sockets[0].getsockname()[1]
        scheme = "https" if self._ssl else "http"
        self.url = f"{scheme}://localhost:{self.port}/mcp"
        return self

    async def __aexit__(self, *error):
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def sent(self, method, key="method"):
        """Requests with an HTTP method, or POSTs with a JSON-RPC method."""
        if method.isupper():
            return [r for r in self.seen if r.method == method]
        posts = [r for r in self.seen if r.method == "POST" and r.body]
        return [r for r in posts if r.json.get(key) == method]

    async def until(self, test):
        while not any(test(request) for request in self.seen):
            self._news.clear()
            await asyncio.wait_for(self._news.wait(), 10)

    async def _serve(self, reader, writer):
        task = asyncio.current_task()
        self._tasks.add(task)
        self.connections += 1
        try:
            while await self._one(reader, writer):
                pass
        except (OSError, EOFError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _one(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.strip().split("\r\n")
        method, path, _ = first.split(" ")
        headers = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        request = Request(method, path, headers, body)
        self.seen.append(request)
        self._news.set()
        answer = self._answer(request, writer)
        if inspect.isawaitable(answer):
            answer = await answer
        if answer is None:
            return False
        writer.write(answer)
        await writer.drain()
        return b"connection: close" not in answer.lower()


def over_http(script, session=None, sse=False):
    """An answer function that serves a script over JSON, or over SSE."""

    async def answer(request, writer):
        if request.method != "POST":
            return response(405, b"", allow="POST")
        message = request.json
        reply = await script.reply(message)
        headers = {}
        if session and message.get("method") == "initialize":
            headers["mcp_session_id"] = session
        if reply is None:
            return response(202, b"", **headers)
        if sse:
            body = chunk(event(reply)) + b"0\r\n\r\n"
            return SSE + b"Transfer-Encoding: chunked\r\n\r\n" + body
        error = reply.get("error", {}).get("code")
        status = (
            200 if script.era == "legacy" else {None: 200, -32601: 404}.get(error, 400)
        )
        return response(status, reply, **headers)

    return answer
