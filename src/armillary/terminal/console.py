"""The Rich console that tables and messages are printed to; imports nothing slow."""

import os
import sys

from rich.console import Console


def console() -> Console:
    """Standard output; 160 columns wide if it is a file or a pipe, so that tables are not folded."""
    wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 160
    return Console(highlight=False, width=wide)
