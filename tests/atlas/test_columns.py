"""Every column is declared once, with the lens that fills it, and every declaration is filled."""

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from latex2mathml.converter import convert
from typer.testing import CliRunner

import armillary as arm
from armillary.anatomy.samples import sample_model
from armillary.atlas.atlas import Atlas
from armillary.atlas.columns import TABLES, Column, Family, contract, declared, definition, find, in_order, in_set
from armillary.atlas.columns.reference import reference_page
from armillary.atlas.compare import compare
from armillary.atlas.series import series_changes, series_labels, series_layers
from armillary.atlas.timelines.store import write_timeline
from armillary.atlas.verdicts import keep_verdicts
from armillary.cli import app
from armillary.lenses import (
    constituents,
    gaussian,
    heads,
    kinds,
    labels,
    localization,
    positional,
    rotary,
    spectral,
    tables,
)
from armillary.observe.verification import some_images
from armillary.papers import ledger
from armillary.probe.label_checks import check_heads, sampled_heads
from armillary.probe.observed import observed_heads
from armillary.report.sentences import changed_labels
from conftest import FAMILY_TOKENS, Atlases
from program import complaint
from timelines import ABOUT, story, story_rows

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference.md"
runner = CliRunner()

CONTRACT = {
    "layers": (
        "layer, pos_share, ctx_share, resid_share, stable_rank, screenot_rank, relative_norm, dct_energy_1, "
        "dct_energy_3, dct_energy_5, dct_energy_10, incoherence_mean, incoherence_max, intra_similarity, "
        "inter_similarity, mean_norm"
    ),
    "heads": (
        "layer, head, kv_head, label, entropy, entropy_norm, self_mass, prev_mass, first_mass, mean_distance, "
        "share_mean_mean, share_mean_pos, share_mean_cvec, share_pos_mean, share_pos_pos, share_pos_cvec, "
        "share_cvec_mean, share_cvec_pos, share_cvec_cvec, share_bias, positional_share, content_share, mixed_share, "
        "qk_trace, qk_fro, qk_spec, qk_stable_rank, qk_align_z, xi, eta, regime, high_freq_share, induction_score"
    ),
}
"""What scripts that read the tables rely on."""

FAMILIES = ("llama", "gpt2", "bert", "bloom", "gpt_neox", "gpt_oss", "qwen3", "gemma3_text")

ALL = [column for table in TABLES for column in declared(table)]


# declarations -----------------------------------------------------------------------------------------------------


def test_the_contract_is_kept() -> None:
    assert {name: ", ".join(contract(name)) for name in CONTRACT} == CONTRACT
    assert not any(contract(name) for name in TABLES if name not in CONTRACT)


def test_a_name_is_declared_once_in_a_table_and_under_its_own_table() -> None:
    for name in TABLES:
        names = [column.name for column in declared(name)]
        assert len(names) == len(set(names)), name
        assert {column.table for column in declared(name)} == {name}


@pytest.mark.parametrize("column", ALL, ids=lambda column: f"{column.table}-{column.name}")
def test_declarations_are_sentences_formulas_and_places_that_exist(column: Column) -> None:
    assert column.words.endswith(".")
    assert not column.formula or convert(column.formula).startswith("<math")
    assert find_spec(f"armillary.{column.lens}") is not None
    assert not column.explained or column.explained in ledger.recorded()


def test_families_of_columns_are_known_by_their_pattern() -> None:
    column = definition("gaussian", "mi_32")
    assert column is not None
    assert "32 tokens apart" in column.words
    assert definition("gaussian", "mi_x") is None
    assert definition("heads", "mi_32") is None
    assert in_order("gaussian", ["nonsense", "mi_floor", "mi_2", "mi_16", "layer"]) == [
        *("layer", "mi_2", "mi_16", "mi_floor", "nonsense"),
    ]
    assert in_set("gaussian", "usual", ["kurtosis", "mi_2", "mi_16", "layer"]) == ["layer", "mi_16", "kurtosis"]


def test_nothing_slow_is_imported() -> None:
    code = "import sys, armillary.atlas.columns; print({'torch', 'numpy', 'pandas', 'zarr'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"


# what lenses fill -------------------------------------------------------------------------------------------------

Filled = dict[tuple[str, str], set[str]]
"""By table and lens: the columns that are not empty."""


