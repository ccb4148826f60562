"""What hostile hands and bad luck do to Armillary, as one command: everything below must be zero.

    python bench/campaign.py                                      the whole campaign (`make faults`): below an hour
    python bench/campaign.py --only atlases kills --count 0.1     some subjects, a tenth of their cases
    python bench/campaign.py --only atlases --seed 0 --case 17    one case again
    python bench/campaign.py --join a.json b.json                 subjects that ran apart (--out), as one campaign

Kills, damaged folders and atlases, full disks, mutated checkpoints, absurd command lines, hostile requests. Writes the
counts to bench/faults.json and docs/faults.md, and ends with exit code 1 if a value differs, a traceback is seen,
something hangs or is accepted that should not be; the first such cases are named with the command that repeats them.
"""

import argparse
import importlib
import json
import os
import platform
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from faults import page
from faults.outcomes import FAULTS, SKIPPED, Ended, by_kind, counted
from faults.serving import tried

SUBJECTS = ("kills", "folders", "atlases", "disks", "checkpoints", "commands", "requests")
SHOWN = 5
"""So many cases of each kind of fault are told in full."""


def campaign(
    subjects: tuple[str, ...] = SUBJECTS, scale: float = 1.0, seed: int = 0, only: list[int] | None = None
) -> dict[str, list[Ended]]:
    """How every case ended, by subject."""
    found: dict[str, list[Ended]] = {}
    memory = Path("/dev/shm")
    fast = memory if memory.is_dir() and os.access(memory, os.W_OK) else None
    for subject in subjects:
        count = max(1, round(scale * importlib.import_module(f"faults.{subject}").COUNT))
        place = Path(tempfile.mkdtemp(prefix=f"armillary-faults-{subject}-", dir=fast))
        try:
            found[subject] = _shown(subject, tried(subject, only or list(range(count)), place, seed))
        finally:
            shutil.rmtree(place, ignore_errors=True)
    return found


def _shown(subject: str, running: Any) -> list[Ended]:
    """All cases of a subject; faults are printed as they come, and a line every half minute."""
    ended: list[Ended] = []
    began = last = time.monotonic()
    for one in running:
        ended.append(one)
        if one.outcome.verdict in FAULTS:
            print(f"{subject} {one.number} {one.outcome.what}: {one.outcome.verdict}: {one.outcome.told}", flush=True)
        if time.monotonic() - last > 30:
            last = time.monotonic()
            print(f"{subject}: {len(ended)} cases after {last - began:.0f} s", flush=True)
    print(f"{subject}: {counted(ended)} in {time.monotonic() - began:.0f} s", flush=True)
    return ended


def summary(found: dict[str, list[Ended]], seed: int) -> dict[str, Any]:
    """The counts of a campaign, and the first cases of each kind of fault, as JSON keeps them."""
    import torch
    import transformers

    return {
        "machine": {
            "cores": os.cpu_count(),
            "system": platform.system(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "seed": seed,
        "subjects": {
            subject: {
                **counted(ended),
                "seconds": round(sum(one.seconds for one in ended)),
                "longest": round(max((one.seconds for one in ended), default=0.0), 1),
                "kinds": by_kind(ended),
                "skipped_because": sorted({one.outcome.told for one in ended if one.outcome.verdict == SKIPPED}),
                "faults": [
                    one.as_dict()
                    for verdict in FAULTS
                    for one in [one for one in ended if one.outcome.verdict == verdict][:SHOWN]
                ],
            }
            for subject, ended in found.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=SUBJECTS, default=SUBJECTS, help="these subjects alone")
    parser.add_argument("--count", type=float, default=1.0, help="this share of the cases")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, nargs="+", help="these cases alone, by number")
    parser.add_argument("--out", type=Path, help="write the counts here, and no page")
    parser.add_argument("--join", type=Path, nargs="+", help="run nothing: the counts of these files, and the page")
    given = parser.parse_args()
    if given.join:
        page.write(page.joined([json.loads(file.read_text(encoding="utf-8")) for file in given.join]))
        return
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))  # folders in memory are removed
    found = campaign(tuple(given.only), given.count, given.seed, given.case)
    if given.case:
        for one in (one for ended in found.values() for one in ended):
            print(f"{one.outcome.what}: {one.outcome.verdict}: {one.outcome.told} ({one.seconds:.1f} s)")
    counts = summary(found, given.seed)
    whole = set(given.only) == set(SUBJECTS) and given.count == 1.0 and not given.case
    if whole or given.out:
        if given.out:
            given.out.write_text(json.dumps(counts, indent=1) + "\n", encoding="utf-8")
        else:
            page.write(counts)
    bad = {subject: told["faults"] for subject, told in counts["subjects"].items() if told["faults"]}
    for subject, rows in bad.items():
        for row in rows:
            print(f"\n{subject}, {row['what']}: {row['verdict']}: {row['told']}\n  again with: {row['repeat']}")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
