"""What a model is made of, as frozen data: one Layer per attention layer, with how it encodes position."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, get_args

from armillary.anatomy.plain import from_plain, to_plain
from armillary.errors import ArmillaryError

if TYPE_CHECKING:  # a description is read from an atlas without waiting for torch
    from torch import Tensor

    from armillary.anatomy.weights import LayerWeights

PairLayout = Literal["half", "interleaved"]
NormKind = Literal["layer", "rms"]


@dataclass(frozen=True)
class Rotary:
    """Pair f of the `width` channels of q and k from `start` on is rotated by `frequencies[f]` radians per token.

    layout 'half' pairs channel i with i + width/2, 'interleaved' pairs 2i with 2i + 1. cos and sin are multiplied
    by `factor` (1 unless a scaling such as yarn sets it). Token t is at position t, or at places[t] if there are
    `places` (a model with random positions).
    """

    frequencies: tuple[float, ...]
    layout: PairLayout
    base: float
    scaling: str = "default"
    factor: float = 1.0
    parameters: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)
    start: int = 0
    places: tuple[int, ...] = ()

    @property
    def channels(self) -> slice:
        """The channels that are rotated."""
        return slice(self.start, self.start + self.width)

    @property
    def width(self) -> int:
        """How many channels are rotated."""
        return 2 * len(self.frequencies)

    @property
    def follows_length(self) -> bool:
        """Whether the frequencies depend on the length of the text."""
        return self.scaling in ("dynamic", "longrope")

    def at(self, length: int) -> "Rotary":
        """The encoding for a text of `length` tokens, in a model that has not run on a longer one before.

        (With 'dynamic' scaling transformers keeps the frequencies of a longer text for later shorter ones above
        the trained length.)
        """
        if self.scaling == "dynamic":
            trained, stretch = self.parameters["max_position_embeddings"], self.parameters["factor"]
            longest, width = max(length, trained), self.width
            base = self.base * (stretch * longest / trained - (stretch - 1)) ** (width / (width - 2))
            return replace(self, frequencies=geometric(base, width))
        if self.scaling == "longrope":
            is_long = length > self.parameters["original_max_position_embeddings"]
            stretches = self.parameters["long_factor" if is_long else "short_factor"]
            plain = geometric(self.base, self.width)
            return replace(self, frequencies=tuple(g / s for g, s in zip(plain, stretches, strict=True)))
        return self


@lru_cache(maxsize=256)  # layers share their frequencies
def geometric(base: float, width: int) -> tuple[float, ...]:
    """The plain rotary frequencies base^(-2f/width), f = 0 .. width/2 - 1."""
    return tuple(base ** (-2 * f / width) for f in range(width // 2))


@dataclass(frozen=True)
class Alibi:
    """The logit of a key falls by `slopes[head]` per token of distance."""

    slopes: tuple[float, ...]


@dataclass(frozen=True)
class RelativeBias:
    """A learned number per head and bucket of distance is added to the logit (T5)."""

    buckets: int
    max_distance: int
    bidirectional: bool


@dataclass(frozen=True)
class Disentangled:
    """Distances have keys and queries of their own (DeBERTa): scale * (q_i.k_j + q_i.K[i - j] + k_j.Q[i - j]).

    The term q.K is 'c2p', k.Q is 'p2c'. With buckets, distances from buckets / 2 on are counted logarithmically, up to
    max_distance. shared: whether K and Q use the projections of tokens; eps: that of the norm of the table of
    distances, if it has one.
    """

    buckets: int
    max_distance: int
    terms: tuple[str, ...]
    shared: bool = False
    eps: float | None = None

    @property
    def span(self) -> int:
        """Distances are counted from -span to span - 1."""
        return self.buckets or self.max_distance


@dataclass(frozen=True)
class GridRotary:
    """q and k of a patch are rotated by its place in the image: half of the pairs by its row, the others by its column.

    Rows and columns count from -1 to 1 across the image, times 2 pi `frequencies[f]`. The first `special_first`
    positions are no patches and are not rotated.
    """

    frequencies: tuple[float, ...]
    grid: tuple[int, ...]
    special_first: int


LayerPosition = Rotary | Alibi | RelativeBias | Disentangled | GridRotary


@dataclass(frozen=True)
class QKNorm:
    """q and k are normalized after the projection, over each head or over all heads at once.

    The gain is weight + offset (Gemma stores the gain minus one).
    """

    kind: NormKind
    over: Literal["head", "all"]
    eps: float
    offset: float = 0.0


@dataclass(frozen=True)
class Growth:
    """q at position i is multiplied by 1 + slope log(1 + floor((i + ahead) / every)): logits grow with the position."""

    slope: float
    every: float
    ahead: int = 0


@dataclass(frozen=True)
class Layer:
    """One attention layer. Logit of key j for query i: scale * q_i.k_j, soft-capped where softcap is set, + bias.

    scale and causal are None for unknown families: only the tap can observe them. window: keys at a distance below it
    are seen; chunk: only keys of the query's own run of so many positions are. value_width: that of v, if it is not the
    head width. latent: q or k is computed from a normalized vector that all heads share, so that the weights per head
    are products of stored ones; pairs_apart: stored pairs of rotary channels (2f, 2f + 1) are taken apart. gated: a
    head's output is multiplied by sigmoid(x W_gate). value_norm: v is divided by its root mean square, with this
    epsilon. crosses: cross-attention, with keys and values from the encoder.
    """

    index: int
    block: str
    heads: int
    kv_heads: int
    head_width: int
    scale: float | None
    causal: bool | None
    position: LayerPosition | None
    qk_norm: QKNorm | None = None
    softcap: float | None = None
    window: int | None = None
    sinks: bool = False
    clip_qkv: float | None = None
    chunk: int | None = None
    growth: Growth | None = None
    value_width: int | None = None
    value_norm: float | None = None
    latent: bool = False
    pairs_apart: bool = False
    gated: bool = False
    crosses: bool = False

    @property
    def reach(self) -> int | None:
        """How many keys a query sees at most, itself included: the window or the chunk; None for all."""
        return self.window if self.chunk is None else self.chunk

    @property
    def group(self) -> int:
        """How many query heads share one key head."""
        return self.heads // self.kv_heads

    def kv_head(self, head: int) -> int:
        """The key and value head that `head` reads."""
        return head // self.group


@dataclass(frozen=True)
class Anatomy:
    """A model's attention, layer by layer. `weights(l)` reads the layer's matrices on demand.

    positions_added: the position embeddings added before the first layer; max_positions: the longest text the model
    was built for; hard_limit: whether a longer one cannot run at all. `missing` is empty for a family with an
    adapter, else one sentence on what is unknown. `skipped` names the blocks that have something else than attention:
    layers are the blocks with attention, numbered in order, and each says which block it is. `part`: of an
    encoder-decoder the encoder is described unless the decoder is asked for, or its cross-attention, whose keys are the
    encoder's positions. `positions`: what a position is: a token, a patch of an image (after
    `special_first` others, in the rows of a `grid` of patches down and across), a frame of sound.
    """

    family: str
    d_model: int
    layers: tuple[Layer, ...]
    vocabulary: int
    max_positions: int | None
    hard_limit: bool
    positions_added: Literal["learned", "sinusoidal", "none", "unknown"]
    norm: NormKind | Literal["unknown"]
    norm_place: Literal["before", "after", "unknown"]
    shared_layers: bool = False
    missing: str = ""
    skipped: tuple[str, ...] = ()
    part: Literal["", "decoder", "cross"] = ""
    positions: Literal["tokens", "patches", "frames"] = "tokens"
    special_first: int = 0
    grid: tuple[int, ...] | None = None
    _read_layer: "Callable[[int], LayerWeights] | None" = field(default=None, compare=False, repr=False)
    _read_matrices: "Callable[[int], Iterator[tuple[str, Tensor]]] | None" = field(
        default=None, compare=False, repr=False
    )

    def weights(self, layer: int) -> "LayerWeights":
        """W_q, W_k, W_v, W_o of every head of `layer`: views of the model, or read from the checkpoint now."""
        self._check(layer)
        assert self._read_layer is not None
        return self._read_layer(layer)

    def matrices(self, layer: int) -> "Iterator[tuple[str, Tensor]]":
        """(name, W) with y = x W for q, k, v, o (all heads together), gate, up and down, each read when reached.

        Experts and other modules that are not a single matrix are left out.
        """
        self._check(layer)
        assert self._read_matrices is not None
        return self._read_matrices(layer)

    def _check(self, layer: int) -> None:
        if not 0 <= layer < len(self.layers):
            raise ArmillaryError(f"there is no layer {layer}: {self.family} has layers 0 to {len(self.layers) - 1}")
        if self._read_layer is None:
            raise ArmillaryError(self.missing or "this anatomy was made from a configuration, which has no weights")

    def check_length(self, tokens: int) -> None:
        """Raise if the model cannot run on a text of `tokens` tokens."""
        if self.hard_limit and self.max_positions is not None and tokens > self.max_positions:
            raise ArmillaryError(
                f"the text has {tokens} tokens, but this {self.family} model has {self.max_positions} positions",
                advice=f"cut the text to {self.max_positions} tokens",
            )

    def too_long(self, tokens: int) -> str:
        """A warning if a text of `tokens` tokens can run but is longer than the model was built for; else ''."""
        if self.max_positions is None or tokens <= self.max_positions:
            return ""
        return (
            f"texts of {tokens} tokens are longer than the {self.max_positions} positions that this {self.family} "
            "model was built for: what its heads do there may not be what they learned"
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON, without the weights."""
        plain = to_plain(self, get_args(LayerPosition))
        assert isinstance(plain, dict)
        return plain

    @classmethod
    def from_dict(cls, record: Any, name: str = "anatomy") -> "Anatomy":
        """What `as_dict` wrote, without weights; `name` is what an error calls the record."""
        anatomy = from_plain(cls, record, name)
        assert isinstance(anatomy, Anatomy)
        if not anatomy.layers:
            raise ArmillaryError(f"{name}.layers is empty")
        for place, layer in enumerate(anatomy.layers):
            if layer.index != place:
                raise ArmillaryError(f"{name}.layers[{place}].index should be {place}, not {layer.index}")
            if min(layer.heads, layer.kv_heads, layer.head_width) < 1:
                raise ArmillaryError(f"{name}.layers[{place}] has no heads")
            if layer.heads % layer.kv_heads:
                raise ArmillaryError(
                    f"{name}.layers[{place}] has {layer.heads} heads, which cannot share {layer.kv_heads} key heads"
                )
        return anatomy
