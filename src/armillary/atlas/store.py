"""A read-only Zarr store that checks every file against the atlas's manifest before it is used."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

from zarr.abc.store import (
    ByteRequest,
    OffsetByteRequest,
    RangeByteRequest,
    Store,
    SuffixByteRequest,
)
from zarr.core.buffer import Buffer, BufferPrototype, default_buffer_prototype

from armillary.atlas.manifest import Manifest
from armillary.errors import ArmillaryError


class CheckedStore(Store):
    """The files of a Manifest, read-only. A missing chunk is an error; Zarr alone would return fill values."""

    supports_writes = False
    supports_deletes = False
    supports_partial_writes = False
    supports_listing = True

    def __init__(self, manifest: Manifest) -> None:
        super().__init__(read_only=True)
        self.manifest = manifest

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CheckedStore) and self.manifest == other.manifest

    def __str__(self) -> str:
        return f"file://{self.manifest.store.as_posix()}"

    def with_read_only(self, read_only: bool = False) -> "CheckedStore":
        return self

    async def get(
        self, key: str, prototype: BufferPrototype | None = None, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        asyncio.get_running_loop().set_exception_handler(_first_error_only)
        data = await asyncio.to_thread(self.manifest.read, key)
        buffer = (prototype or default_buffer_prototype()).buffer
        return None if data is None else buffer.from_bytes(_requested_part(data, byte_range))

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        return [await self.get(key, prototype, byte_range) for key, byte_range in key_ranges]

    async def exists(self, key: str) -> bool:
        return key in self.manifest.files

    async def getsize(self, key: str) -> int:
        return self.manifest.files[key][0]

    async def list(self) -> AsyncIterator[str]:
        for name in self.manifest.files:
            yield name

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        for name in self.manifest.files:
            if name.startswith(prefix):
                yield name

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        start = f"{prefix.rstrip('/')}/" if prefix.rstrip("/") else ""
        inside = (name.removeprefix(start) for name in self.manifest.files if name.startswith(start))
        for name in dict.fromkeys(rest.partition("/")[0] for rest in inside):
            yield name

    async def set(self, key: str, value: Buffer) -> None:
        self._check_writable()

    async def delete(self, key: str) -> None:
        self._check_writable()

    async def set_partial_values(self, key_start_values: Any) -> None:
        self._check_writable()


def _first_error_only(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Zarr reads files concurrently and raises the first error; asyncio would print the others as tracebacks."""
    if not isinstance(context.get("exception"), ArmillaryError):
        loop.default_exception_handler(context)


def _requested_part(data: bytes, request: ByteRequest | None) -> bytes:
    """The requested part of a file, all of which was checked."""
    if isinstance(request, RangeByteRequest):
        return data[request.start : request.end]
    if isinstance(request, OffsetByteRequest):
        return data[request.offset :]
    return data[-request.suffix :] if isinstance(request, SuffixByteRequest) else data
