"""The four papers: a ledger of their statements, each checked, and their experiments, run again."""
