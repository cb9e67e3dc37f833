"""HTTP/1.1 as little as the references need, for L3 and L4."""

from answers import answer

HEAD = (
    b"HTTP/1.1 %s\r\nContent-Type: application/json\r\n%sContent-Length: %d\r\n\r\n%s"
)


def length(head):
    """The Content-Length in a request head."""
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


def respond(body):
    """The whole response to one request body."""
    reply = answer(body)
    if reply is None:
        return b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"
    extra = b"Mcp-Session-Id: 1\r\n" if b'"protocolVersion":"2025' in reply else b""
    return HEAD % (b"200 OK", extra, len(reply), reply)
