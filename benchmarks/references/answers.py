"""The replies of the references: no framework, no validation, the JSON of app.py."""

import sys
from json import JSONEncoder, loads

MODERN = "2026-07-28"
LEGACY = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"]
INFO = {"name": "bench", "version": "1.0.0"}
META = {"io.modelcontextprotocol/serverInfo": INFO}
CAPABILITIES = {
    "logging": {},
    "tools": {"listChanged": True},
    "resources": {"subscribe": True, "listChanged": True},
}
CACHEABLE = {"server/discover", "resources/read", "tools/list"}
TEXT = {"type": "string"}
ECHO = {
    "description": "Return the text.",
    "inputSchema": {
        "type": "object",
        "properties": {"text": TEXT},
        "required": ["text"],
        "additionalProperties": False,
    },
}
TOOLS = [{"name": f"echo_{number}", **ECHO} for number in range(int(sys.argv[-1]))]


encode = JSONEncoder(separators=(",", ":")).encode  # json.dumps would make one a call


def initialize(params, modern):
    version = params["protocolVersion"]
    reply = {"capabilities": CAPABILITIES, "serverInfo": INFO}
    return {"protocolVersion": version if version in LEGACY else LEGACY[0], **reply}


def discover(params, modern):
    return {"supportedVersions": [MODERN], "capabilities": CAPABILITIES}


def call(params, modern):
    name, arguments = params["name"], params["arguments"]
    if name == "echo":
        text = arguments["text"]
        result = {"content": [{"type": "text", "text": text}]}
        result["structuredContent"] = text if modern else {"result": text}
        result["isError"] = False
        return result
    value = {"sensor": arguments["sensor"], "value": 21.5, "unit": "Cel"}
    content = [{"type": "text", "text": encode(value)}]
    return {"content": content, "structuredContent": value, "isError": False}


def read(params, modern):
    text = encode({"value": 21.5, "unit": "Cel"})
    item = {"uri": params["uri"], "mimeType": "application/json", "text": text}
    return {"contents": [item]}


METHODS = {
    "initialize": initialize,
    "ping": lambda params, modern: {},
    "server/discover": discover,
    "tools/list": lambda params, modern: {"tools": TOOLS},
    "tools/call": call,
    "resources/read": read,
}


def answer(data):
    """The reply to the bytes of one message, None for a notification."""
    message = loads(data.decode())
    if "id" not in message:
        return None
    method = message["method"]
    params = message.get("params", {})
    modern = "_meta" in params
    result = METHODS[method](params, modern)
    if modern:
        result["resultType"] = "complete"
        result["_meta"] = META
        if method in CACHEABLE:
            result["ttlMs"] = 0
            result["cacheScope"] = "private"
    reply = {"jsonrpc": "2.0", "id": message["id"], "result": result}
    return encode(reply).encode()
