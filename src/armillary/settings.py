"""Everything that the numbers of a scan depend on, besides the model and the text."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from armillary.collector import DEFAULT_STREAMS, Wanted
from armillary.corpus import Bos
from armillary.errors import ArmillaryError
from armillary.records import mismatch

WhenNaN = Literal["stop", "skip"]


@dataclass(frozen=True)
class ScanSettings:
    """Everything that the numbers of a scan depend on, besides the model and the text."""

    length: int = 128
    sequences: int = 64
    skip: int = 1
    batch: int = 8
    shard: int = 32
    seed: int = 0
    bos: Bos = "auto"
    by_document: bool = False
    streams: tuple[str, ...] = DEFAULT_STREAMS
    when_nan: WhenNaN = "stop"
    second_pass: int = 64

    def __post_init__(self) -> None:
        for name in ("sequences", "batch", "shard", "second_pass"):
            if getattr(self, name) < 1:
                raise ArmillaryError(f"{name} {getattr(self, name)} makes no scan: it must be 1 or more")
        if not 0 <= self.seed < 2**63:
            raise ArmillaryError(f"seed {self.seed} is no seed: it must be 0 or more, below 2^63")
        self.wanted()

    def wanted(self) -> Wanted:
        return Wanted(self.streams, self.skip, self.length)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**asdict(self), "streams": list(self.streams)}


def settings_of(plain: dict[str, Any]) -> ScanSettings:
    """The reverse of as_dict; an error where a setting is not known or not of its kind."""
    wrong = mismatch(plain, ScanSettings, "settings")
    if wrong:
        raise ArmillaryError(f"these are no settings of a scan: {wrong}")
    return ScanSettings(**{**plain, "streams": tuple(plain.get("streams", DEFAULT_STREAMS))})
