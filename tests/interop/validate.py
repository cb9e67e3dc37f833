"""Judges recordings: every message that the server sent, against its revision's schema.

`validate.py SCHEMAS FOLDER ...` prints {folder: {messages, revisions, problems, ends}}.
Runs where the package jsonschema is installed. Beyond the schema as published, a
message must not carry members of a later revision (the definitions are closed for
that), it must be strict JSON, and a structured result must fit the tool's own schema.
"""

from __future__ import annotations

import copy
import http.client
import io
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Iterator, NamedTuple, Optional

from jsonschema import Draft202012Validator, validators

MODERN = "2026-07-28"
VERSION = "io.modelcontextprotocol/protocolVersion"
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"


class Message(NamedTuple):
    """A message of the server with what is needed to judge it."""

    body: Any
    request: Optional[dict[str, Any]]  # the request that it answers
    revision: str


# ---- Schemas -------------------------------------------------------------------------


def oldest(newer: dict[str, Any]) -> dict[str, Any]:
    """2024-11-05 from 2025-03-26: no package carries the former.

    2025-03-26 added batches, audio, tool annotations, progress messages and the
    completions capability, and nothing else changed (its changelog, and a comparison of
    the two published schemas).
    """
    schema = copy.deepcopy(newer)
    names = schema["definitions"]
    for gone in ("JSONRPCBatchRequest", "JSONRPCBatchResponse", "AudioContent"):
        del names[gone]
    del names["Tool"]["properties"]["annotations"]
    del names["ServerCapabilities"]["properties"]["completions"]
    del names["ProgressNotification"]["properties"]["params"]["properties"]["message"]

    def prune(value: Any) -> None:
        if isinstance(value, dict):
            audio = {"$ref": "#/definitions/AudioContent"}
            if audio in value.get("anyOf", []):
                value["anyOf"].remove(audio)
            value = list(value.values())
        if isinstance(value, list):
            for one in value:
                prune(one)

    prune(schema)
    return schema


