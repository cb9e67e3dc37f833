"""The tests: python3 -m unittest, from the folder above, with nothing installed."""

import signal

# A shell starts background jobs with SIGINT ignored, and children inherit that; the
# tests that send one would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
