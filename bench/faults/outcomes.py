"""How a case ended, and how many ended how."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

SAME = "same"
"""The result is that of the undisturbed run, or what an independent reading justifies."""
REFUSED = "refused"
"""One sentence (ArmillaryError, exit code 2), and no result."""
SKIPPED = "skipped"
"""This machine cannot try it; `told` says why."""
DIFFERENT = "different"
"""A value differs from the undisturbed run."""
TRACEBACK = "traceback"
"""A raw exception, a crash, or an answer of the kind that only a mistake in the program gives."""
HANG = "hang"
"""No answer within the bound."""
WRONG = "wrong"
"""Accepted what should have been refused, or told something that should not be told."""
FAULTS = (DIFFERENT, TRACEBACK, HANG, WRONG)
"""What must not happen."""


@dataclass(frozen=True)
class Outcome:
    """How one case ended. `what` is the kind of fault that was tried, `told` what happened in words."""

    what: str
    verdict: str
    told: str = ""


@dataclass(frozen=True)
class Ended:
    """An outcome, with what repeats it and how long it took."""

    subject: str
    seed: int
    number: int
    outcome: Outcome
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        return {
            **asdict(self.outcome),
            "repeat": f"python bench/campaign.py --only {self.subject} --seed {self.seed} --case {self.number}",
        }


def counted(ended: Iterable[Ended]) -> dict[str, int]:
    """How many cases ended with each verdict."""
    verdicts = [one.outcome.verdict for one in ended]
    names = (SAME, REFUSED, SKIPPED, *FAULTS)
    return {"runs": len(verdicts) - verdicts.count(SKIPPED), **{name: verdicts.count(name) for name in names}}


def by_kind(ended: Iterable[Ended]) -> dict[str, dict[str, int]]:
    """The counts of each kind of fault, by name."""
    kinds: dict[str, list[Ended]] = {}
    for one in ended:
        kinds.setdefault(one.outcome.what, []).append(one)
    return {what: counted(kinds[what]) for what in sorted(kinds)}