class Schema:
    """The published schema of one revision."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self.key = "$defs" if "$defs" in schema else "definitions"
        self.names: dict[str, Any] = schema[self.key]
        # The generator of 2025-06-18 and 2025-11-25 calls schema.ts's numbers integers.
        for one in self.names.get("NumberSchema", {}).get("properties", {}).values():
            one["type"] = "number" if one.get("type") == "integer" else one["type"]
        for name, definition in self.names.items():
            typed = definition.get("type") == "object" and "properties" in definition
            if typed and "Meta" not in name:  # _meta is anybody's
                definition.setdefault("additionalProperties", False)
        self.schema = schema
        self.methods = {
            method: name
            for name, one in self.names.items()
            if (method := one.get("properties", {}).get("method", {}).get("const"))
        }
        self._validators: dict[str, Any] = {}

    def wrong(self, name: str, value: Any) -> list[str]:
        """What is wrong with a value as the definition `name`."""
        if name not in self._validators:
            root = {**self.schema, "$ref": f"#/{self.key}/{name}"}
            kind = validators.validator_for(root)
            if self.key == "definitions":  # draft 7 ignores what stands beside a $ref
                kind = Draft202012Validator
            self._validators[name] = kind(root)
        return [
            f"{name}{error.json_path[1:]}: {error.message[:300]}"
            for error in self._validators[name].iter_errors(value)
        ]

    def pick(self, *names: str) -> str:
        """The first of these definitions that this revision has."""
        return next(name for name in names if name in self.names)

    def message(self, body: Any, request: dict[str, Any] | None) -> list[str]:
        """What is wrong with one message of the server."""
        if isinstance(body, list):
            if "JSONRPCBatchResponse" not in self.names:
                return ["a batch, which this revision does not have"]
            return [text for one in body for text in self.message(one, request)]
        if "method" in body:
            name = self.methods.get(body["method"])
            if name is None:
                return [f"{body['method']} is not in this revision"]
            kind = "JSONRPCRequest" if "id" in body else "JSONRPCNotification"
            if not name.endswith(kind[len("JSONRPC") :]):
                return [f"{body['method']} as a {kind}"]
            # Before 2025-11-25 a method's definition lacks the envelope's members.
            inner = {
                k: v for k, v in body.items() if k in self.names[name]["properties"]
            }
            return [*self.wrong(kind, body), *self.wrong(name, inner)]
        if "error" in body:
            return self.wrong(self.pick("JSONRPCErrorResponse", "JSONRPCError"), body)
        envelope = self.pick("JSONRPCResultResponse", "JSONRPCResponse")
        return [
            *self.wrong(envelope, body),
            *(
                self.wrong(self.result(body, request), body["result"])
                if request
                else []
            ),
        ]

    def result(self, body: dict[str, Any], request: dict[str, Any]) -> str:
        """The definition of a result: by its request, or input_required."""
        if body["result"].get("resultType") == "input_required":
            return "InputRequiredResult"
        name = self.methods.get(request["method"], "").replace("Request", "Result")
        return name if name in self.names else "EmptyResult"


# ---- Recordings ----------------------------------------------------------------------


def strict(raw: bytes) -> Any:
    """Strict JSON: UTF-8, no NaN, no name twice."""

    def constant(name: str) -> Any:
        raise ValueError(f"{name} is no JSON")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise ValueError(f"a name twice in {[name for name, _ in pairs]}")
        return dict(pairs)

    text = raw.decode("utf-8")
    return json.loads(text, parse_constant=constant, object_pairs_hook=unique)


class Recording:
    """One file of tap.py: messages of the server, and problems found on the way."""

    def __init__(self, path: Path) -> None:
        self.lines = [json.loads(line) for line in path.read_text("ascii").splitlines()]
        self.problems: list[str] = []
        self.negotiated = ""
        self.requests: dict[str, dict[str, Any]] = {}
        self.progress: dict[str, dict[str, Any]] = {}
        self.stderr = self.flow("err", 0).decode("utf-8", "replace")
        ends = [line for line in self.lines if "exit" in line]
        self.end = ends[0] if ends else None

    def flow(self, flow: str, on: int) -> bytes:
        """All bytes of one direction of a connection."""
        mine = [x for x in self.lines if x.get("flow") == flow and x.get("on") == on]
        return "".join(line["data"] for line in mine).encode("latin-1")

    def messages(self) -> Iterator[Message]:
        """What the server sent."""
        connections = sorted({line["on"] for line in self.lines if line.get("on")})
        if connections:
            exchanges = [one for on in connections for one in self.exchanges(on)]
            for exchange in exchanges:  # first learn every session's revision
                exchange.learn(self)
            for exchange in exchanges:
                yield from exchange.messages(self)
        else:
            yield from self.stdio()

    def stdio(self) -> Iterator[Message]:
        """Newline framing: one LF ends a message, and nothing else is there."""
        for raw in self.flow("c2s", 0).splitlines():
            self.sent(raw)
        data = self.flow("s2c", 0)
        if data and not data.endswith(b"\n"):
            self.problems.append(f"output does not end with a newline: {data[-80:]!r}")
        lines = data.split(b"\n")[:-1]
        for raw in lines:
            if raw.endswith(b"\r"):
                self.problems.append(f"a line ends in CR LF: {raw[:80]!r}")
            yield from self.received(raw, "")

    def sent(self, raw: bytes) -> list[dict[str, Any]]:
        """Remember what the client asked."""
        try:
            body = json.loads(raw)
        except ValueError:
            return []  # the client's own affair
        messages = body if isinstance(body, list) else [body]
        for message in messages:
            if "method" in message and "id" in message:
                self.requests[json.dumps(message["id"])] = message
                token = message.get("params", {}).get("_meta", {}).get("progressToken")
                self.progress[json.dumps(token)] = message
        return messages

    def received(self, raw: bytes, revision: str) -> Iterator[Message]:
        """A message of the server with its request and revision."""
        try:
            body = strict(raw)
        except ValueError as error:
            self.problems.append(f"not strict JSON: {error} in {raw[:200]!r}")
            return
        request = None
        if isinstance(body, dict) and "method" not in body:
            request = self.requests.get(json.dumps(body.get("id")))
            version = (body.get("result") or {}).get("protocolVersion")
            if version and request and request["method"] == "initialize":
                self.negotiated = version
        yield Message(body, request, revision or self.revision(body, request))

    def revision(self, body: Any, request: dict[str, Any] | None) -> str:
        """The era of a message on stdio, where both may share one stream."""
        params = body.get("params", {}) if isinstance(body, dict) else {}
        token = json.dumps(params.get("progressToken"))
        cause = request or self.progress.get(token) or {}
        if asked := cause.get("params", {}).get("_meta", {}).get(VERSION):
            return str(asked)
        if SUBSCRIPTION in params.get("_meta", {}):
            return MODERN
        return self.negotiated or MODERN

    def exchanges(self, on: int) -> Iterator[Exchange]:
        """HTTP requests of one connection with their responses."""
        requests, replies = io.BytesIO(self.flow("c2s", on)), self.flow("s2c", on)
        answers = _Kept(replies)
        while head := _head(requests):
            method, headers = head
            body = _body(requests, headers)
            if not answers.left():
                break  # the connection was closed on an open request
            try:
                yield Exchange(method, headers, body, answers)
            except http.client.HTTPException as error:
                self.problems.append(f"not HTTP: {type(error).__name__} {error}")
                break


class _Kept(io.BytesIO):
    """Bytes that http.client reads without closing them."""

    def makefile(self, mode: str) -> _Kept:
        return self

    def close(self) -> None:
        pass

    def left(self) -> int:
        return len(self.getbuffer()) - self.tell()


def _head(stream: io.BytesIO) -> tuple[str, Any] | None:
    line = stream.readline()
    return (
        (line.split()[0].decode(), http.client.parse_headers(stream)) if line else None
    )


def _body(stream: io.BytesIO, headers: Any) -> bytes:
    if headers.get("transfer-encoding", "").lower() != "chunked":
        return stream.read(int(headers.get("content-length", 0)))
    body = b""
    while size := int(stream.readline().split(b";")[0] or b"0", 16):
        body += stream.read(size)
        stream.readline()
    stream.readline()
    return body


class Exchange:
    """One HTTP request and its response."""

    def __init__(self, method: str, headers: Any, body: bytes, answers: _Kept) -> None:
        self.method, self.headers, self.body = method, headers, body
        # It wants a socket, and only calls makefile().
        response = http.client.HTTPResponse(answers, method=method)  # type: ignore[arg-type]
        response.begin()
        self.response = response
        self.status = response.status
        self.whole = True
        try:
            self.reply = response.read()
        except http.client.IncompleteRead as error:  # a stream that the client left
            self.reply, self.whole = error.partial, False

    def learn(self, recording: Recording) -> None:
        """Take the negotiated revision from the handshake."""
        if b'"initialize"' in self.body:
            for raw in self.payloads():
                found = re.search(rb'"protocolVersion":\s*"([^"]+)"', raw)
                recording.negotiated = found[1].decode() if found else ""

    def payloads(self) -> list[bytes]:
        """The messages in the response, as bytes."""
        kind = self.response.getheader("content-type", "").split(";")[0].strip()
        if kind == "text/event-stream":
            events = re.split(rb"\r?\n\r?\n", self.reply)[:-1]
            data = [re.findall(rb"^data: ?(.*)$", one, re.MULTILINE) for one in events]
            return [raw for raw in map(b"\n".join, data) if raw.strip()]
        return [self.reply] if kind == "application/json" and self.reply else []

    def messages(self, recording: Recording) -> Iterator[Message]:
        """What came back, and what HTTP says about it."""
        recording.requests = {}  # ids live as long as one POST here
        sent = recording.sent(self.body) if self.body else []
        meta = [one.get("params", {}).get("_meta", {}).get(VERSION) for one in sent]
        version = self.headers.get("mcp-protocol-version") or next(
            filter(None, meta), ""
        )
        modern = version >= MODERN
        label = f"{self.method} {[one.get('method', 'response') for one in sent]}"
        asked = [one for one in sent if "method" in one and "id" in one]
        if (
            self.method == "POST"
            and not asked
            and (self.status, self.reply) != (202, b"")
        ):
            recording.problems.append(f"{label}: {self.status} {self.reply[:200]!r}")
        if self.status >= 500:
            recording.problems.append(f"{label}: {self.status} {self.reply[:200]!r}")
        if modern and self.response.getheader("mcp-session-id"):
            recording.problems.append(f"{label}: a session id in the modern era")
        payloads = self.payloads()
        resumed = "last-event-id" in self.headers and self.status == 200
        if resumed and self.whole and not payloads:
            # Taken for a lost connection: the SDKs come back once a second, for ever.
            recording.problems.append(f"{label}: resumed a stream that had ended")
        for raw in payloads:
            yield from recording.received(raw, version or recording.negotiated)


# ---- Judging -------------------------------------------------------------------------


def judge(folder: Path, schemas: dict[str, Schema]) -> dict[str, Any]:
    """The verdict on all recordings of one folder."""
    problems: list[str] = []
    counts: Counter[str] = Counter()
    ends = []
    for path in sorted(folder.glob("*.jsonl")):
        recording = Recording(path)
        outputs: dict[str, Any] = {}
        for message in recording.messages():
            counts[message.revision] += 1
            if message.revision not in schemas:
                problems.append(
                    f"unknown revision {message.revision!r}: {message.body}"
                )
                continue
            found = schemas[message.revision].message(message.body, message.request)
            found += structured(message, outputs)
            short = json.dumps(message.body)[:400]
            problems += [f"{message.revision} {text} in {short}" for text in found]
        problems += recording.problems
        if "Traceback" in recording.stderr:
            problems.append(f"traceback on stderr: {recording.stderr[-600:]}")
        ends.append(recording.end)
    return {"revisions": counts, "problems": problems, "ends": ends}


def structured(message: Message, outputs: dict[str, Any]) -> list[str]:
    """Tool schemas must be 2020-12, and structured results must fit them."""
    request, body = message.request, message.body
    if not request or "result" not in body:
        return []
    result = body["result"]
    if request["method"] == "tools/list":
        for tool in result["tools"]:
            for kind in ("inputSchema", "outputSchema"):
                if kind in tool:
                    Draft202012Validator.check_schema(tool[kind])
            outputs[tool["name"]] = tool.get("outputSchema")
    schema = outputs.get(request.get("params", {}).get("name"))
    if request["method"] != "tools/call" or not schema or result.get("isError"):
        return []
    if result.get("resultType") == "input_required" or message.revision < "2025-06-18":
        return []
    if "structuredContent" not in result:
        return ["no structuredContent though the tool has an outputSchema"]
    errors = Draft202012Validator(schema).iter_errors(result["structuredContent"])
    return [f"structuredContent: {error.message}" for error in errors]


def main() -> None:
    """Print the verdicts."""
    folder, *recordings = map(Path, sys.argv[1:])
    published = {
        one.stem: json.loads(one.read_text("utf-8")) for one in folder.glob("*.json")
    }
    published["2024-11-05"] = oldest(published["2025-03-26"])
    schemas = {revision: Schema(schema) for revision, schema in published.items()}
    print(json.dumps({str(one): judge(one, schemas) for one in recordings}))


if __name__ == "__main__":
    main()
