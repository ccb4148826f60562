"""What an experiment is: a question, a function that answers it, and what the paper printed beside what was found."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Literal

import pandas as pd
import plotly.graph_objects as go

from armillary.errors import ArmillaryError

Size = Literal["small", "paper"]
Verdict = Literal["same size", "same direction", "differs", "undecided"]
SAME_SIZE = 0.25
"""Two numbers have the same size if they differ by no more than this share of the larger, or by two standard errors."""


@dataclass(frozen=True)
class Settings:
    """How to run: `small` on two cores in minutes, `paper` with the paper's own settings.

    models and corpora replace the experiment's own where they are given. `work` holds what experiments share: trained
    models and atlases, by name; what is there is used again.
    """

    size: Size = "small"
    models: tuple[str, ...] = ()
    corpora: tuple[str, ...] = ()
    work: Path = Path("experiments/work")
    say: Callable[[str], None] = lambda sentence: None

    @property
    def small(self) -> bool:
        return self.size == "small"


@dataclass(frozen=True)
class Claim:
    """One statement of the paper: what it says, what it printed (with its place), what was found, and the verdict."""

    says: str
    printed: str
    found: str
    verdict: Verdict
    why: str = ""


@dataclass(frozen=True)
class Outcome:
    """Numbers, pictures, claims, and sentences on what was learned that the paper does not say."""

    tables: dict[str, pd.DataFrame]
    figures: dict[str, go.Figure]
    claims: list[Claim]
    learned: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Experiment:
    """A table or figure of a paper. `minutes` is what `small` takes on two cores; `quick` ones run in CI.

    needs: which models and texts the paper's own settings ask for.
    """

    name: str
    paper: Literal["Song", "Wertich", "Bao", "Barbero"]
    of: str
    question: str
    run: Callable[[Settings], Outcome]
    minutes: float
    needs: str
    quick: bool = False


def sized(
    says: str,
    printed: float,
    found: float,
    *,
    error: float = 0.0,
    place: str = "",
    why: str = "",
    digits: int = 3,
    signed: bool = False,
) -> Claim:
    """A claim about a number: same size, or differs; of one that could have either sign (`signed`) also same direction.

    `error` is found's standard error.
    """
    shown = f"{found:.{digits}g}" + (f" ± {error:.2g}" if error else "")
    if not isfinite(found) or not isfinite(printed):
        return Claim(says, _with_place(printed, digits, place), shown, "undecided", why)
    near = abs(found - printed) <= max(_room(printed, found), 2 * error)
    same = signed and (found > 0) == (printed > 0)
    verdict: Verdict = "same size" if near else "same direction" if same else "differs"
    return Claim(says, _with_place(printed, digits, place), shown, verdict, "" if near else why)


def _room(printed: float, found: float) -> float:
    """How far apart two numbers of the same size may be; near the top of 0 .. 1 it is what they lack that counts."""
    most = max(abs(printed), abs(found))
    return max(SAME_SIZE * (1 - most), 0.05) if 0.5 < most <= 1 else SAME_SIZE * most


def ordered(
    says: str, larger: float, smaller: float, *, error: float = 0.0, printed: str = "", why: str = "", digits: int = 3
) -> Claim:
    """A claim that one number is above another: holds beyond two standard errors of the difference, or differs.

    Between, it is undecided.
    """
    gap = larger - smaller
    verdict: Verdict = "same direction" if gap > 2 * error else "differs" if gap < -2 * error else "undecided"
    if error == 0 and gap == 0:
        verdict = "undecided"
    found = _pair(larger, smaller, digits) + (f" (difference {gap:+.2g} ± {error:.2g})" if error else "")
    return Claim(says, printed, found, verdict, "" if verdict == "same direction" else why)


def limited(
    says: str,
    found: float,
    limit: float,
    *,
    above: bool,
    error: float = 0.0,
    printed: str = "",
    why: str = "",
    digits: int = 3,
) -> Claim:
    """A claim that a number is above a limit, or below it: judged like `ordered`, told as the number and the limit."""
    pair = (found, limit) if above else (limit, found)
    claim = ordered(says, *pair, error=error, printed=printed, why=why)
    shown, bound = _told_apart(found, limit, digits)
    side = "above" if above else "below"
    return replace(claim, found=shown + (f" ± {error:.2g}" if error else "") + f" (the claim: {side} {bound})")


def _pair(larger: float, smaller: float, digits: int) -> str:
    return " against ".join(_told_apart(larger, smaller, digits))


def _told_apart(one: float, other: float, digits: int) -> tuple[str, str]:
    """Two numbers with as many digits as it takes to see that they differ; what is rounding beside the other is 0."""
    least = 1e-12 * max(abs(one), abs(other))
    texts = ("", "")
    for more in range(4):
        texts = (_shown(one, digits + more, least), _shown(other, digits + more, least))
        if texts[0] != texts[1]:
            break
    return texts if texts[0] != texts[1] else (_shown(one, digits, least), _shown(other, digits, least))


def _shown(value: float, digits: int, least: float) -> str:
    if abs(value) < least:
        return "0"
    text = f"{value:.{digits}g}"
    return f"{value:.0f}" if "e+" in text and abs(value) < 1e6 else text


def _with_place(printed: float, digits: int, place: str) -> str:
    return f"{printed:.{digits}g}" + (f" ({place})" if place else "")


def experiments() -> dict[str, Experiment]:
    """All experiments, by name, in the order of the papers."""
    from armillary.experiments import bao, barbero, song, song_training, wertich

    papers = (song, song_training, wertich, bao, barbero)
    every = [experiment for paper in papers for experiment in paper.EXPERIMENTS]
    return {experiment.name: experiment for experiment in every}


def experiment(name: str) -> Experiment:
    """The experiment of that name, or a sentence that says which there are."""
    found = experiments()
    if name not in found:
        raise ArmillaryError(f"there is no experiment {name!r}: there are {', '.join(found)}")
    return found[name]
