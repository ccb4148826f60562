"""All entries, in the order of the papers, and running their checks."""

import hashlib
import json
import re
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.resources import files
from multiprocessing import get_context

import numpy as np

from armillary.errors import ArmillaryError
from armillary.theory.ledger.entry import Entry, Result, Verdict, verdict_of

SUBJECTS = (
    "song_positions",
    "song_kernels",
    "wertich_gaussians",
    "wertich_matrices",
    "wertich_tokens",
    "wertich_softmax",
    "wertich_slerp",
    "wertich_exponentials",
    "wertich_bilinear",
    "wertich_spheres",
    "wertich_attention",
    "bao_moments",
    "bao_propagation",
    "bao_training",
    "barbero_rotary",
    "barbero_numbers",
)
"""The modules of this package that hold ENTRIES."""


@cache
def entries() -> tuple[Entry, ...]:
    """Every entry of the ledger."""
    found: list[Entry] = []
    for subject in SUBJECTS:
        found += import_module(f"armillary.theory.ledger.{subject}").ENTRIES
    return tuple(found)


def entry(name: str) -> Entry:
    """The entry of that id."""
    for one in entries():
        if one.id.lower() == name.lower():
            return one
    near = get_close_matches(name.upper(), [one.id for one in entries()], cutoff=0.75)
    meant = f" (did you mean {' or '.join(near)}?)" if near else ""
    raise ArmillaryError(f"there is no statement {name!r} in the ledger{meant}: there are {_id_ranges()}")


def _id_ranges() -> str:
    """'S1 to S25 (Song), ...': the first and the last id of every paper."""
    by_paper: dict[str, list[str]] = {}
    for one in entries():
        by_paper.setdefault(one.paper, []).append(one.id)
    ordered = {
        paper: sorted(ids, key=lambda name: [int(run) if run.isdecimal() else -1 for run in re.split(r"(\d+)", name)])
        for paper, ids in by_paper.items()
    }
    return ", ".join(f"{ids[0]} to {ids[-1]} ({paper})" for paper, ids in ordered.items())


def run_one(name: str, seed: int = 0) -> Result:
    """Check one entry; the random numbers depend on its id and the seed alone."""
    one = entry(name)
    begun = time.perf_counter()
    if one.check is None:
        return Result(one.id, "not tested", (), 0.0, seed)
    digest = hashlib.sha256(f"{one.id} {seed}".encode()).digest()
    rng = np.random.default_rng(int.from_bytes(digest[:8], "big"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        evidence = tuple(one.check(rng))
    return Result(one.id, verdict_of(evidence), evidence, time.perf_counter() - begun, seed)


def run(chosen: Sequence[Entry] | None = None, *, seed: int = 0, processes: int = 2) -> Iterator[Result]:
    """The results of these entries (all by default), in their order, computed by so many processes."""
    names = [one.id for one in (entries() if chosen is None else chosen)]
    if processes < 1:
        raise ArmillaryError(f"{processes} processes compute nothing: give 1 or more")
    processes = min(processes, (len(names) + 1) // 2)  # a process takes two statements at a time
    if processes < 2:
        yield from (run_one(name, seed) for name in names)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(run_one, names, [seed] * len(names), chunksize=2)


def recorded() -> dict[str, Verdict]:
    """The verdicts that were recorded with `armillary theory --record`."""
    path = files("armillary").joinpath("theory", "ledger", "verdicts.json")
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}
