"""A statement of a paper with its check, and how the verdict follows from the evidence.

A check returns evidence of three kinds, never a verdict; `verdict_of` derives that:

Number: a measured value beside the values of the printed form and, where it differs, the corrected form.
Fact:   something true or false (an inequality over all draws, a counter-example) about the printed or corrected form.
Trend:  the error of the printed form from a coarse regime to a fine one: it vanishes or not.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Literal

import numpy as np

Verdict = Literal["holds", "approximately", "differs", "not tested", "unresolved"]
Paper = Literal["Song", "Wertich", "Bao", "Barbero"]

AGREES, DIFFERS = 5.0, 8.0
"""Values agree within AGREES standard errors (plus the tolerance) and differ beyond DIFFERS; else unresolved."""


@dataclass(frozen=True)
class Number:
    """measured +- error (0 if nothing is random), and the values of the formulas; `tolerance` is absolute.

    printed None: evidence about the corrected form alone; corrected None: the printed form needs no correction.
    """

    what: str
    measured: float
    printed: float | None = None
    corrected: float | None = None
    error: float = 0.0
    tolerance: float = 1e-9

    def agrees(self, value: float) -> bool:
        """Whether the value equals the measured one within its error."""
        same = abs(self.measured - value) <= AGREES * self.error + self.tolerance
        return bool(_both_infinite(self.measured, value) or same)

    def differs(self, value: float) -> bool:
        """Whether the value clearly differs from the measured one."""
        if _both_infinite(self.measured, value):
            return False
        return not bool(abs(self.measured - value) <= DIFFERS * self.error + self.tolerance)


@dataclass(frozen=True)
class Fact:
    """Something true or false about the printed or the corrected form; `detail` gives the numbers."""

    what: str
    so: bool
    form: Literal["printed", "corrected"] = "printed"
    detail: str = ""


@dataclass(frozen=True)
class Trend:
    """Errors of the printed form over regimes, the last the finest; the error fades if the last is <= `bound`.

    exact: the form holds everywhere if no error is above this.
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
"""Returns its evidence, given a random generator seeded by the entry's id and the run's seed."""


@dataclass(frozen=True)
class Entry:
    """One statement, in words; `printed` and `corrected` are TeX.

    `check` is None for statements about trained weights, which `command` measures. `remark`: what else to know.
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
    """The evidence of a check, and the verdict that follows."""

    id: str
    verdict: Verdict
    evidence: tuple[Evidence, ...]
    seconds: float
    seed: int


def verdict_of(evidence: Sequence[Evidence]) -> Verdict:
    """The verdict that this evidence supports.

    holds: all evidence agrees with the printed form. differs: some clearly does not, and the corrected form agrees with
    all. approximately: the printed form has an error that fades in a Trend. unresolved: anything else (the corrected
    form fails, a difference is not clear, there is no evidence).
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
    printed_fails = any(n.printed is not None and n.differs(n.printed) for n in printed) or any(
        not fact.so for fact in facts if fact.form == "printed"
    )
    unclear = any(n.printed is not None and not n.agrees(n.printed) and not n.differs(n.printed) for n in printed)
    if printed_fails or any(not trend.fades for trend in trends):
        return "differs"
    if unclear:
        return "unresolved"
    if any(not trend.holds_everywhere for trend in trends):
        return "approximately"
    return "holds"


def mean_and_error(samples: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> tuple[float, float]:
    """The mean of independent samples and its standard error."""
    return float(samples.mean()), float(samples.std(ddof=1) / np.sqrt(len(samples)))


def variance_and_error(samples: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> tuple[float, float]:
    """The variance of independent samples and its standard error, from the fourth moment."""
    centered = samples - samples.mean()
    variance = float(np.mean(centered**2))
    return variance, float(np.sqrt(max(np.mean(centered**4) - variance**2, 0.0) / len(samples)))


def _both_infinite(a: float, b: float) -> bool:
    return not isfinite(a) and not isfinite(b) and str(a) == str(b)
