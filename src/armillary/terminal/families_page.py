"""Makes docs/families.md: the families known from the inside, and what was verified for each."""

from armillary.anatomy.description import Anatomy
from armillary.anatomy.other_samples import OTHER, part_of
from armillary.anatomy.samples import DISTINCT, sample_config
from armillary.anatomy.similar_samples import WHOLE
from armillary.anatomy.source import describe
from armillary.observe.verified import Record, SampleCheck
from armillary.terminal.anatomy import logits, position, runs, sees

BEGINNING = """\
# The families known from the inside

<!-- Made by `armillary doctor --markdown > docs/families.md`, from the record that `armillary doctor --verify --record
src/armillary/observe/verified.json` writes; change src/armillary/anatomy/families instead. -->

A family is known from the inside if an adapter declares where its weights per head are and how its logits are computed
(`src/armillary/anatomy/families`; CONTRIBUTING.md says how to add one). Every row below is a small random model of that
family, run with and without the tap:

- **bits**: the model's outputs are the same, bit for bit;
- **a v**: attention times v against what the layer computed;
- **logits**: logits rebuilt from the weights and the attention input against those that the tap saw;
- **terms**: the terms of mean, position and content of that input, summed, against the same logits;
- **shares**: how far the shares of these terms are from adding to 1.

The numbers are the largest relative error over the layers. `armillary doctor --verify` measures them again,
`armillary inspect MODEL --verify` does so for your model. Blocks with linear attention, convolutions or state spaces
are named and left out; layers are then the blocks with attention, numbered in order. Any other family that uses
transformers' attention interface is tapped and scanned too, without what needs the weights per head, and says so.

Of an encoder-decoder the encoder is described, scanned and tapped unless its decoder is asked for (`part="decoder"`),
or the decoder's cross-attention (`part="cross"`), whose keys are the encoder's positions. Image encoders and
cross-attention are looked at with `armillary observe` (`armillary.probe.observed.observed_heads`); a scan reads text.
"""

TITLE = "| family | layers | position in attention | logits | bits | a v | logits | terms | shares |"
RULE = "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"


def families_page(record: Record) -> str:
    """The page as Markdown."""
    whole = {f"{family}/{outer}" for family, models in WHOLE.items() for outer in models}
    passed = sum(check.passed for check in record.samples.values())
    families = {name.split("/")[0] for name in record.samples}
    versions = ", ".join(f"{name} {record.versions[name]}" for name in ("transformers", "torch"))
    groups = {
        "Each with attention of its own": [name for name in record.samples if name in DISTINCT],
        "Like one of these, with other names or settings": [
            name for name in record.samples if name not in DISTINCT and name not in whole and name not in OTHER
        ],
        "Text parts of models for text and images": [name for name in record.samples if name in whole],
        "Encoder-decoders and image encoders": [name for name in record.samples if name in OTHER],
    }
    parts = [
        BEGINNING,
        f"{len(families)} families, {len(record.samples)} models; {passed} of them verified with {versions}.\n",
    ]
    for title, names in groups.items():
        parts.append(
            "\n".join([f"## {title}\n", TITLE, RULE, *(_row(name, record.samples[name]) for name in names), ""])
        )
    return "\n".join(parts)


def _row(name: str, check: SampleCheck) -> str:
    anatomy = describe(sample_config(name), part=part_of(name))
    family, _, variant = name.partition("/")
    outer = variant in WHOLE.get(family, {})
    shown = f"{variant} (text: {family})" if outer else f"{family}, {variant.replace('-', ' ')}" if variant else family
    errors = (check.output_error, check.logit_error, check.constituent_error, check.share_error)
    cells = (
        shown,
        _kinds(anatomy, [sees(layer) for layer in anatomy.layers]) + _left_out(anatomy),
        _kinds(anatomy, [position(layer) for layer in anatomy.layers]) + _added(anatomy),
        _kinds(anatomy, [logits(layer) for layer in anatomy.layers]),
        "same" if check.identical else "DIFFERENT",
        *("" if error is None else f"{error:.0e}" for error in errors),
    )
    return f"| {' | '.join(cells)} |"


def _kinds(anatomy: Anatomy, words: list[str]) -> str:
    """What is said of the layers, once for every kind of layer."""
    return "; ".join(dict.fromkeys(words[first] for first, _ in runs(anatomy.layers)))


def _added(anatomy: Anatomy) -> str:
    return "" if anatomy.positions_added == "none" else f" ({anatomy.positions_added} positions are added)"


def _left_out(anatomy: Anatomy) -> str:
    kinds = dict.fromkeys(entry.partition(": ")[2].replace("_", " ") for entry in anatomy.skipped)
    return f"; blocks with {' or '.join(kinds)} are left out" if kinds else ""
