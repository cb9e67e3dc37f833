"""What it costs never to block on writing: one poll before each os.write.

us, k instructions a message, 3.11: blocking 1.8, 3.9; lock_and_poll 5.3, 6.0 (taken);
lock_and_select 6.5, 7.3; lock_and_reopened 2.6, 4.6.
"""

import os
import select
import threading

from . import compare

READ, WRITE = os.pipe()
LOCK = threading.Lock()
POLL = select.poll()
POLL.register(WRITE, select.POLLOUT)
DATA = b"x" * 200
try:  # a second file description of the same pipe may be non-blocking by itself
    OWN = os.open(f"/proc/self/fd/{WRITE}", os.O_WRONLY | os.O_NONBLOCK)
except OSError:
    OWN = WRITE


def blocking(n: int) -> None:
    for _ in range(n):
        os.write(WRITE, DATA)
        os.read(READ, 65536)


def lock_and_poll(n: int) -> None:
    """What the runtime does."""
    for _ in range(n):
        with LOCK:
            if POLL.poll(0):
                os.write(WRITE, DATA)
        os.read(READ, 65536)


def lock_and_select(n: int) -> None:
    for _ in range(n):
        with LOCK:
            if select.select((), (WRITE,), (), 0)[1]:
                os.write(WRITE, DATA)
        os.read(READ, 65536)


def lock_and_reopened(n: int) -> None:
    """Works for pipes on Linux only (ENXIO for sockets, no /proc elsewhere)."""
    for _ in range(n):
        with LOCK:
            os.write(OWN, DATA)
        os.read(READ, 65536)


VARIANTS = (blocking, lock_and_poll, lock_and_select, lock_and_reopened)
compare({f.__name__: f for f in VARIANTS})
