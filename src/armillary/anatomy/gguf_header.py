"""Checks the header of a GGUF file: every count, length and offset must be within the file.

The package gguf does not check them: a damaged count would make it loop up to 2^64 times.
"""

import mmap
import struct
from pathlib import Path

from armillary.anatomy.limits import LAYERS, LIFTED
from armillary.errors import ArmillaryError
from armillary.machine.limits import lifted

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of a scalar by the number of its type."""
STRING, ARRAY = 8, 9
WHOLE_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 10: "Q", 11: "q"}
DEEPEST = 4


class _Header:
    """A reader with a position that never passes the end of the file."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at, self.order = data, 0, "<"

    def skip(self, size: int) -> int:
        """Move past `size` bytes and return where they begin."""
        start = self.at
        if size > len(self.data) - start:
            raise ValueError(f"{size:,} bytes are announced at byte {start:,}, but the file ends before")
        self.at = start + size
        return start

    def number(self, kind: str) -> int:
        start = self.skip(struct.calcsize(f"={kind}"))
        return int(struct.unpack_from(self.order + kind, self.data, start)[0])

    def text(self) -> str:
        size = self.number("Q")
        start = self.skip(size)
        return self.data[start : start + size].decode("utf-8")

    def value(self, kind: int, depth: int = 0) -> None:
        """Move past a value of this type."""
        if kind in SIZES:
            self.skip(SIZES[kind])
        elif kind == STRING:
            self.skip(self.number("Q"))
        elif kind == ARRAY and depth < DEEPEST:
            inner, count = self.number("I"), self.number("Q")
            if inner in SIZES:
                self.skip(SIZES[inner] * count)
                return
            self.room_for(count, 8)
            for _ in range(count):
                self.value(inner, depth + 1)
        else:
            raise ValueError(f"a value has the unknown type {kind}")

    def room_for(self, count: int, least: int) -> None:
        """Raise if `count` entries of at least `least` bytes do not fit in the rest of the file."""
        if count * least > len(self.data) - self.at:
            raise ValueError(f"{count:,} entries are announced at byte {self.at:,}, but the file ends before")


def check_gguf(file: Path) -> None:
    """Raise if the file is not a GGUF file, is truncated, or has absurdly many layers."""
    try:
        with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
            _walk(_Header(data))
    except (ValueError, OSError, struct.error) as error:
        raise ArmillaryError(
            f"{file} is truncated or not a GGUF file ({error})", advice="download or write it again"
        ) from error


def gguf_text(file: Path, key: str) -> str:
    """The header's string under this key, or ''; reads no further than that."""
    try:
        with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
            header = _Header(data)
            _, fields = _begin(header)
            for _ in range(fields):
                name, kind = header.text(), header.number("I")
                if name == key and kind == STRING:
                    return header.text()
                header.value(kind)
    except (ValueError, OSError, struct.error):
        return ""
    return ""


def _begin(header: _Header) -> tuple[int, int]:
    """The numbers of tensors and of fields."""
    if header.data[:4] != b"GGUF":
        raise ValueError("it does not begin with GGUF")
    header.skip(4)
    version = header.number("I")
    if version & 0xFFFF == 0:
        header.order, version = ">", struct.unpack(">I", struct.pack("<I", version))[0]
    if version not in (2, 3):
        raise ValueError(f"version {version} is unknown")
    tensors, fields = header.number("Q"), header.number("Q")
    header.room_for(fields, 12)
    return tensors, fields


def _walk(header: _Header) -> None:
    tensors, fields = _begin(header)
    alignment, architecture = 32, ""
    for _ in range(fields):
        key, kind = header.text(), header.number("I")
        start = header.at
        header.value(kind)
        if kind in WHOLE_NUMBERS:
            number = int(struct.unpack_from(header.order + WHOLE_NUMBERS[kind], header.data, start)[0])
            alignment = number if key == "general.alignment" else alignment
            if key.endswith("block_count") and number > LAYERS and not lifted():
                raise ValueError(f"{key} is {number:,}, more than {LAYERS:,} ({LIFTED} lifts the limit)")
        elif key == "general.architecture" and kind == STRING:
            size = struct.unpack_from(header.order + "Q", header.data, start)[0]
            architecture = header.data[start + 8 : start + 8 + size].decode("utf-8")
    if not architecture:
        raise ValueError("general.architecture, which names the family, is missing")
    if alignment < 1 or alignment & (alignment - 1):
        raise ValueError(f"the alignment {alignment} is not a power of two")
    _walk_tensors(header, tensors, alignment)


def _walk_tensors(header: _Header, count: int, alignment: int) -> None:
    header.room_for(count, 24)
    starts: list[tuple[int, str]] = []
    for _ in range(count):
        name, axes = header.text(), header.number("I")
        if axes > 4:
            raise ValueError(f"the tensor {name!r} has {axes} axes")
        elements = 1
        for _ in range(axes):
            elements *= header.number("Q")
        header.number("I")
        starts.append((header.number("Q"), name))
        if elements > 64 * len(header.data):  # at least 1/8 bit per element, less than any format
            raise ValueError(f"the tensor {name!r} has {elements:,} numbers, more than fit in the file")
    data = header.at + (-header.at) % alignment
    for start, name in starts:
        if data + start > len(header.data):
            raise ValueError(f"the tensor {name!r} begins after the end of the file")
