"""Closed forms that the lenses use, one module per subject, corrected where the papers are wrong.

'theory B4' in a docstring is statement B4 of the ledger: `armillary theory B4` prints it.
"""
