"""The terminal as tables and messages are written to it; imports nothing that computes."""

import os
import sys

from rich.console import Console


def console() -> Console:
    """Standard output; wide where it is not a terminal, so that tables are not folded for a file or a pipe."""
    wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 160
    return Console(highlight=False, width=wide)
