"""L1: stdio, a blocking loop, no asyncio."""

import os

from answers import answer

buffer = b""
while True:
    chunk = os.read(0, 65536)
    if not chunk:
        break
    *lines, buffer = (buffer + chunk).split(b"\n")
    for line in lines:
        reply = answer(line)
        if reply is not None:
            os.write(1, reply + b"\n")
