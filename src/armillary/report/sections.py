"""The sections of one atlas's report: the results of each lens, or a sentence that says why there are none."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from armillary.atlas.columns import REPORT_SETS, in_set
from armillary.errors import ArmillaryError
from armillary.figures import gaussian as gaussian_figures
from armillary.figures import localization as localization_figures
from armillary.figures import rotary as rotary_figures
from armillary.figures import spectral as spectral_figures
from armillary.lenses import gaussian as gaussian_lens
from armillary.lenses import localization as localization_lens
from armillary.lenses import rotary as rotary_lens
from armillary.lenses.kinds import LayerKind
from armillary.lenses.labels import agreement_table
from armillary.lenses.rotary import RecommendedP
from armillary.report import pictures
from armillary.report.anatomy import anatomy
from armillary.report.causes import causes, circuit
from armillary.report.page import Block, Grid, HeadMap, Pairs, Picture, Section, Words
from armillary.report.sentences import known

if TYPE_CHECKING:
    from armillary.atlas.atlas import Atlas

MOST_POINTS = 3000
"""A scatter with more points shows every n-th."""


def sections(atlas: "Atlas") -> list[Section]:
    """All of them, in order."""
    makers: tuple[tuple[str, str, Callable[[Atlas], list[Block]]], ...] = (
        ("anatomy", "Anatomy", anatomy),
        ("layers", "Layers", layers),
        ("heads", "Heads", heads),
        ("causes", "Which heads matter", causes),
        ("circuits", "Circuits", circuit),
        ("agreement", "Do the lenses agree?", agreement),
        ("spectra", "Spectra", spectra),
        ("rotary", "Rotary frequencies", rotary),
        ("localization", "Localization", localization),
        ("gaussian", "Gaussian fit", gaussian),
        ("provenance", "Provenance", provenance),
    )
    report_sections = []
    for name, title, make in makers:
        try:
            blocks = make(atlas)
        except ArmillaryError as error:  # the atlas lacks something: the message says what, and how to get it
            blocks = [Words(sentence(str(error)))]
        report_sections.append(Section(name, title, blocks))
    return report_sections


def sentence(text: str) -> str:
    """With a capital letter and a full stop."""
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def layers(atlas: "Atlas") -> list[Block]:
    if atlas.kind == "weights":
        raise ArmillaryError(
            "this atlas was made from weights alone and has no residual stream", advice="scan the model"
        )
    table = atlas.layers
    if not known(table, "pos_share"):
        raise ArmillaryError("this atlas has no positions", advice="scan with the stream 'positions'")
    return [
        Picture(
            pictures.layer_shares(table),
            "The variance of each layer is split into position, sequence and rest; energy near 1 means that the "
            "positional vectors vary smoothly with position.",
        ),
        _grid("layers", table, "layers", "Layers of the residual stream, from the embeddings (0) to the last block."),
    ]


def heads(atlas: "Atlas") -> list[Block]:
    table = filled(atlas.heads)
    sets: dict[str, list[str]] = {name: in_set("heads", name, table.columns) for name in REPORT_SETS}
    if atlas.kind == "weights":
        sets = {"spectra": sets["spectra"], **sets}
    sets = {name: columns for name, columns in sets.items() if columns}
    rest = [str(column) for column in table.columns if column not in ("layer", "head")]
    grid = Grid("heads", table, "heads", "Every head. Open one for its dossier.", {**sets, "all": rest}, filters=True)
    return [HeadMap("Layers down, heads across. Click a head to open its dossier."), grid]


def agreement(atlas: "Atlas") -> list[Block]:
    table = agreement_table(atlas)
    if table.empty:
        raise ArmillaryError("this atlas has too few measures for its lenses to be compared")
    right = int((np.sign(table["correlation"]) == np.where(table["expected"] == "+", 1, -1)).sum())
    against = table[table["verdict"] == "contradicts"]
    named = "; ".join(f"{a} and {b}" for a, b in zip(against["a"], against["b"], strict=True))
    exclusions = f"the intervals of {len(against)} exclude it ({named})" if len(against) else "no interval excludes it"
    return [
        Words(
            f"Rank correlations over heads between measures of different lenses that should agree: {right} of "
            f"{len(table)} have the expected sign, and {exclusions}. The 95 % intervals assume independent heads."
        ),
        Picture(
            pictures.agreement(table),
            "Blue: the whole interval has the expected sign; hollow: it includes zero; red crosses: it "
            "excludes the expected sign.",
        ),
        Grid("agreement", table, "agreement", "Rank correlations between lenses."),
    ]


def spectra(atlas: "Atlas") -> list[Block]:
    if not atlas.has("spectral"):
        missing = atlas.anatomy.missing
        raise ArmillaryError(missing or "this atlas has no spectra: `armillary weights` writes them")
    blocks: list[Block] = [
        Picture(
            spectral_figures.head_maps(atlas.heads),
            "From the weights alone. Click a head to open its dossier.",
            opens=True,
        ),
        Picture(pictures.median_spectra(atlas.group("spectral")), "A steep line: few directions dominate."),
    ]
    if atlas.has("tables/matrices"):
        caption = "How much energy of each matrix is in outliers, and how far its spectrum is from a random one."
        blocks.append(Picture(spectral_figures.outliers_by_layer(atlas.matrices), caption))
        blocks.append(_grid("matrices", atlas.matrices, "matrices", "Every matrix against a random one of its shape."))
    return blocks


def rotary(atlas: "Atlas") -> list[Block]:
    table = rotary_lens.frequency_table(atlas)
    bands = rotary_lens.bands(atlas)
    recommended = rotary_lens.recommended_by_kind(atlas)
    blocks: list[Block] = [Words(_recommended(kind, best)) for kind, best in recommended]
    blocks.append(
        Picture(
            pictures.truncation(rotary_lens.costs_by_kind(atlas, [kind for kind, _ in recommended])),
            "The dotted line is 1 %. Cross terms between frequencies are left out.",
        )
    )
    caption = "Mean norm of each frequency's part of q, k and v, and its share of the logits; mean over heads."
    blocks += [Picture(figure, caption) for figure in rotary_figures.frequencies_by_kind(table)]
    if bands.empty:
        return [*blocks, Words("No head has a frequency with more than three times its median norm.")]
    shown = f"the {MOST_BANDS} strongest of {len(bands)}" if len(bands) > MOST_BANDS else "all"
    caption = f"Frequencies with at least three times a head's median norm: {shown}."
    return [*blocks, _grid("bands", bands.head(MOST_BANDS), "bands", caption)]


def _recommended(kind: LayerKind, best: RecommendedP) -> str:
    where = "" if kind.alone else f"In the {kind.name}: "
    text = (
        f"if only the {best.kept} fastest of {best.frequencies} frequencies rotated (p = {best.p:.2f}), the "
        f"logits would change by {100 * best.cost:.1f} % of their variance, mean over heads; head "
        f"{best.worst_head} would change most ({100 * best.worst_cost:.1f} %)."
    )
    return where + text if where else sentence(text)


MOST_BANDS = 200


def localization(atlas: "Atlas") -> list[Block]:
    if not known(atlas.heads, "regime"):
        missing = atlas.anatomy.missing
        raise ArmillaryError(missing or "this atlas has no spectra of the weights, from which regimes follow")
    caption = (
        "Every head by the mean and the scale of the eigenvalues of W_q W_k'; outside the dotted lines attention "
        "localizes."
    )
    blocks: list[Block] = [Words(localization_lens.EFFECTIVE)] if localization_lens.is_effective(atlas) else []
    blocks.append(Picture(localization_figures.regime_map(atlas.heads), caption))
    try:
        table = localization_lens.propagation_table(atlas)
    except ArmillaryError as error:
        return [*blocks, Words(sentence(str(error)))]
    if table["observed"].notna().any():
        caption = "How often keys at each position propagate a signal, mean over the heads of a layer."
        blocks.append(Picture(localization_figures.propagation_curves(table), caption))
        fit = localization_lens.fit_sentence(atlas)
        blocks += [Words(fit)] if fit else []
    else:
        blocks.append(Words("This model is bidirectional; signal propagation is only defined for causal models."))
    summary = localization_lens.layer_table(atlas)
    return [*blocks, _grid("localization", summary, "localization", "Means over the heads of each layer.")]


def gaussian(atlas: "Atlas") -> list[Block]:
    table = gaussian_lens.layer_table(atlas)
    blocks: list[Block] = []
    if any(str(column).removeprefix("mi_").isdecimal() for column in table.columns):
        caption = "Mutual information of the attention inputs of two tokens, on the leading components."
        blocks.append(Picture(gaussian_figures.information_by_lag(table), caption))
    if atlas.has("pairs"):
        predictions = gaussian_lens.logit_predictions(atlas)
        step = -(-len(predictions) // MOST_POINTS)
        caption = "Every head at every distance" + (f" (each {step}th point)" if step > 1 else "")
        blocks.append(
            Picture(
                gaussian_figures.predicted_variances(predictions[::step]), caption + "; exact ones lie on the line."
            )
        )
    else:
        blocks.append(
            Words("Logits by distance were not measured: scan with the stream 'lags' for the predicted variances.")
        )
    return [*blocks, _grid("gaussian", table, "gaussian", "The attention input of each layer as a Gaussian.")]


def provenance(atlas: "Atlas") -> list[Block]:
    return [Pairs(provenance_rows(atlas))]


def provenance_rows(atlas: "Atlas") -> dict[str, str]:
    """Where the numbers come from, as text."""
    attributes = atlas.attrs
    rows: dict[str, Any] = {f"model {key}": value for key, value in attributes["model"].items()}
    rows |= {f"corpus {key}": value for key, value in attributes["corpus"].items()}
    for number, read in enumerate(attributes.get("text", {}).get("sources", []), 1):
        rows[f"text read, source {number}"] = _what_was_read(read)
    rows |= {f"loss {key.replace('_', ' ')}": value for key, value in (attributes.get("loss") or {}).items()}
    rows |= {key.replace("_", " "): value for key, value in attributes["settings"].items()}
    rows |= {f"version of {key}": value for key, value in attributes["versions"].items()}
    rows["finished"] = attributes.get("finished", "")
    rows["sequences skipped"] = attributes.get("skipped_blocks") or "none"
    rows["notes"] = attributes.get("notes") or "none"
    return {key: _written(value) for key, value in rows.items()}


def _what_was_read(record: dict[str, Any]) -> str:
    if not record["read"]:
        return f"{record['source']}: not read"
    files = f"{record['files_read']} file{'' if record['files_read'] == 1 else 's'}"
    return f"{record['source']}: {record['bytes']} bytes of {files}, SHA-256 {record['sha256']}"


def _written(value: Any) -> str:
    if isinstance(value, list):
        return "; ".join(map(str, value)) if value else "none"
    return "yes" if value is True else "no" if value is False else "not given" if value is None else str(value)


def filled(table: pd.DataFrame) -> pd.DataFrame:
    """Without empty columns."""
    return table.dropna(axis=1, how="all")


def _grid(name: str, table: pd.DataFrame, meaning: str, caption: str) -> Grid:
    table = filled(table)
    columns = [str(column) for column in table.columns if column != "layer"]
    usual = in_set(meaning, "usual", columns)
    return Grid(
        name, table, meaning, caption, {"usual": usual, "all": columns} if 0 < len(usual) < len(columns) else {}
    )
