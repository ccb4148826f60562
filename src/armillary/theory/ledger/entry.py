"""A statement of a paper with a check, and how a verdict follows from what the check measures.

A check computes; it never says what the verdict is. It gives back evidence of three kinds, and `verdict_of` reads it:

Number: a measured value beside what the printed form and, where it differs, the corrected form give.
Fact:   something that is so or not (an inequality over all draws, a counter-example), of the printed or corrected form.
Trend:  how far the printed form is off, from a rough regime to a fine one: it fades, or it stays.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Literal

import numpy as np

Verdict = Literal["holds", "approximately", "differs", "not tested", "unresolved"]
Paper = Literal["Song", "Wertich", "Bao", "Barbero"]

AGREES, DIFFERS = 5.0, 8.0
"""Within so many standard errors (plus the tolerance) two values agree, beyond so many they differ; else unresolved."""


@dataclass(frozen=True)
class Number:
    """measured +- error (0 where nothing is random), and what the formulas give; `tolerance` is absolute.

    printed None: this number is about the corrected form alone; corrected None: the printed form is not corrected.
    """

    what: str
    measured: float
    printed: float | None = None
    corrected: float | None = None
    error: float = 0.0
    tolerance: float = 1e-9

    def agrees(self, value: float) -> bool:
        """Whether the value is the measured one, to within its error."""
        same = abs(self.measured - value) <= AGREES * self.error + self.tolerance
        return bool(_both_infinite(self.measured, value) or same)

    def differs(self, value: float) -> bool:
        """Whether it is decisively another."""
        if _both_infinite(self.measured, value):
            return False
        return not bool(abs(self.measured - value) <= DIFFERS * self.error + self.tolerance)


@dataclass(frozen=True)
class Fact:
    """Whether something is so, and of which form it speaks; `detail` gives the numbers."""

    what: str
    so: bool
    form: Literal["printed", "corrected"] = "printed"
    detail: str = ""


@dataclass(frozen=True)
class Trend:
    """Errors of the printed form along a sequence of regimes, the last the finest; it fades if the last is <= `bound`.

    exact: the first error at or below which the form would simply hold everywhere.
    """

    what: str
    regimes: tuple[str, ...]
    errors: tuple[float, ...]
    bound: float
    exact: float = 1e-9

    @property
    def fades(self) -> bool:
        return self.errors[-1] <= self.bound

    @property
    def holds_everywhere(self) -> bool:
        return max(self.errors) <= self.exact


Evidence = Number | Fact | Trend
Check = Callable[[np.random.Generator], Sequence[Evidence]]
"""Given a random generator (seeded by the entry's id and the run's seed), what it found."""


@dataclass(frozen=True)
class Entry:
    """One statement. `printed` and `corrected` are TeX; `statement` says it in words; `command` measures what needs
    trained weights, where `check` is None. `remark` says what a reader should know, among it where LEDGER.md disagrees.
    """

    id: str
    paper: Paper
    place: str
    statement: str
    printed: str
    check: Check | None
    corrected: str = ""
    remark: str = ""
    command: str = ""


@dataclass(frozen=True)
class Result:
    """What a check found, and the verdict that follows."""

    id: str
    verdict: Verdict
    evidence: tuple[Evidence, ...]
    seconds: float
    seed: int


def verdict_of(evidence: Sequence[Evidence]) -> Verdict:
    """holds: everything agrees with the printed form. differs: something decisively does not, while all that is said of
    the corrected form agrees. approximately: the printed form is off, but a Trend says that this fades. Anything
    else (a corrected form that fails, a difference that is not decisive, no evidence) is unresolved.
    """
    numbers = [item for item in evidence if isinstance(item, Number)]
    facts = [item for item in evidence if isinstance(item, Fact)]
    trends = [item for item in evidence if isinstance(item, Trend)]
    corrected_fails = any(n.corrected is not None and not n.agrees(n.corrected) for n in numbers) or any(
        not fact.so for fact in facts if fact.form == "corrected"
    )
    if corrected_fails or not evidence:
        return "unresolved"
    printed = [n for n in numbers if n.printed is not None]
    denied = any(n.printed is not None and n.differs(n.printed) for n in printed) or any(
        not fact.so for fact in facts if fact.form == "printed"
    )
    doubtful = any(n.printed is not None and not n.agrees(n.printed) and not n.differs(n.printed) for n in printed)
    if denied or any(not trend.fades for trend in trends):
        return "differs"
    if doubtful:
        return "unresolved"
    if any(not trend.holds_everywhere for trend in trends):
        return "approximately"
    return "holds"


def mean_and_error(samples: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> tuple[float, float]:
    """The mean of independent samples and its standard error."""
    return float(samples.mean()), float(samples.std(ddof=1) / np.sqrt(len(samples)))


def variance_and_error(samples: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> tuple[float, float]:
    """The variance of independent samples and its standard error, from the fourth moment."""
    centred = samples - samples.mean()
    variance = float(np.mean(centred**2))
    return variance, float(np.sqrt(max(np.mean(centred**4) - variance**2, 0.0) / len(samples)))


def _both_infinite(a: float, b: float) -> bool:
    return not isfinite(a) and not isfinite(b) and str(a) == str(b)
