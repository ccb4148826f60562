"""Timelines: the tables of many checkpoints of one model in one store, births of heads, changes, comparisons."""
