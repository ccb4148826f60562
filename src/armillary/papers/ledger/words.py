"""Verdicts and evidence of the ledger as sentences."""

from armillary.papers.ledger.entry import Evidence, Fact, Number, Trend, Verdict

VERDICTS: dict[Verdict, str] = {
    "holds": "holds",
    "approximately": "holds approximately",
    "differs": "differs from print",
    "not tested": "needs trained weights",
    "unresolved": "unresolved",
}


def number(value: float) -> str:
    """Six significant digits at most."""
    return f"{value:.6g}"


def sentence(item: Evidence) -> str:
    """One piece of evidence as a line: measured, printed and corrected values."""
    if isinstance(item, Number):
        parts = [f"measured {number(item.measured)}" + (f" ± {number(item.error)}" if item.error else "")]
        if item.printed is not None:
            parts.append(f"as printed {number(item.printed)}")
        if item.corrected is not None:
            parts.append(f"corrected {number(item.corrected)}")
        return f"{item.what}: {', '.join(parts)}"
    if isinstance(item, Fact):
        answer = "so" if item.so else "not so"
        return f"{item.what} ({item.form}): {answer}" + (f"; {item.detail}" if item.detail else "")
    assert isinstance(item, Trend)
    steps = ", ".join(f"{regime} {number(error)}" for regime, error in zip(item.regimes, item.errors, strict=True))
    return f"{item.what}, error of the printed form: {steps} (fades below {number(item.bound)}: {item.fades})"
