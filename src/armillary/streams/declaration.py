"""The declaration of a stream, written once in the file of its statistic and listed in registry.py."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto

from jaxtyping import Float
from torch import Tensor

from armillary.anatomy.description import Anatomy, Rotary
from armillary.streams.stream import Statistic
from armillary.text.vocabulary import Vocabulary


class Reads(Enum):
    """What a stream is updated with at every layer."""

    RESIDUAL = auto()
    """The residual stream h (sequence, position, width), at every point from the embeddings on."""
    INPUT = auto()
    """The attention input x (sequence, position, width), after the norm."""
    ATTENTION = auto()
    """The AttentionView: q, k, v, masks and everything computed from them."""
    SOURCES = auto()
    """What observe/sources.py computes for a layer on one sequence."""


class Pass(Enum):
    """The pass of the scan in which a stream is computed."""

    FIRST = auto()
    """Over the whole text."""
    SAMPLE = auto()
    """Over a sample of the text, once the means of the first pass are known."""
    REPEATS = auto()
    """Over repeated random tokens."""
    SOURCES = auto()
    """Over a few sequences, one at a time, split by what wrote them."""


@dataclass(frozen=True)
class Option:
    """A name for `scan(streams=...)`; several streams may share one."""

    name: str
    words: str
    default: bool = True
    needs: "Option | None" = None
    """Another option that this one is computed from."""


@dataclass(frozen=True)
class Context:
    """What the constructor of a statistic may use."""

    anatomy: Anatomy
    skip: int
    """Number of first positions that are left out."""
    length: int
    """Tokens of a sequence."""
    seed: int = 0
    means: Float[Tensor, "layer position width"] | None = None
    """Means of the attention input by position, from the first pass."""
    tracked_tokens: tuple[int, ...] = ()
    """The tokens that most queries see."""
    read_tokens: tuple[int, ...] = ()
    """More of them, for what heads read."""
    by_lag: dict[int, Float[Tensor, "head lag"]] = field(default_factory=dict)
    """The mean attention of every layer's heads by lag i - j, from the first pass."""
    vocabulary: Vocabulary | None = None
    """The texts and classes of tokens, where there is a tokenizer."""
    period: int = 0
    """Number of random tokens that are repeated; 0 if sequences are too short for two copies."""
    before: int = 0
    """Where the first copy begins."""

    @property
    def lags(self) -> tuple[int, ...]:
        """1, 2, 4, ... up to half of the kept tokens."""
        kept = self.length - self.skip
        return tuple(2**i for i in range(kept.bit_length()) if 2**i <= kept // 2)

    @property
    def rotary(self) -> tuple[Rotary | None, ...]:
        """The rotary encoding of every layer, None where a layer has none."""
        return tuple(layer.position if isinstance(layer.position, Rotary) else None for layer in self.anatomy.layers)


@dataclass(frozen=True)
class Declaration:
    """A stream: its name, when and from what it is computed, and how its arrays are named.

    `name` is GROUP.KIND: the results go to the atlas's group GROUP, as KIND_RESULT, or as RESULT if `plain` is set (or
    if the result's name begins with the kind). The dimensions are those of the statistic.
    """

    name: str
    option: Option
    reads: Reads
    make: Callable[[Context], Statistic | None]
    """Makes the statistic; None if it does not apply to the model or text."""
    lenses: tuple[str, ...]
    """The lenses that read it, by module name."""
    when: Pass = Pass.FIRST
    plain: bool = False
    rotary_layers: bool = False
    """Whether it is updated only at layers with a rotary encoding."""
    sequences: int | None = None
    """It is updated with only the first so many sequences of its pass."""

    @property
    def group(self) -> str:
        return self.name.partition(".")[0]

    @property
    def kind(self) -> str:
        return self.name.partition(".")[2]

    def array(self, result: str) -> str:
        """The name of a result's array in the atlas."""
        return result if self.plain or result.startswith(self.kind) else f"{self.kind}_{result}"
