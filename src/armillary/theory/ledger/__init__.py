"""Every statement of the four papers, each with a check that re-derives its verdict: `armillary theory`."""

from armillary.theory.ledger.entry import Entry, Evidence, Fact, Number, Result, Trend, Verdict, verdict_of
from armillary.theory.ledger.run import entries, entry, recorded, run

__all__ = [
    "Entry",
    "Evidence",
    "Fact",
    "Number",
    "Result",
    "Trend",
    "Verdict",
    "entries",
    "entry",
    "recorded",
    "run",
    "verdict_of",
]
