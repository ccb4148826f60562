"""Random positions: every text is placed at positions drawn from a longer range (Ruoss et al., Barbero's Section B.3).

In training each sequence of each step has its own draw without replacement, from (seed, step, number of the forward
pass) alone. In evaluation all texts share one draw, `places`, which is stored in the configuration: token t is at
places[t], whatever the batch, so the anatomy stays exact, a scan gives the same bits, and text can be generated token
by token. Sorted draws keep the order of the tokens; others leave no order at all, only identities of positions.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Int

from armillary.errors import ArmillaryError

SETTING = "armillary_positions"
"""The name in a model's configuration."""


@dataclass(frozen=True)
class RandomPositions:
    """Where texts are placed: `length` tokens at positions below `range`; `places` is the draw of evaluation."""

    range: int
    length: int
    sorted: bool = True
    seed: int = 0
    places: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 2 <= self.length <= self.range:
            raise ArmillaryError(
                f"random positions for {self.length} tokens cannot be drawn from a range of {self.range}",
                advice="the range must be the length of the text or more",
            )
        if not self.places:
            drawn = self.drawn(np.random.default_rng([self.seed]), 1, self.length)[0]
            object.__setattr__(self, "places", tuple(int(place) for place in drawn))
        if len(self.places) != self.length or not all(0 <= place < self.range for place in self.places):
            raise ArmillaryError(f"the configuration's {SETTING} does not have {self.length} places below {self.range}")

    def drawn(self, rng: np.random.Generator, batch: int, length: int) -> Int[np.ndarray, "batch token"]:
        """Positions without repetition for each sequence of a batch."""
        rows = np.stack([rng.permutation(self.range)[:length] for _ in range(batch)])
        return np.sort(rows, axis=1) if self.sorted else rows

    def settings(self) -> dict[str, Any]:
        """For the configuration."""
        return {"kind": "random", **asdict(self), "places": list(self.places)}


def random_positions_of(config: Any) -> RandomPositions | None:
    """The random positions of a configuration, if it has any."""
    settings = getattr(config, SETTING, None)
    if not settings:
        return None
    try:
        if settings["kind"] != "random":
            raise ArmillaryError(f"the configuration has {SETTING} of the kind {settings['kind']!r}")
        return RandomPositions(
            range=int(settings["range"]),
            length=int(settings["length"]),
            sorted=bool(settings["sorted"]),
            seed=int(settings["seed"]),
            places=tuple(int(place) for place in settings["places"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ArmillaryError(f"the configuration has {SETTING} that cannot be read ({error!r})") from error