def filled_by_lenses(atlas: Atlas) -> Iterable[tuple[str, str, pd.DataFrame]]:
    """Table, lens and what the lens returned."""
    others = []
    for lens in (heads, labels, constituents, spectral, localization, rotary, gaussian, kinds):
        others.append(lens.head_columns(atlas))
        yield "heads", lens.__name__, others[-1]
    yield "heads", labels.__name__, labels.label_columns(atlas, pd.concat(others, axis=1))
    yield "layers", positional.__name__, positional.layer_columns(atlas)
    if atlas.has("matrices"):
        yield "matrices", spectral.__name__, spectral.matrix_table(atlas)
    if atlas.settings["streams"]:
        yield "localization", localization.__name__, localization.layer_table(atlas)
        yield "gaussian", gaussian.__name__, gaussian.layer_table(atlas)
        yield "kinds", kinds.__name__, kinds.kind_table(atlas)
        yield "agreement", labels.__name__, labels.agreement_table(atlas)
        if rotary.has_frequencies(atlas):
            yield "bands", rotary.__name__, rotary.bands(atlas)


def filled_elsewhere(place: Path) -> Iterable[tuple[str, str, pd.DataFrame]]:
    """Tables that no lens fills: checks of labels, and changes from one atlas to another."""
    streams = ("positions", "attention", "constituents", "chunks", "patterns")
    settings: dict[str, Any] = dict(streams=streams, length=48, sequences=8)
    atlas = arm.scan(arm.bundled("llama"), "builtin:prose", out=place / "checked", **settings)
    other = arm.scan(arm.bundled("llama"), "builtin:code", out=place / "other", **settings)
    checked = check_heads(arm.load(arm.bundled("llama")), atlas, sampled_heads(atlas, 12), sequences=4)
    yield "verify", "armillary.probe.label_checks", checked
    keep_verdicts(atlas, checked)
    yield "heads", "armillary.atlas.verdicts", arm.open_atlas(place / "checked").heads[["check"]]
    changes = compare(atlas, other)
    for table in (changes.heads, changes.layers):
        yield "changes", "armillary.atlas.compare", table
    changed = changed_labels(atlas.heads, other.heads)
    yield "changes", "armillary.report.sentences", changed[["before", "after"]]
    ids = torch.randint(5, 99, (2, 9), generator=torch.Generator().manual_seed(0))
    for part in ("", "cross"):
        bart = sample_model(f"bart/{part}" if part else "bart")
        table = observed_heads(bart, part=part, input_ids=ids, decoder_input_ids=ids[:, :5])
        yield "observed", "armillary.probe.observed", table
    vit = sample_model("vit")
    images: dict[str, Any] = some_images(vit, arm.describe(vit))
    yield "observed", "armillary.probe.observed", observed_heads(vit, **images)
    for name, make in (("series", series_changes), ("series_labels", series_labels), ("series_layers", series_layers)):
        yield name, "armillary.atlas.series", make([atlas, other, atlas])
    yield from filled_by_timelines(place)


def filled_by_timelines(place: Path) -> Iterable[tuple[str, str, pd.DataFrame]]:
    """The tables of timelines, and of two compared."""
    rows = [row.under(same_as="earlier", logged_loss=1.0, held_out_loss=2.0) for row in story_rows()]
    timelines = [story(place / "first"), story(place / "second", later=1)]
    write_timeline(place / "first", rows, ABOUT)
    yield "checkpoints", "armillary.atlas.timelines.timeline", arm.open_timeline(place / "first").checkpoints
    yield "births", "armillary.atlas.timelines.births", timelines[0].births
    yield "steps", "armillary.atlas.timelines.births", timelines[0].changes()
    compared = arm.compare(*timelines)
    yield "first_births", "armillary.atlas.timelines.compare", compared.first_births
    yield "births_compared", "armillary.atlas.timelines.compare", compared.births
    yield "curves_compared", "armillary.atlas.timelines.compare", compared.curves


@pytest.fixture(scope="module")
def returned(atlases: Atlases, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str, pd.DataFrame]]:
    place = tmp_path_factory.mktemp("columns")
    scans = [atlases.family(name) for name in FAMILIES]
    scans.append(atlases.trained("llama"))
    scans.append(arm.weigh(arm.bundled("llama"), out=place / "weights", against="random"))
    every = [part for atlas in scans for part in filled_by_lenses(atlas)]
    return [*every, *filled_elsewhere(place)]


