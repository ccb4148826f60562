"""Reads whole numbers in names of layers, heads, parts and spans."""

DIGITS = 18
"""More digits do not fit into 64 bits, and Python refuses to read thousands of them."""


def whole_number(text: str) -> int | None:
    """The number, if the text consists of the digits 0 to 9; None otherwise."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= DIGITS else None
