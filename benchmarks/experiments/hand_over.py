"""How a call gets from the reading thread to a worker and its reply to the pipe.

us a call on 3.11: simple_queue 12 (taken, where turns.py does not do), condition 19,
thread_each 141.
"""

import os
import queue
import threading

from . import compare

READ, WRITE = os.pipe()


def answer() -> None:
    os.write(WRITE, b"x" * 200)


def simple_queue(n: int) -> None:
    """What the runtime does: the worker writes the reply itself."""
    calls: queue.SimpleQueue = queue.SimpleQueue()

    def work() -> None:
        while calls.get():
            answer()

    threading.Thread(target=work, daemon=True).start()
    for _ in range(n):
        calls.put(True)
        os.read(READ, 65536)
    calls.put(None)


def condition(n: int) -> None:
    changed, waiting = threading.Condition(), []

    def work() -> None:
        while True:
            with changed:
                while not waiting:
                    changed.wait()
                waiting.pop()
            answer()

    threading.Thread(target=work, daemon=True).start()
    for call in [True] * n:
        with changed:
            waiting.append(call)
            changed.notify()
        os.read(READ, 65536)


def thread_each(n: int) -> None:
    for _ in range(n):
        threading.Thread(target=answer, daemon=True).start()
        os.read(READ, 65536)


compare({f.__name__: f for f in (simple_queue, condition, thread_each)})
