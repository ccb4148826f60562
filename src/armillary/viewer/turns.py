"""A fair queue: jobs wait in a lane per tab, and lanes take turns. No threads and no clock."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar

Job = TypeVar("Job")


@dataclass(frozen=True)
class Asker:
    """The tab of a request, and the kind of request; clients without a name have tab ''."""

    tab: str
    kind: str

    def supersedes(self, other: "Asker") -> bool:
        """Whether this request makes the other obsolete: the same kind from the same named tab."""
        return bool(self.tab) and self == other


class Turns(Generic[Job]):
    """At most `most` jobs, in lanes that take turns: a tab with many jobs delays only itself.

    When the queue is full, the longest lane loses its latest job, so that a busy tab cannot block others.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._lanes: OrderedDict[str, list[tuple[Asker, Job]]] = OrderedDict()
        """Tabs in the order of their turns; a lane is never empty."""

    def __len__(self) -> int:
        return sum(map(len, self._lanes.values()))

    def put(self, asker: Asker, job: Job) -> tuple[list[Job], list[Job]]:
        """Add a job in place of what it supersedes; returns superseded jobs, and those without room (perhaps this)."""
        lane = self._lanes.setdefault(asker.tab, [])
        for i, (other, old) in enumerate(lane):
            if asker.supersedes(other):
                lane[i] = (asker, job)
                return [old], []
        lane.append((asker, job))
        if len(self) <= self.most:
            return [], []
        longest = max(self._lanes.values(), key=lambda other: (len(other), other is lane))
        without_room = longest[-1][1]
        self.remove(without_room)
        return [], [without_room]

    def take(self) -> Job:
        """The first job of the tab whose turn it is; the tab then goes to the end of the queue."""
        tab, lane = next(iter(self._lanes.items()))
        _, job = lane.pop(0)
        if lane:
            self._lanes.move_to_end(tab)
        else:
            del self._lanes[tab]
        return job

    def remove(self, job: Job) -> bool:
        """Remove a job; False if it is not waiting."""
        for tab, lane in self._lanes.items():
            rest = [(asker, other) for asker, other in lane if other is not job]
            if len(rest) < len(lane):
                if rest:
                    self._lanes[tab] = rest
                else:
                    del self._lanes[tab]
                return True
        return False
