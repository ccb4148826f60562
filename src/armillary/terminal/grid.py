"""Fit a table to the terminal: break headers between words, fold long texts, or leave out the last columns.

Rich folds every cell, numbers too, and takes a second for a thousand rows; it is used only for tables with long texts.
"""

import os
import sys
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table

PROSE = 24
"""Texts longer than this many characters may be folded."""


@dataclass(frozen=True)
class Column:
    """A name and a text per row; numbers are aligned to the right."""

    name: str
    cells: list[str]
    number: bool

    @property
    def width(self) -> int:
        return max((width_of(text) for text in set(self.cells)), default=0)

    def aligned(self, texts: list[str], width: int) -> list[str]:
        spaces = (" " * (width - width_of(text)) for text in texts)
        return [space + text if self.number else text + space for text, space in zip(texts, spaces, strict=True)]


def width_of(text: str) -> int:
    """The width of a text in cells of the terminal."""
    return len(text) if text.isascii() else cell_len(text)


def print_columns(out: Console, columns: list[Column], title: str = "") -> None:
    """Print all columns if they fit; else fold long texts; else print as many columns as fit and name the others."""
    width = out.width if out.is_terminal or "COLUMNS" in os.environ else sys.maxsize  # a file has room for all
    lines, left_out = fitted(columns, out.width), 0
    if lines is None and any(column.width > PROSE for column in columns):
        out.print(folded(columns, title))
        return
    lines = lines or fitted(columns, width)
    while lines is None and left_out < len(columns):
        left_out += 1
        lines = fitted(columns[:-left_out], out.width)
    if title:
        out.print(escape(title), style="italic", soft_wrap=True)
    for part, style in zip(lines or (), ("dim", None), strict=False):
        if part:
            out.out("\n".join(part), style=style, highlight=False)
    if left_out:
        names = ", ".join(column.name for column in columns[-left_out:])
        out.print(f"[dim]no room for {escape(names)}: use a wider terminal, or --json[/dim]", soft_wrap=True)


def fitted(columns: list[Column], width: int) -> tuple[list[str], list[str]] | None:
    """Lines of the header and of the body, or None if they would be too long even with headers broken into words."""
    contents = [column.width for column in columns]
    for broken in (False, True):
        headers = [column.name.split() if broken else [column.name] for column in columns]
        words = [max(map(width_of, header), default=0) for header in headers]
        widths = [max(pair) for pair in zip(contents, words, strict=True)]
        if sum(widths) + 2 * (len(widths) - 1) <= width:
            break
    else:
        return None
    headers = [packed(header, room) for header, room in zip(headers, widths, strict=True)]
    height = max(map(len, headers), default=0)
    above = [[""] * (height - len(header)) + header for header in headers]

    def lines(texts: list[list[str]]) -> list[str]:
        aligned = [column.aligned(cells, room) for column, cells, room in zip(columns, texts, widths, strict=True)]
        return ["  ".join(row).rstrip() for row in zip(*aligned, strict=True)]

    return lines(above), lines([column.cells for column in columns])


def packed(words: list[str], width: int) -> list[str]:
    """The words in lines of at most this width."""
    lines = words[:1]
    for word in words[1:]:
        if width_of(lines[-1]) + 1 + width_of(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def folded(columns: list[Column], title: str) -> Table:
    """The table with texts folded and numbers in one piece."""
    grid = Table(box=None, pad_edge=False, header_style="dim", title=title or None, title_justify="left")
    for column in columns:
        justify = "right" if column.number else "left"
        grid.add_column(column.name, justify=justify, min_width=min(column.width, PROSE))  # type: ignore[arg-type]
    for row in zip(*(column.cells for column in columns), strict=True):
        grid.add_row(*map(escape, row))
    return grid
