"""How a forked child of a test ends."""

from __future__ import annotations

import os
import sys

# Not `os._exit`: coverage puts one in its place that first writes its data with SQLite. A child that was
# forked while another thread was inside SQLite would wait there for ever.
if sys.platform == "win32":
    end_child = os._exit
else:
    import posix

    end_child = posix._exit
