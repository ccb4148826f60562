"""All entries, in the order of the papers, and running their checks."""

import hashlib
import json
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
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
    near = [one.id for one in entries() if one.id.lower().startswith(name.lower()[:2])]
    raise ArmillaryError(f"there is no statement {name!r} in the ledger: there are {', '.join(near) or 'S1 to B25'}")


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
    if processes < 2 or len(names) < 2:
        yield from (run_one(name, seed) for name in names)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(run_one, names, [seed] * len(names), chunksize=2)


def recorded() -> dict[str, Verdict]:
    """The verdicts that were recorded with `armillary theory --record`."""
    path = files("armillary").joinpath("theory", "ledger", "verdicts.json")
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}
