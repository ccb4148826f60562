"""Claims about ranges, upper limits, and several models at once."""

from dataclasses import replace

import numpy as np
from jaxtyping import Float

from armillary.papers.experiments.experiment import Claim, Verdict, sized


def between(says: str, low: float, high: float, found: float, *, place: str, why: str = "", digits: int = 3) -> Claim:
    """A claim that a positive number is in a range: same size if it is within a quarter of it, else differs."""
    nearest = min(max(found, low), high)
    near = sized(says, nearest, found).verdict == "same size"
    verdict: Verdict = "same size" if near else "differs"
    printed = f"{low:.{digits}g}" + (f" to {high:.{digits}g}" if high > low else "") + f" ({place})"
    return Claim(says, printed, f"{found:.{digits}g}", verdict, "" if near else why)


def below(says: str, limit: float, found: float, *, error: float = 0.0, printed: str, why: str = "") -> Claim:
    """A claim that the size of a number is below a limit; undecided within two standard errors of it."""
    verdict: Verdict = (
        "same direction"
        if abs(found) + 2 * error < limit
        else "differs"
        if abs(found) - 2 * error > limit
        else "undecided"
    )
    shown = f"{found:.3g}" + (f" ± {error:.2g}" if error else "") + f" (the claim: below {limit:.3g} in size)"
    return Claim(says, printed, shown, verdict, "" if verdict == "same direction" else why)


def over_models(claims: dict[str, Claim]) -> Claim:
    """One claim from those of several models: their common verdict, or undecided if they disagree."""
    first = next(iter(claims.values()))
    verdicts = {claim.verdict for claim in claims.values()}
    found = "; ".join(f"{model} {claim.found}" for model, claim in claims.items())
    whys = list(dict.fromkeys(claim.why for claim in claims.values() if claim.why))
    if len(verdicts) > 1:
        each = ", ".join(f"{model}: {claim.verdict}" for model, claim in claims.items())
        whys.insert(0, f"the models disagree ({each})")
    verdict: Verdict = first.verdict if len(verdicts) == 1 else "undecided"
    return replace(first, found=found, verdict=verdict, why="; ".join(whys))


def mean_error(values: Float[np.ndarray, "n"]) -> tuple[float, float]:
    """Mean and its standard error (unknown for a single value)."""
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
    return float(values.mean()), float(error)