def test_what_a_lens_returns_is_declared_with_that_lens(returned: list[tuple[str, str, pd.DataFrame]]) -> None:
    for table, lens, frame in returned:
        for name in frame.columns:
            column = definition(table, name)
            assert column is not None, f"{lens} fills {table}.{name}, which is not declared"
            assert f"armillary.{column.lens}" == lens, f"{table}.{name}"


def template_name(table: str, name: str) -> str:
    """The name of a column, or of the family that it belongs to: mi_2 is one of mi_K."""
    families = (family for family in TABLES[table].columns if isinstance(family, Family))
    return next((family.template.name for family in families if family.column(name)), name)


def test_what_is_declared_is_filled_by_its_lens(returned: list[tuple[str, str, pd.DataFrame]]) -> None:
    filled: Filled = defaultdict(set)
    for table, lens, frame in returned:
        filled[table, lens] |= {template_name(table, name) for name in frame.columns if frame[name].notna().any()}
    empty = [
        f"{column.table}.{column.name}"
        for column in ALL
        if column.name not in filled[column.table, f"armillary.{column.lens}"]
    ]
    assert empty == []


def test_kinds_are_what_the_columns_hold(returned: list[tuple[str, str, pd.DataFrame]]) -> None:
    is_kind = {
        "number": pd.api.types.is_number,
        "whole": lambda value: float(value).is_integer(),
        "word": lambda value: isinstance(value, str),
        "yes-no": lambda value: value in (True, False),
    }
    for table, _, frame in returned:
        for name in frame.columns:
            column = definition(table, name)
            assert column is not None
            assert all(map(is_kind[column.kind], frame[name].dropna())), f"{table}.{name}"


def test_tables_have_the_contract_first_and_missing_words_are_empty() -> None:
    atlas = arm.scan(arm.bundled("llama"), FAMILY_TOKENS, streams=("attention",))
    made = tables.head_table(atlas)
    assert tuple(made.columns[: len(contract("heads"))]) == contract("heads")
    assert set(made["label"]) == {""}
    assert made["positional_share"].isna().all()


# what is shown ----------------------------------------------------------------------------------------------------


def test_the_command_prints_all_columns_one_table_or_one_column_in_full() -> None:
    rows = json.loads(runner.invoke(app, ["columns", "--json"]).output)
    assert [(row["table"], row["name"]) for row in rows] == [(column.table, column.name) for column in ALL]
    shown = runner.invoke(app, ["columns", "--table", "layers"], env={"COLUMNS": "200"}).output
    assert "pos_share" in shown
    assert "qk_trace" not in shown
    one = runner.invoke(app, ["columns", "low_frequency_bound"]).output
    for words in ("low_frequency_bound (table layers)", "armillary.lenses.positional", "armillary theory S9"):
        assert words in one
    assert runner.invoke(app, ["columns", "rank_one_distance"]).output.count("(table ") == 4


def test_a_name_that_does_not_exist_is_an_error_that_names_near_ones() -> None:
    assert "near it are entropy," in complaint("columns", "entrpy")
    assert "`armillary columns` lists them" in complaint("columns", "xyzzy")
    assert "there are heads, layers" in complaint("columns", "--table", "head")
    assert "in the table layers" in complaint("columns", "qk_trace", "--table", "layers")
    with pytest.raises(arm.ArmillaryError) as error:
        find("entrpy")
    assert "entropy" in error.value.expected


def test_the_function_gives_the_same_as_a_frame() -> None:
    frame = arm.columns()
    assert frame["name"].to_list() == [column.name for column in ALL]
    assert arm.columns(table="layers")["table"].unique().tolist() == ["layers"]
    assert arm.columns("entropy")["table"].to_list() == ["heads", "localization", "gaussian"]


def test_the_reference_page_is_what_the_declarations_give() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference_page(), "armillary columns --markdown > docs/reference.md"
    assert runner.invoke(app, ["columns", "--markdown"]).output == reference_page()
    for line in reference_page().splitlines():
        assert not line.startswith("|") or line.replace(r"\|", "").count("|") == 6, line
