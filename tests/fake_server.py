"""A server that behaves as told: python3 tests/fake_server.py '{"discover": -32601}'.

Standard library only and quick to start: the tests of the client run it as a child.

discover    what the answer to server/discover is: "modern", an error code, "silent",
            "exit 0", "exit 1", "late" (after initialize), "null id", "garbage", "empty"
initialize  "ok" (default), "silent", an error code, or the revision to choose
first       lines to write before anything else, in latin-1
stderr      bytes to write to stderr before anything else
starts      a file that gets a line per start, and one per message
ignores     true: end of input and SIGTERM do not end it
answers     method -> its result, before anything else
sulks       true: once it has seen a probe it answers nothing at all
"""

import json
import os
import signal
import subprocess
import sys
import time

SPEC = json.loads(sys.argv[1])
OUT = sys.stdout.buffer
late = []


def send(message):
    OUT.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
    OUT.flush()


def note(text):
    if "starts" in SPEC:
        with open(SPEC["starts"], "a") as file:
            file.write(text + "\n")


def discover(id):
    how = SPEC.get("discover", -32601)
    supported = SPEC.get("supported", ["2026-07-28"])
    if how == "modern":
        capabilities = {"tools": {}, "resources": {"subscribe": True}, "prompts": {}}
        result = {"supportedVersions": supported, "capabilities": capabilities}
        info = {"io.modelcontextprotocol/serverInfo": {"name": "fake", "version": "1"}}
        result.update(resultType="complete", ttlMs=0, cacheScope="private", _meta=info)
        send({"id": id, "result": result})
    elif how == "late":
        late.append(id)
    elif how == "null id":
        send({"id": None, "error": {"code": -32600, "message": "what?"}})
    elif how == "empty":
        send({"id": id, "result": {}})
    elif how == "garbage":
        OUT.write(b"Traceback (most recent call last):\n")
        OUT.flush()
    elif isinstance(how, str) and how.startswith("exit"):
        sys.stderr.write("unknown method server/discover\n")
        sys.exit(int(how[-1]))
    elif how != "silent":
        data = {"supported": supported, "requested": "2026-07-28"}
        send({"id": id, "error": {"code": how, "message": "no", "data": data}})


def initialize(id):
    how = SPEC.get("initialize", "ok")
    if how == "silent":
        return
    if isinstance(how, int):
        send({"id": id, "error": {"code": how, "message": "not me"}})
        return
    result = {
        "protocolVersion": "2025-11-25" if how == "ok" else how,
        "capabilities": {"tools": {}, "resources": {"subscribe": True}, "logging": {}},
        "serverInfo": {"name": "fake", "version": "1"},
        "instructions": "Be kind.",
    }
    send({"id": id, "result": result})
    while late:
        send({"id": late.pop(), "result": {"supportedVersions": ["2026-07-28"]}})


def call(id, params):
    name, arguments = params.get("name"), params.get("arguments", {})
    token = params.get("_meta", {}).get("progressToken")
    if name == "crash":
        sys.stderr.write("the pump is on fire\n")
        sys.stderr.flush()
        os._exit(3)
    elif name == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif name == "progress" and token is not None:
        for step in range(arguments["steps"]):
            time.sleep(arguments["pause"])
            report = {"progressToken": token, "progress": step + 1}
            send({"method": "notifications/progress", "params": report})
    elif name == "env":
        text = json.dumps({"env": dict(os.environ), "cwd": os.getcwd()})
        send({"id": id, "result": {"content": [{"type": "text", "text": text}]}})
        return
    elif name == "nothing":
        return
    elif name == "as text":
        id = str(id)
    elif name == "close output":
        os.close(1)
        time.sleep(30)
    text = arguments.get("text", "done")
    send({"id": id, "result": {"content": [{"type": "text", "text": text}]}})


def answer(message):
    method, id = message.get("method"), message.get("id")
    note(method or "answer")
    if SPEC.get("sulks") and late == ["sulking"]:
        return
    if method in SPEC.get("answers", ()):
        result = {"resultType": "complete", **SPEC["answers"][method]}
        send({"id": id, "result": result})
    elif method == "server/discover":
        if SPEC.get("sulks"):
            late.append("sulking")
            return
        discover(id)
    elif method == "initialize":
        initialize(id)
    elif method == "tools/call":
        call(id, message["params"])
    elif method == "resources/read":
        contents = [{"uri": message["params"]["uri"], "text": "read"}]
        send({"id": id, "result": {"contents": contents}})
    elif id is not None:
        send({"id": id, "result": {}})


def main():
    note("start")
    if SPEC.get("ignores"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "grandchild" in SPEC:
        child = subprocess.Popen(["sleep", "60"])
        note(f"grandchild {child.pid}")
    sys.stderr.write("x" * SPEC.get("stderr", 0))
    sys.stderr.flush()
    for line in SPEC.get("first", ()):
        OUT.write(line.encode("latin-1"))
        OUT.flush()
    for line in sys.stdin.buffer:
        answer(json.loads(line))
    note("end of input")
    while SPEC.get("ignores"):
        time.sleep(60)


if __name__ == "__main__":
    main()
