"""The interface for reporting progress; this class shows nothing, terminal/progress.py shows a bar."""

from collections.abc import Iterable, Iterator, Sized
from typing import TypeVar

T = TypeVar("T")


class Progress:
    """Shows nothing. Subclass it to show progress elsewhere, or to stop work by raising an exception."""

    def begin(self, what: str, total: int, unit: str, *, done: int = 0, pieces: int = 0, saved: int = 0) -> None:
        """Work of `total` units begins, of which `done` were finished before.

        For work that is saved in pieces (a scan: shards), `pieces` is their number and `saved` how many are on disk.
        """

    def advance(self, count: int = 1, worker: object = None) -> None:
        """`count` more units are done, by `worker` if there are several; negative if units were lost."""

    def status(self, words: str) -> None:
        """A text to show beside the count, such as a loss."""

    def piece_saved(self) -> None:
        """A piece is on disk."""

    def piece_merged(self, index: int) -> None:
        """Piece `index` is merged with those before it."""

    def note(self, sentence: str) -> None:
        """Shows a sentence to the user."""

    def each(self, items: Iterable[T], unit: str) -> Iterator[T]:
        """Yields the items; each is counted when the next is requested."""
        sized = items if isinstance(items, Sized) else list(items)
        self.begin(unit, len(sized), unit)
        for item in sized:
            yield item
            self.advance()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *exception: object) -> None:
        """The work has ended, with an exception or without."""
