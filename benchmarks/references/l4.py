"""L4: HTTP/1.1 keep-alive on a bare asyncio.Protocol."""

import asyncio
import signal
import sys

from http11 import length, respond


class Connection(asyncio.Protocol):
    __slots__ = ("buffer", "transport")

    def connection_made(self, transport):
        self.transport = transport
        self.buffer = b""

    def data_received(self, data):
        data = self.buffer + data
        while True:
            end = data.find(b"\r\n\r\n")
            total = end + 4 + length(data[:end]) if end >= 0 else len(data) + 1
            if len(data) < total:
                break
            self.transport.write(respond(data[end + 4 : total]))
            data = data[total:]
        self.buffer = data


async def main():
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    server = await loop.create_server(
        Connection, "127.0.0.1", int(sys.argv[2]), backlog=1024
    )
    await ended.wait()
    server.close()


asyncio.run(main())
