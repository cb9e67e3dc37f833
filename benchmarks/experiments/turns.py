"""Who runs a call over stdio: the thread that has read it, while another may read.

us a call on 3.11, busy processors: inline 8, on_offer 10 (taken), next_reader 13 to 19,
hand_over 23 to 27.
"""

import os
import queue
import select
import threading

from . import compare, over_pipes

CALLS: queue.SimpleQueue = queue.SimpleQueue()


def inline(read, write) -> None:
    while data := os.read(read, 100):
        os.write(write, data)


def hand_over(read, write) -> None:
    """A worker waits for the call and is woken for it."""
    threading.Thread(target=serve, args=(CALLS.get, write), daemon=True).start()
    while data := os.read(read, 100):
        CALLS.put(data)


def serve(get, write) -> None:
    while data := get():
        os.write(write, data)


def next_reader(read, write) -> None:
    """The thread that has read wakes another one to read on, and runs the call."""

    def get() -> bytes:
        CALLS.get()
        data = os.read(read, 100)
        CALLS.put(True)
        return data

    CALLS.put(True)
    threading.Thread(target=serve, args=(get, write), daemon=True).start()
    serve(get, write)


def on_offer(read, write) -> None:
    """epoll wakes another one, if input comes before the call is through."""
    epoll, once = select.epoll(), select.EPOLLONESHOT
    epoll.register(read, once)
    threading.Thread(target=epoll.poll, daemon=True).start()
    while data := os.read(read, 100):
        epoll.modify(read, select.EPOLLIN | once)
        epoll.modify(read, once)
        os.write(write, data)


compare({f.__name__: over_pipes(f) for f in (inline, on_offer, next_reader, hand_over)})
