"""The tests: python3 -m unittest, from the folder above, with nothing installed."""

import atexit
import os
import signal
import sys
import tempfile
import threading

# A shell starts background jobs with SIGINT ignored, and children inherit that; the
# tests that send one would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The workers of some hundred servers stay, and 8 MiB of stack for each of them are more
# than 32 bits address.
if sys.maxsize < 1 << 32:
    threading.stack_size(1 << 20)

# Where Python may write no .pyc files, each of some hundred child processes would
# compile the runtime for itself: they get a place of their own for them.
if sys.dont_write_bytecode:
    _compiled = tempfile.TemporaryDirectory()
    atexit.register(_compiled.cleanup)
    os.environ["PYTHONPYCACHEPREFIX"] = _compiled.name
    os.environ["PYTHONDONTWRITEBYTECODE"] = ""


def load_tests(loader, tests, pattern):
    """python3 -m unittest: all of them, in two processes if there are processors."""
    from . import beside

    here = os.path.dirname(os.path.abspath(__file__))
    tests.addTests(loader.discover(here, pattern or "test*.py", os.path.dirname(here)))
    return beside.split(tests)
