"""The first step of an async handler that does not wait: what it costs to begin it.

k instructions of a call above a turn (3.11 / 3.12), and what speaks against it:
send(None) in no task           18 / 22  current_task() is None: no timeout()
create_task                     37 / 41  a turn of the loop besides
a task that begins at once      34 / 28  the runtime's
A task that is kept for the first steps of all calls (the current one meanwhile) took
5 k less on 3.11 and 2 k more on 3.12, for 110 lines. To replace loop.call_soon while
Task() calls it makes every call_soon of asyncio's loop slower: only for uvloop.
"""

import asyncio

from tinymcp import Server
from tinymcp import tinymcp as rt

from . import compare


async def handler() -> str:
    return "hello"


def on_loop(step):
    """n operations, each begun in its own turn of the loop as a message would be."""

    def variant(n: int) -> None:
        async def main() -> None:
            loop, left = asyncio.get_running_loop(), n
            server, ended = Server("t", "0"), loop.create_future()
            server.add_tool(handler)
            message = {"id": 1, "method": "tools/call", "params": {}}
            call = rt._Call(server, rt._Peer(server), message, 0)
            call.handler = server._registry.tool.items["handler"]
            make = rt._eager(loop)

            def turn() -> None:
                nonlocal left
                step(loop, make, call)
                left -= 1
                loop.call_soon(turn if left else lambda: ended.set_result(None))

            loop.call_soon(turn)
            await ended

        asyncio.run(main())

    return variant


VARIANTS = {
    "nothing (the turn alone)": lambda loop, make, call: None,
    "send(None) in no task": lambda loop, make, call: next(
        rt._acall(call).__await__(), 0
    ),
    "create_task": lambda loop, make, call: loop.create_task(rt._acall(call)),
    "a task that begins at once": lambda loop, make, call: make(rt._acall(call)),
}
compare({name: on_loop(step) for name, step in VARIANTS.items()})
