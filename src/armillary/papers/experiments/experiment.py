"""An experiment (a table or figure of a paper, run again) and the verdict on each claim of the paper."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import plotly.graph_objects as go

Size = Literal["small", "paper"]
Verdict = Literal["same size", "same direction", "differs", "undecided"]
SAME_SIZE = 0.25
"""Two numbers have the same size if they differ by no more than this share of the larger, or by two standard errors."""


@dataclass(frozen=True)
class Settings:
    """How to run: `small` takes minutes on two cores, `paper` uses the paper's own settings.

    models and corpora, if given, replace the experiment's own. `work` is the folder of trained models and atlases,
    which experiments share and reuse. `loading` holds options of `load` (device, dtype, revision, ...).
    """

    size: Size = "small"
    models: tuple[str, ...] = ()
    corpora: tuple[str, ...] = ()
    work: Path = Path("experiments/work")
    say: Callable[[str], None] = lambda sentence: None
    loading: dict[str, Any] = field(default_factory=dict)

    def loading_for(self, model: str | Path) -> dict[str, Any]:
        """The options to load a model with; one that an experiment trained here takes no revision and no adapter."""
        if not Path(model).resolve().is_relative_to(self.work.resolve()):
            return self.loading
        return {name: value for name, value in self.loading.items() if name not in ("revision", "adapter")}

    @property
    def small(self) -> bool:
        return self.size == "small"


@dataclass(frozen=True)
class Claim:
    """One statement of the paper, its printed value (with its place), our value, and the verdict."""

    says: str
    printed: str
    found: str
    verdict: Verdict
    why: str = ""


@dataclass(frozen=True)
class Outcome:
    """Tables, figures, claims, and sentences on what the experiment shows beyond the paper."""

    tables: dict[str, pd.DataFrame]
    figures: dict[str, go.Figure]
    claims: list[Claim]
    learned: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Experiment:
    """A table or figure of a paper. `minutes` is the time at size `small` on two cores; `quick` ones run in CI.

    needs: the models and texts of the paper's own settings.
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
    """A claim about a number: same size or differs; with `signed`, also same direction (the same sign).

    `error` is the standard error of `found`.
    """
    shown = f"{found:.{digits}g}" + (f" ± {error:.2g}" if error else "")
    if not isfinite(found) or not isfinite(printed):
        return Claim(says, _with_place(printed, digits, place), shown, "undecided", why)
    near = abs(found - printed) <= max(_tolerance(printed, found), 2 * error)
    same = signed and (found > 0) == (printed > 0)
    verdict: Verdict = "same size" if near else "same direction" if same else "differs"
    return Claim(says, _with_place(printed, digits, place), shown, verdict, "" if near else why)


def _tolerance(printed: float, found: float) -> float:
    """How far apart two numbers of the same size may be; between 0.5 and 1 relative to the distance from 1."""
    larger = max(abs(printed), abs(found))
    return max(SAME_SIZE * (1 - larger), 0.05) if 0.5 < larger <= 1 else SAME_SIZE * larger


def ordered(
    says: str, larger: float, smaller: float, *, error: float = 0.0, printed: str = "", why: str = "", digits: int = 3
) -> Claim:
    """A claim that one number is above another; undecided within two standard errors of the difference."""
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
    """A claim that a number is above or below a limit: the verdict of `ordered`, shown as number and limit."""
    pair = (found, limit) if above else (limit, found)
    claim = ordered(says, *pair, error=error, printed=printed, why=why)
    shown, bound = _distinguished(found, limit, digits)
    side = "above" if above else "below"
    return replace(claim, found=shown + (f" ± {error:.2g}" if error else "") + f" (the claim: {side} {bound})")


def _pair(larger: float, smaller: float, digits: int) -> str:
    return " against ".join(_distinguished(larger, smaller, digits))


def _distinguished(first: float, second: float, digits: int) -> tuple[str, str]:
    """Two numbers with enough digits to differ; 0 for a number that is rounding error beside the other."""
    negligible = 1e-12 * max(abs(first), abs(second))
    texts = ("", "")
    for extra in range(4):
        texts = (_shown(first, digits + extra, negligible), _shown(second, digits + extra, negligible))
        if texts[0] != texts[1]:
            break
    return texts if texts[0] != texts[1] else (_shown(first, digits, negligible), _shown(second, digits, negligible))


def _shown(value: float, digits: int, negligible: float) -> str:
    if abs(value) < negligible:
        return "0"
    text = f"{value:.{digits}g}"
    return f"{value:.0f}" if "e+" in text and abs(value) < 1e6 else text


def _with_place(printed: float, digits: int, place: str) -> str:
    return f"{printed:.{digits}g}" + (f" ({place})" if place else "")
