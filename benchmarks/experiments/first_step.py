"""How to run an async handler that does not wait: as a task that begins at once.

A first step by send(None) needs no task, but asyncio.current_task() is None in it, so
asyncio.timeout(), TaskGroup and anyio refuse to work. k instructions: send(None) 20,
create_task 37, the runtime 36 and no turn of the loop more (3.11); 26 for 40 (3.12).
"""

import asyncio
import functools

from tinymcp.tinymcp import _eager

from . import compare


async def handler() -> str:
    return "hello"


def on_loop(step):
    """n operations, each begun in its own turn of the loop as a message would be."""

    def variant(n: int) -> None:
        async def main() -> None:
            loop, left = asyncio.get_running_loop(), n
            ended = loop.create_future()

            def turn() -> None:
                nonlocal left
                step(loop)
                left -= 1
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


eager = functools.lru_cache(_eager)
VARIANTS = {
    "nothing (the turn alone)": on_loop(lambda loop: None),
    "first step by send(None)": on_loop(inline),
    "create_task": on_loop(lambda loop: loop.create_task(handler())),
    "what the runtime does": on_loop(lambda loop: eager(loop)(handler())),
}
compare(VARIANTS)
