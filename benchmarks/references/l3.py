"""L3: HTTP/1.1 keep-alive on asyncio streams: readuntil, readexactly, one write."""

import asyncio
import signal
import sys

from http11 import length, respond


async def serve(reader, writer):
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            body = await reader.readexactly(length(head))
            writer.write(respond(body))
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def main():
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    server = await asyncio.start_server(
        serve, "127.0.0.1", int(sys.argv[2]), backlog=1024
    )
    await ended.wait()
    server.close()


asyncio.run(main())
