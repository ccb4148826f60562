"""Reads whole numbers in names of layers, heads, parts and spans."""

DIGITS = 18
"""More digits do not fit into 64 bits, and Python refuses to read thousands of them."""


def whole_number(text: str) -> int | None:
    """The number, if the text consists of the digits 0 to 9; None otherwise."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= DIGITS else None


def head_name(text: str) -> tuple[int, int] | None:
    """Layer and head of L3H5 (or l3h5), 3.5, '3 5' or 3:5; None for anything else."""
    written = text.strip()
    if written[:1] in ("L", "l"):
        before, mark, after = written[1:].upper().partition("H")
    else:
        mark = next((mark for mark in (".", ":", " ") if mark in written), "")
        before, _, after = written.partition(mark) if mark else (written, "", "")
    layer, head = whole_number(before), whole_number(after.strip())
    return None if not mark or layer is None or head is None else (layer, head)
