"""The statements of the four papers, each with a numerical check of its verdict: `armillary theory`."""

from armillary.papers.ledger.entry import Entry, Evidence, Fact, Number, Result, Trend, Verdict, verdict_of
from armillary.papers.ledger.run import entries, entry, recorded, run

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
