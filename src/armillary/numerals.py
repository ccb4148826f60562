"""Whole numbers as people write them in names of layers, heads, parts and spans."""

DIGITS = 18
"""More do not fit into 64 bits, and Python itself refuses to read thousands of them."""


def whole_number(text: str) -> int | None:
    """The number that a text of the digits 0 to 9 stands for, or None if it is anything else."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= DIGITS else None
