"""L2r: stdio on asyncio by loop.add_reader, os.read of chunks and os.write."""

import asyncio
import os

from answers import answer


async def main():
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    buffer = b""

    def readable():
        nonlocal buffer
        chunk = os.read(0, 65536)
        if not chunk:
            loop.remove_reader(0)
            done.set_result(None)
            return
        *lines, buffer = (buffer + chunk).split(b"\n")
        for line in lines:
            reply = answer(line)
            if reply is not None:
                os.write(1, reply + b"\n")

    loop.add_reader(0, readable)
    await done


asyncio.run(main())
