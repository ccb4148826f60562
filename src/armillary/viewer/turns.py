"""Whose turn it is: jobs wait in a lane per tab, and lanes take turns. Rules alone, no threads and no clock."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar

Job = TypeVar("Job")


@dataclass(frozen=True)
class Asker:
    """The tab that asks, and the kind of its question; a client that gives no name asks with tab ''."""

    tab: str
    kind: str

    def supersedes(self, other: "Asker") -> bool:
        """Whether who asks this needs no answer to the other any more; of clients without a name we cannot say."""
        return bool(self.tab) and self == other


class Turns(Generic[Job]):
    """At most `most` jobs, in lanes that take turns: a tab with many waits for itself alone.

    When there is no more room, the longest lane loses its latest job, so that a noisy tab cannot keep others out.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._lanes: OrderedDict[str, list[tuple[Asker, Job]]] = OrderedDict()
        """Tabs in the order of their turns; a lane is never empty."""

    def __len__(self) -> int:
        return sum(map(len, self._lanes.values()))

    def put(self, asker: Asker, job: Job) -> tuple[list[Job], list[Job]]:
        """Let a job wait, in the place of what it supersedes; those superseded, and those without room (perhaps it)."""
        lane = self._lanes.setdefault(asker.tab, [])
        for i, (other, old) in enumerate(lane):
            if asker.supersedes(other):
                lane[i] = (asker, job)
                return [old], []
        lane.append((asker, job))
        if len(self) <= self.most:
            return [], []
        longest = max(self._lanes.values(), key=lambda one: (len(one), one is lane))
        without_room = longest[-1][1]
        self.remove(without_room)
        return [], [without_room]

    def take(self) -> Job:
        """The first job of the tab whose turn it is; the tab's next turn comes after everybody else's."""
        tab, lane = next(iter(self._lanes.items()))
        _, job = lane.pop(0)
        if lane:
            self._lanes.move_to_end(tab)
        else:
            del self._lanes[tab]
        return job

    def remove(self, job: Job) -> bool:
        """Take out a job; False if it does not wait here."""
        for tab, lane in self._lanes.items():
            kept = [(asker, other) for asker, other in lane if other is not job]
            if len(kept) < len(lane):
                if kept:
                    self._lanes[tab] = kept
                else:
                    del self._lanes[tab]
                return True
        return False
