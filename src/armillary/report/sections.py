"""The sections of one atlas's report: what each lens found, or a sentence that says why there is nothing."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from armillary.errors import ArmillaryError
from armillary.figures import gaussian as gaussian_figures
from armillary.figures import localization as localization_figures
from armillary.figures import rotary as rotary_figures
from armillary.figures import spectral as spectral_figures
from armillary.lenses import gaussian as gaussian_lens
from armillary.lenses import localization as localization_lens
from armillary.lenses import rotary as rotary_lens
from armillary.lenses.kinds import LayerKind
from armillary.lenses.rotary import RecommendedP
from armillary.report import pictures
from armillary.report.anatomy import anatomy
from armillary.report.page import Block, Grid, HeadMap, Pairs, Picture, Section, Words
from armillary.report.sentences import known
from armillary.tables import SHOWN

if TYPE_CHECKING:
    from armillary.atlas import Atlas

MOST_POINTS = 3000
"""A scatter of more points than these shows every n-th."""

SETS: dict[str, tuple[str, ...]] = {
    "overview": (
        *("label", "also", "significant", "check", "entropy_norm", "self_mass", "prev_mass", "first_mass"),
        "induction_score",
        *("mean_distance", "positional_share", "content_share", "high_freq_share", "regime"),
    ),
    "attention": (
        *("label", "also", "rests_on", "first_label", "second_label", "focus", "entropy", "entropy_norm"),
        *("mixed_tokens", "self_mass"),
        *("prev_mass", "next_mass", "near_mass", "first_mass", "sink_mass", "mean_distance", "induction_score"),
        *("duplicate_score", "rank_one_distance"),
    ),
    "constituents": (
        *("share_mean_mean", "share_mean_pos", "share_pos_mean", "share_pos_pos", "share_bias", "share_mean_cvec"),
        *("share_pos_cvec", "share_cvec_mean", "share_cvec_pos", "share_cvec_cvec", "positional_share"),
        *("content_share", "mixed_share", "preference_share", "argmax_ratio", "pwp_energy_10", "qk_energy_10"),
        "constituent_error",
    ),
    "spectra": (
        *("qk_trace", "qk_fro", "qk_spec", "qk_stable_rank", "qk_stable_rank_random", "qk_entropy_rank"),
        *("qk_symmetric_share", "qk_align_z", "qk_effective_trace", "qk_effective_fro", "qk_effective_spec"),
        *("qk_effective_stable_rank", "qk_effective_symmetric_share", "qk_effective_align_z", "qk_norm_scale"),
        *("ov_trace", "ov_fro", "ov_spec", "ov_stable_rank", "ov_stable_rank_random"),
        *("ov_entropy_rank", "ov_symmetric_share"),
    ),
    "localization": (
        *("regime", "xi", "eta", "r", "rho_fit", "rho_chance", "rho_error", "regime_data", "xi_data", "eta_data"),
        *("r_data", "rho_fit_data", "rho_chance_data", "rho_error_data", "entropy", "least_entropy"),
    ),
    "rotary": ("high_freq_share", "still_share", "self_cosine", "previous_cosine", "rotation_change"),
    "logits": (*("logit_mean", "logit_variance", "logit_skewness", "logit_kurtosis", "gaussian_ratio"),),
}
"""Choices of columns of the heads table."""


def sections(atlas: "Atlas") -> list[Section]:
    """All of them, in order."""
    makers: tuple[tuple[str, str, Callable[[Atlas], list[Block]]], ...] = (
        ("anatomy", "Anatomy", anatomy),
        ("layers", "Layers", layers),
        ("heads", "Heads", heads),
        ("agreement", "Do the lenses agree?", agreement),
        ("spectra", "Spectra", spectra),
        ("rotary", "Rotary frequencies", rotary),
        ("localization", "Localization", localization),
        ("gaussian", "Gaussian fit", gaussian),
        ("provenance", "Provenance", provenance),
    )
    found = []
    for name, title, make in makers:
        try:
            blocks = make(atlas)
        except ArmillaryError as error:  # the atlas lacks something: the sentence says what, and how to get it
            blocks = [Words(sentence(str(error)))]
        found.append(Section(name, title, blocks))
    return found


def sentence(text: str) -> str:
    """With a capital letter and a full stop."""
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def layers(atlas: "Atlas") -> list[Block]:
    if not atlas.settings["streams"]:
        raise ArmillaryError("this atlas was made from weights alone and has no residual stream: scan the model")
    table = atlas.layers
    if not known(table, "pos_share"):
        raise ArmillaryError("this atlas has no positions: scan with the stream 'positions'")
    return [
        Picture(
            pictures.layer_shares(table),
            "Position, sequence and the rest share the variance of each layer; energy near 1 means that the positional "
            "vectors vary smoothly with position.",
        ),
        _grid("layers", table, "layers", "Layers of the residual stream, from the embeddings (0) to the last block."),
    ]


def heads(atlas: "Atlas") -> list[Block]:
    table = filled(atlas.heads)
    sets = {name: [c for c in columns if c in table] for name, columns in SETS.items()}
    if not atlas.settings["streams"]:
        sets = {"spectra": sets["spectra"], **sets}
    sets = {name: columns for name, columns in sets.items() if columns}
    rest = [str(column) for column in table.columns if column not in ("layer", "head")]
    grid = Grid("heads", table, "heads", "Every head. Open one for its dossier.", {**sets, "all": rest}, filters=True)
    return [HeadMap("Layers downwards, heads across. Click a head to open its dossier."), grid]


def agreement(atlas: "Atlas") -> list[Block]:
    from armillary.lenses.labels import agreement_table

    table = agreement_table(atlas)
    if table.empty:
        raise ArmillaryError("this atlas has too few measures for its lenses to be compared")
    right = int((np.sign(table["correlation"]) == np.where(table["expected"] == "+", 1, -1)).sum())
    against = table[table["verdict"] == "contradicts"]
    named = "; ".join(f"{a} and {b}" for a, b in zip(against["a"], against["b"], strict=True))
    said = f"the intervals of {len(against)} exclude it ({named})" if len(against) else "no interval excludes it"
    return [
        Words(
            f"Measures of different lenses that should tell the same story, ranked over heads: {right} of {len(table)} "
            f"correlations have the expected sign, and {said}. Intervals are 95 %, as if heads were independent."
        ),
        Picture(
            pictures.agreement(table),
            "Blue: the interval has the expected sign throughout; hollow: it leaves the sign open; red crosses: it "
            "excludes the expected sign.",
        ),
        Grid("agreement", table, "agreement", "Rank correlations between lenses."),
    ]


def spectra(atlas: "Atlas") -> list[Block]:
    if not atlas.has("spectral"):
        missing = atlas.attrs["anatomy"]["missing"]
        raise ArmillaryError(missing or "this atlas has no spectra: `armillary weights MODEL --out DIR` writes them")
    blocks: list[Block] = [
        Picture(
            spectral_figures.head_maps(atlas.heads),
            "From the weights alone. Click a head to open its dossier.",
            opens=True,
        ),
        Picture(pictures.median_spectra(atlas.group("spectral")), "Steep lines: few directions do most of the work."),
    ]
    if atlas.has("tables/matrices"):
        caption = "How much of each matrix stands out of noise, and how far its spectrum is from that of noise."
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
            pictures.truncation(rotary_lens.truncation_costs(atlas), [kind for kind, _ in recommended]),
            "The dotted line is 1 %. Cross terms between frequencies are left out.",
        )
    )
    said = "Mean length of each frequency's part of q, k and v, and its share of the logits; mean over heads."
    blocks += [Picture(figure, said) for figure in rotary_figures.frequencies_by_kind(table)]
    if bands.empty:
        return [*blocks, Words("No head spends more than three times its median norm on a single frequency.")]
    shown = f"the {MOST_BANDS} strongest of {len(bands)}" if len(bands) > MOST_BANDS else "all of them"
    caption = f"Frequencies on which heads spend at least three times their median norm: {shown}."
    return [*blocks, _grid("bands", bands.head(MOST_BANDS), "bands", caption)]


def _recommended(kind: LayerKind, best: RecommendedP) -> str:
    where = "" if kind.alone else f"In the {kind.name}: "
    text = (
        f"if only the {best.kept} fastest of {best.frequencies} frequencies turned (p = {best.p:.2f}), the "
        f"logits would change by {100 * best.cost:.1f} % of their variance, mean over heads; head "
        f"{best.worst_head} would lose most ({100 * best.worst_cost:.1f} %)."
    )
    return where + text if where else sentence(text)


MOST_BANDS = 200


def localization(atlas: "Atlas") -> list[Block]:
    if not known(atlas.heads, "regime"):
        missing = atlas.attrs["anatomy"]["missing"]
        raise ArmillaryError(missing or "this atlas has no spectra of the weights, from which regimes follow")
    caption = (
        "Every head by the mean and the scale of the eigenvalues of W_q W_k'; outside the dotted lines attention "
        "localises."
    )
    blocks: list[Block] = [Words(localization_lens.EFFECTIVE)] if localization_lens.is_effective(atlas) else []
    blocks.append(Picture(localization_figures.regime_map(atlas.heads), caption))
    try:
        table = localization_lens.propagation_table(atlas)
    except ArmillaryError as error:
        return [*blocks, Words(sentence(str(error)))]
    if table["observed"].notna().any():
        said = "How often keys at each place pass a signal, mean over the heads of a layer."
        blocks.append(Picture(localization_figures.propagation_curves(table), said))
        fit = localization_lens.fit_sentence(atlas)
        blocks += [Words(fit)] if fit else []
    else:
        blocks.append(Words("This model sees both sides; which keys pass a signal is only defined for causal ones."))
    summary = localization_lens.layer_table(atlas)
    return [*blocks, _grid("localization", summary, "localization", "Means over the heads of each layer.")]


def gaussian(atlas: "Atlas") -> list[Block]:
    table = gaussian_lens.layer_table(atlas)
    blocks: list[Block] = []
    if any(str(column).removeprefix("mi_").isdecimal() for column in table.columns):
        said = "Mutual information of the attention inputs of two tokens, on the leading components."
        blocks.append(Picture(gaussian_figures.information_by_lag(table), said))
    if atlas.has("pairs"):
        predictions = gaussian_lens.logit_predictions(atlas)
        step = -(-len(predictions) // MOST_POINTS)
        said = "Every head at every distance" + (f" (each {step}th point)" if step > 1 else "")
        blocks.append(
            Picture(gaussian_figures.predicted_variances(predictions[::step]), said + "; on the line is right.")
        )
    else:
        blocks.append(
            Words("Logits by distance were not kept: scan with the stream 'lags' for the predicted variances.")
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
    rows["blocks skipped"] = attributes.get("skipped_blocks") or "none"
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
    """Without columns that hold nothing."""
    return table.dropna(axis=1, how="all")


def _grid(name: str, table: pd.DataFrame, meaning: str, caption: str) -> Grid:
    table = filled(table)
    columns = [str(column) for column in table.columns if column != "layer"]
    usual = [column for column in SHOWN.get(meaning, ()) if column in columns]
    return Grid(
        name, table, meaning, caption, {"usual": usual, "all": columns} if 0 < len(usual) < len(columns) else {}
    )
