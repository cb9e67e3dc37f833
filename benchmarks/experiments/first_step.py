"""How to run an async handler that does not wait, on a loop that runs already.

A handler's first step driven inline with send(None) needs no task, but then
asyncio.current_task() is None in it, and asyncio.timeout(), TaskGroup and anyio refuse
to work: a handler that opens with `async with asyncio.timeout(5)` would break.
"""

import asyncio
import sys

from . import compare


async def handler() -> str:
    return "hello"


def on_loop(step):
    """n operations, each begun in its own turn of the loop as a message would be."""

    def variant(n: int) -> None:
        async def main() -> None:
            loop = asyncio.get_running_loop()
            ended = loop.create_future()
            left = n

            def turn() -> None:
                nonlocal left
                left -= 1
                step(loop)
                if left:
                    loop.call_soon(turn)
                else:
                    loop.call_soon(ended.set_result, None)

            loop.call_soon(turn)
            await ended

        asyncio.run(main())

    return variant


def inline(loop) -> None:
    try:
        handler().send(None)
    except StopIteration:
        pass


VARIANTS = {
    "nothing (the turn alone)": on_loop(lambda loop: None),
    "first step by send(None)": on_loop(inline),
    "create_task": on_loop(lambda loop: loop.create_task(handler())),
}
if sys.version_info >= (3, 12):
    VARIANTS["Task(eager_start=True)"] = on_loop(
        lambda loop: asyncio.Task(handler(), loop=loop, eager_start=True)
    )
compare(VARIANTS)
