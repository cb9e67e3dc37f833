# SPDX-License-Identifier: MIT
"""tinymcp: a Model Context Protocol server for small machines.

The runtime is tinymcp/tinymcp.py, one file that also works alone. This package only
gives its names a home: `from tinymcp import Server`.
"""

from . import tinymcp as _runtime
from .tinymcp import *  # noqa: F403  (the names are the runtime's own __all__)

__all__ = list(_runtime.__all__)
__version__ = _runtime.__version__
