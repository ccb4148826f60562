"""List the entries of the ledger in the order of the papers, and run their checks."""

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
from armillary.papers.ledger.entry import Entry, Result, Verdict, verdict_of

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
    listed: list[Entry] = []
    for subject in SUBJECTS:
        listed += import_module(f"armillary.papers.ledger.{subject}").ENTRIES
    return tuple(listed)


def entry(name: str) -> Entry:
    """The entry of that id."""
    for candidate in entries():
        if candidate.id.lower() == name.lower():
            return candidate
    near = get_close_matches(name.upper(), [candidate.id for candidate in entries()], cutoff=0.75)
    hint = f" (did you mean {' or '.join(near)}?)" if near else ""
    raise ArmillaryError(f"there is no statement {name!r} in the ledger{hint}", advice=f"there are {_id_ranges()}")


def _id_ranges() -> str:
    """'S1 to S25 (Song), ...': the first and last id of every paper."""
    by_paper: dict[str, list[str]] = {}
    for item in entries():
        by_paper.setdefault(item.paper, []).append(item.id)
    ordered = {
        paper: sorted(
            ids, key=lambda name: [int(part) if part.isdecimal() else -1 for part in re.split(r"(\d+)", name)]
        )
        for paper, ids in by_paper.items()
    }
    return ", ".join(f"{ids[0]} to {ids[-1]} ({paper})" for paper, ids in ordered.items())


def run_one(name: str, seed: int = 0) -> Result:
    """Check one entry; its random numbers depend only on its id and the seed."""
    checked = entry(name)
    start = time.perf_counter()
    if checked.check is None:
        return Result(checked.id, "not tested", (), 0.0, seed)
    digest = hashlib.sha256(f"{checked.id} {seed}".encode()).digest()
    rng = np.random.default_rng(int.from_bytes(digest[:8], "big"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        evidence = tuple(checked.check(rng))
    return Result(checked.id, verdict_of(evidence), evidence, time.perf_counter() - start, seed)


def run(chosen: Sequence[Entry] | None = None, *, seed: int = 0, processes: int = 2) -> Iterator[Result]:
    """The results of these entries (all by default), in their order."""
    names = [item.id for item in (entries() if chosen is None else chosen)]
    if processes < 1:
        raise ArmillaryError(f"`processes={processes}` was given", advice="it must be 1 or more")
    processes = min(processes, (len(names) + 1) // 2)  # a process takes two statements at a time
    if processes < 2:
        yield from (run_one(name, seed) for name in names)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(run_one, names, [seed] * len(names), chunksize=2)


def recorded() -> dict[str, Verdict]:
    """The verdicts that were recorded with `armillary theory --record`."""
    path = files("armillary.papers.ledger").joinpath("verdicts.json")
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}
