"""HTTP on asyncio streams, and what a bare Protocol would gain: not taken.

Streams keep a request in one coroutine that reads top-down (parse, gate, dispatch,
wait, drain). What a Protocol saved was the turn of the loop between input and that
coroutine, which `_Bell` saves too (3.11, modern echo, one connection):
                                     k instructions   p50 us   kB a connection
L3  readuntil, readexactly, drain               171       138             5.7
L3 with read() and small buffers                         120
L4  bare Protocol, asyncio's buffers            136       117              1.6
tinymcp, inline / async                   155 / 176    98 / 109           5.0
before `_Bell`                            192 / 256    1.12 and 1.5 x L3
tinymcp on a Protocol (prototype)         161 / 235    0.9 and 1.1 x L3
"""

import statistics
import time

from ..client import MODERN, posts
from ..process import Process, free_port
from ..targets import HERE, bare, own, references

SERVER = f"""
import asyncio, sys
sys.path.insert(0, {str(HERE / "references")!r})
from http11 import length, respond

async def serve(reader, writer):
    writer.transport.max_size = 65536
    while data := await reader.read(65536):
        end = data.find(b"\\r\\n\\r\\n") + 4
        writer.write(respond(data[end:]))

async def main():
    await (await asyncio.start_server(serve, "127.0.0.1", sys.argv[2])).serve_forever()

asyncio.run(main())
"""


def main() -> None:
    targets = [*references(), *own()]
    argv = {target.name: target.argv for target in targets if target.http}
    argv["L3 with read() and small buffers"] = [str(bare()), "-c", SERVER]
    found = {}
    for name, command in argv.items():
        process = Process([*command, "http", str(port := free_port()), "0"], port)
        found[name] = (process, process.connect(), [])
    for number in range(25):
        for process, connection, medians in found.values():
            times = []
            for request in posts("echo", 150, MODERN, process.port, b"", number * 150):
                start = time.perf_counter()
                connection.call(request)
                times.append(time.perf_counter() - start)
            medians.append(statistics.median(times) * 1e6)
    for name, (process, _, medians) in found.items():
        process.__exit__()
        print(f"{name:34} {statistics.median(medians):7.1f} us")


main()
