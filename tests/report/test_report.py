"""The report: sentences that are true of the tables, a page that works in a browser, and nothing in it but text."""

import base64
import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM
from typer.testing import CliRunner

import armillary as arm
from armillary import figures
from armillary.anatomy.samples import sample_model
from armillary.atlas.atlas import Atlas
from armillary.atlas.compare import compare
from armillary.atlas.manifest import write_manifest
from armillary.cli import app, main
from armillary.figures.head_map import LABEL_COLORS
from armillary.figures.policy import embedded
from armillary.lenses import localization, rotary
from armillary.lenses.kinds import LayerKind
from armillary.lenses.labels import LABELS
from armillary.lenses.rotary import RecommendedP
from armillary.report import page, report_html, sentences, write_report
from armillary.report.dossiers import coarse, dossiers, packed_logits
from armillary.streams.constituents import TERMS
from browser import PATIENCE, chromium, opened, violations, window
from conftest import FAMILY_TOKENS, Atlases

HOSTILE = '<img src=x onerror="window.hacked=1"></script><script>window.hacked=1</script><!--{{data}}'
NUMBER = re.compile(r"\u2212?\d+(?:\.\d+)?")


@pytest.fixture(scope="module")
def llama(atlases: Atlases) -> Atlas:
    return atlases(arm.bundled("llama"), length=32, sequences=24)


@pytest.fixture(scope="module")
def gpt2(atlases: Atlases) -> Atlas:
    return atlases(arm.bundled("gpt2"), length=32, sequences=24)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reports")


@pytest.fixture(scope="module")
def written(llama: Atlas, place: Path) -> Path:
    return write_report(llama.path.parent, out=place / "llama.html")


@pytest.fixture(scope="module")
def weighed(place: Path) -> Atlas:
    return arm.weigh(arm.bundled("llama"), out=place / "weights", against="random")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as running:
        yield running


def said(text: str) -> list[float]:
    """The numbers in a text, in order; 1.1 in 'head 1.1' is a name and counts as the number that it looks like."""
    return [float(number.replace("\u2212", "-")) for number in NUMBER.findall(text)]


def as_said(value: float | int | str, *, percent: bool = False, digits: int = 2) -> float:
    if isinstance(value, str | int):
        return float(value)
    return float(f"{100 * value:.0f}") if percent else float(f"{value:.{digits}f}")


def table_of(labels: list[str | None], per_layer: int) -> pd.DataFrame:
    layer, head = np.divmod(np.arange(len(labels)), per_layer)
    return pd.DataFrame({"layer": layer, "head": head, "label": pd.Series(labels, dtype="str")})


# sentences --------------------------------------------------------------------------------------------------------


class TestKinds:
    @settings(max_examples=80, deadline=None)
    @given(st.lists(st.sampled_from([*LABELS, None]), min_size=1, max_size=30), st.integers(1, 6))
    def test_every_number_is_true_of_the_labels(self, labels: list[str | None], per_layer: int) -> None:
        heads = table_of(labels, per_layer)
        text, facts = sentences.kinds(heads)
        if not any(labels):
            assert said(text) == [len(labels), heads["layer"].max() + 1]
            return
        counts = Counter(label for label in labels if label)
        whole = re.fullmatch(r"Of (\d+) heads? in (\d+) layers?, (.*)\.", text)
        assert whole is not None
        assert (int(whole[1]), int(whole[2])) == (len(labels), -(-len(labels) // per_layer))
        if len(counts) == 1 and None not in labels:
            assert whole[3] == f"all are {sentences.KINDS[next(iter(counts))]} heads"
            return
        words = {word: label for label, word in sentences.KINDS.items()}
        told = 0
        for n, kind, where in re.findall(r"(\d+) (?:is an? |are )?([\w-]+) heads? \((.*?)\)", whole[3]):
            mine = heads[heads["label"] == words[kind]]
            assert int(n) == counts[words[kind]] == len(mine)
            told += int(n)
            if len(mine) == 1:
                assert where == f"{mine['layer'].iloc[0]}.{mine['head'].iloc[0]}"
            else:
                assert {int(x) for x in said(where)} == {mine["layer"].min(), mine["layer"].max()}
        other = re.search(r"(\d+) of other kinds", text)
        none = re.search(r"(\d+) (?:has|have) no label", text)
        rest = sum(int(found[1]) for found in (other, none) if found)
        assert told + rest == len(labels)
        assert (int(none[1]) if none else 0) == labels.count(None)
        assert [as_said(fact) for fact in facts.values()] == said(text)

    def test_one_head_none_of_a_kind_and_ties(self) -> None:
        assert sentences.kinds(table_of(["content"], 1)).text == "Of 1 head in 1 layer, all are content heads."
        text = sentences.kinds(table_of(["induction", "previous", "self", "self"], 2)).text
        assert text.startswith("Of 4 heads in 2 layers, 2 are self heads (layer 1), 1 previous-token head (0.1) and")
        text = sentences.kinds(table_of(["induction", "previous"], 2)).text
        assert "1 is a previous-token head (0.1) and 1 induction head (0.0)" in text  # the order of the labels
        assert "1 is an induction head" in sentences.kinds(table_of(["induction", None], 2)).text

    def test_labels_that_random_heads_could_get_are_told(self) -> None:
        heads = table_of(["previous", "local", "broad", "mixed", "local"], 5)
        heads["significant"] = pd.Series([True, False, False, False, False], dtype="boolean")
        text, facts = sentences.kinds(heads)
        assert text.endswith("; 2 labels are not significant against random heads.")
        assert facts["unsure"] == 2
        assert "random" not in sentences.kinds(heads.assign(significant=True)).text
        alone = sentences.kinds(table_of(["self"], 1).assign(significant=False)).text
        assert alone == "Of 1 head in 1 layer, all are self heads; 1 label is not significant against random heads."

    def test_without_labels_attention_is_told(self, llama: Atlas) -> None:
        heads = llama.heads.assign(label=None, first_mass=[0.9] * 5 + [0.5] * 31)
        text, facts = sentences.kinds(heads)
        assert "to the first token in 5, " in text
        assert "no labels" in text
        assert facts["first_mass"] == 5
        assert facts.get("prev_mass", 0) == sum(value > 0.5 for value in heads["prev_mass"])
        bare = llama.heads[["layer", "head"]]
        assert (
            sentences.kinds(bare).text == "The model has 36 heads in 6 layers; this atlas does not have their labels."
        )


def drawn(figure: Any) -> Any:
    """The figure, which there is."""
    assert figure is not None
    return figure


class TestPosition:
    def check(self, heads: pd.DataFrame) -> str:
        text, facts = sentences.position(heads, ["rotary encoding"])
        mean = {
            name: float(np.mean([float(x) for x in heads[name]]))
            for name in map(str, heads)
            if name.startswith("share_")
        }
        vectors = mean["share_mean_pos"] + mean["share_pos_mean"] + mean["share_pos_pos"]
        bias = 0.0 if np.isnan(mean["share_bias"]) else mean["share_bias"]
        position = mean["share_mean_mean"] + vectors + bias
        parts = {"rotated mean": mean["share_mean_mean"], "positional vectors": vectors, "bias": bias}
        content = mean["share_cvec_cvec"]
        expected = {"positional": position, **{k: v for k, v in parts.items() if abs(v) >= 0.005}}
        expected |= {"content": content, "mixed": 1 - position - content}
        shown = [round(100 * value) for value in expected.values()]
        layers = {
            layer: float(np.mean([float(x) for x in heads["positional_share"][heads["layer"] == layer]]))
            for layer in sorted(set(map(int, heads["layer"])))
        }
        if len(layers) > 1 and len(set(layers.values())) > 1:
            most, least = max(layers, key=lambda at: layers[at]), min(layers, key=lambda at: layers[at])
            expected |= {"most layer": most, "most": layers[most], "least layer": least, "least": layers[least]}
            shown += [most, round(100 * layers[most]), least, round(100 * layers[least])]
        assert list(facts) == list(expected)
        assert [float(facts[name]) for name in expected] == pytest.approx([*expected.values()], abs=1e-9)
        assert said(text) == pytest.approx(shown, abs=1)  # a rounding of a half may go either way
        return text

    def test_on_rotary_and_on_learned_positions(self, llama: Atlas, gpt2: Atlas) -> None:
        assert "by the rotated mean" in self.check(llama.heads)
        text = self.check(gpt2.heads)
        assert "by positional vectors" in text
        assert "rotated" not in text  # a mean that is not rotated is constant along a row

    @settings(max_examples=25, deadline=None)
    @given(st.integers(0, 2**31), st.integers(1, 4), st.booleans())
    def test_on_any_table(self, seed: int, layers: int, biased: bool) -> None:
        rng = np.random.default_rng(seed)
        names = [f"share_{term}" for term in TERMS if term != "bias"]
        shares = rng.normal(size=(3 * layers, 10))
        shares[:, -1] = 0.0 if not biased else shares[:, -1]
        shares /= shares.sum(1, keepdims=True)
        shares = np.clip(shares, -3, 3)
        heads = pd.DataFrame(shares, columns=[*names, "share_bias"])
        heads["positional_share"] = heads[[n for n in names if "cvec" not in n]].sum(axis=1) + heads["share_bias"]
        heads["content_share"] = heads["share_cvec_cvec"]
        heads["mixed_share"] = 1 - heads["positional_share"] - heads["content_share"]
        if not biased:
            heads["share_bias"] = np.nan
        heads["layer"], heads["head"] = np.divmod(np.arange(len(heads)), 3)
        self.check(heads)

    def test_where_it_was_not_measured(self, llama: Atlas) -> None:
        heads = llama.heads.assign(positional_share=np.nan)
        text, facts = sentences.position(heads, ["rotary encoding"], "this atlas was made from weights alone")
        assert facts == {}
        assert "weights alone" in text
        assert text.endswith("its layers have rotary encoding.")


class TestStandsOut:
    def check(self, heads: pd.DataFrame, layers: pd.DataFrame, stopped: RecommendedP | None) -> str:
        kind = LayerKind(None, 1e4, "default", (0,))
        text, facts = sentences.stands_out(heads, layers, [(kind, stopped)] if stopped is not None else [])
        sinks = sum(float(value) > 0.5 for value in heads["first_mass"])
        expected: list[float] = [sinks] if sinks else []
        for column, percent in (("prev_mass", True), ("induction_score", False)):
            if column not in heads or heads[column].isna().all():
                continue
            values = [float(value) for value in heads[column]]
            top = np.nanmax(values)
            holders = [f"{a}.{b}" for a, b, v in zip(heads["layer"], heads["head"], values, strict=True) if v == top]
            expected.append(as_said(float(top), percent=percent))
            expected += [float(name) for name in holders] if len(holders) <= 3 else [len(holders)]
            assert float(facts[column]) == top
        if stopped is not None:
            expected += [stopped.frequencies - stopped.kept, stopped.frequencies, as_said(100 * stopped.cost, digits=1)]
        else:
            expected.append(round(100 * float(np.median(layers["dct_energy_10"].to_numpy(float)[1:]))))
        assert said(text) == pytest.approx(expected, abs=1e-9)
        return text

    def test_on_trained_models(self, llama: Atlas, gpt2: Atlas) -> None:
        costs = rotary.truncation_costs(llama).mean((0, 1))
        kept = next(n for n, cost in enumerate(costs) if cost <= 0.01)
        found = rotary.recommended_p(llama)
        assert found.kept == kept
        assert found.cost == pytest.approx(costs[kept])
        self.check(llama.heads, llama.layers, found)
        assert "lowest frequencies" in self.check(gpt2.heads, gpt2.layers, None)

    @settings(max_examples=30, deadline=None)
    @given(st.lists(st.sampled_from([0.1, 0.3, 0.6, 0.9]), min_size=6, max_size=6), st.booleans())
    def test_on_ties_and_without_probes(self, masses: list[float], probed: bool) -> None:
        heads = table_of(["mixed"] * 6, 3).assign(first_mass=masses, prev_mass=masses[::-1])
        heads["induction_score"] = masses if probed else np.nan
        layers = pd.DataFrame({"layer": [0, 1, 2], "dct_energy_10": [0.1, 0.5, 0.7]})
        text = self.check(heads, layers, None)
        sinks = sum(mass > 0.5 for mass in masses)
        assert text.startswith({0: "No head gives", 1: "1 head gives"}.get(sinks, f"{sinks} heads give"))
        assert ("induction" in text) == probed

    def test_when_nothing_was_measured(self) -> None:
        nothing = table_of(["mixed"], 1)
        assert "Nothing was measured" in sentences.stands_out(nothing, pd.DataFrame({"layer": [0]})).text


class TestChanges:
    def test_labels_positions_and_the_largest_change(self, llama: Atlas, gpt2: Atlas) -> None:
        a, b = llama.heads, gpt2.heads
        pairs = [(x, y) for x, y in zip(a["label"], b["label"], strict=True) if x != y]
        text, facts = sentences.labels_changed(a, b)
        assert said(text) == [len(pairs), 36, max(Counter(pairs).values())] == [*facts.values()]
        assert "All 36 heads keep their label" in sentences.labels_changed(a, a).text
        text, _ = sentences.position_changed(a, b)
        shares = [as_said(float(table["positional_share"].mean()), percent=True) for table in (a, b)]
        assert said(text)[:2] == shares
        changes = compare(llama, gpt2).heads
        text, facts = sentences.largest_change(changes)
        finite = changes[np.isfinite(changes["size"])]
        top = finite.loc[finite["size"].idxmax()]
        assert facts["head"] == f"{top['layer']}.{top['head']}"
        assert said(text)[1:] == [
            as_said(float(top["a"])),
            as_said(float(top["b"])),
            as_said(float(top["size"]), digits=1),
        ]


# figures ----------------------------------------------------------------------------------------------------------


class TestHeadFigures:
    def test_a_map_has_every_head_in_its_place(self) -> None:
        rows = [(0, 0, 0.5, "self"), (0, 1, np.nan, None), (0, 2, -1.0, "mixed"), (1, 0, 2.0, "self")]
        heads = pd.DataFrame(rows, columns=["layer", "head", "value", "label"])  # layer 1 has one head only
        (trace,) = figures.measure_map(heads, "value").data
        np.testing.assert_array_equal(trace.z, [[0.5, np.nan, -1.0], [2.0, np.nan, np.nan]])
        assert trace.zmin == -trace.zmax  # it has a negative value, so colors are centered on zero
        found = {trace.name: trace for trace in figures.measure_map(heads, "label").data}
        np.testing.assert_array_equal(found["self"].z, [[1, np.nan, np.nan], [1, np.nan, np.nan]])
        np.testing.assert_array_equal(found["mixed"].z, [[np.nan, np.nan, 1], [np.nan] * 3])
        assert found["self"].colorscale[0][1] == LABEL_COLORS["self"]

    def test_every_label_has_a_color_of_its_own(self) -> None:
        assert set(LABELS) == set(LABEL_COLORS) == set(sentences.KINDS)
        assert len(set(LABEL_COLORS.values())) == len(LABELS)

    def test_panels_show_what_the_lenses_say(self, llama: Atlas) -> None:
        layer, head = 2, 3
        table = rotary.frequency_table(llama).query(f"layer == {layer} and head == {head}")
        panel = figures.head_frequencies(llama, layer, head)
        shown = {trace.name: trace.y for trace in drawn(panel).data}
        for name, column in (("share", "share"), ("|q|", "q_norm"), ("|k|", "k_norm"), ("change", "change")):
            np.testing.assert_allclose(shown[name], table[column])
        rho = localization.propagation_table(llama).query(f"layer == {layer} and head == {head}")
        shown = {trace.name: trace.y for trace in drawn(figures.head_rho(llama, layer, head)).data}
        np.testing.assert_allclose(shown["observed"], rho["observed"])
        np.testing.assert_allclose(shown["predicted from the weights"], rho["predicted"])
        values = llama.group("attention")["logit_matrix"][layer, head].to_numpy()
        z = drawn(figures.mean_logits(llama, layer, head)).data[0].z
        seen = np.isfinite(values).any(1)
        np.testing.assert_allclose(np.nansum(z[seen], axis=1), 0, atol=1e-9)
        np.testing.assert_allclose(np.nanmax(np.abs(np.diff(z - values, axis=1))), 0, atol=1e-9)
        mean = drawn(figures.head_lags(llama, layer, head)).data[2]
        by_lag = llama.group("attention")["logit_mean_by_lag"][layer, head].to_numpy()
        np.testing.assert_array_equal(mean.y, by_lag[np.array(mean.x)])
        spectrum = drawn(figures.head_spectrum(llama, layer, head)).data[0].y
        np.testing.assert_allclose(np.square(spectrum).sum(), 1)

    def test_bars_of_a_row(self, llama: Atlas) -> None:
        from armillary.lenses.labels import evidence_table

        row, evidence = llama.heads.iloc[8], evidence_table(llama)
        bars = drawn(figures.constituent_bars(row)).data[0]
        np.testing.assert_allclose(np.nansum(np.array(bars.x, dtype=float)), 1, atol=1e-6)
        value, null, threshold = drawn(figures.pattern_bars(row, evidence)).data
        mine = evidence.query(f"layer == {row['layer']} and head == {row['head']} and measure == 'prev_mass'").iloc[0]
        at = list(value.y).index("previous token")
        assert (value.x[at], null.x[at], threshold.x[at]) == (row["prev_mass"], mine["null"], mine["threshold"])

    def test_what_is_missing_is_none(self, gpt2: Atlas, weighed: Atlas) -> None:
        assert figures.head_frequencies(gpt2, 0, 0) is None
        assert figures.head_spectrum(weighed, 0, 0) is not None
        for draw in (figures.head_lags, figures.head_rho, figures.mean_logits, figures.head_frequencies):
            assert draw(weighed, 0, 0) is None
        assert figures.constituent_bars(weighed.heads.iloc[0]) is None
        assert figures.pattern_bars(weighed.heads.iloc[0]) is None


def test_coarse_logits_are_means_of_what_is_seen() -> None:
    rng = np.random.default_rng(0)
    values = np.where(np.tri(7, dtype=bool), rng.normal(size=(2, 7, 7)), np.nan)
    found = coarse(values, 3)
    assert found.shape == (2, 3, 3)
    np.testing.assert_allclose(found[1, 1, 0], np.mean(values[1, 3:6, 0:3]))
    np.testing.assert_allclose(found[1, 1, 1], np.nanmean(values[1, 3:6, 3:6]))
    assert np.isnan(found[0, 0, 2])
    limit = np.nanmax(np.abs(values), axis=(1, 2))
    steps = np.frombuffer(base64.b64decode(packed_logits(values, limit)["data"]), np.uint8).reshape(values.shape)
    back = np.where(steps > 0, ((steps - 1.0) / 254 * 2 - 1) * limit[:, None, None], np.nan)
    assert np.nanmax(np.abs(back - values)) <= limit.max() / 254
    np.testing.assert_array_equal(np.isnan(back), np.isnan(values))


# the page ---------------------------------------------------------------------------------------------------------


def test_modules_make_one_script() -> None:
    exported: dict[str, str] = {}
    names: list[str] = []
    for file in page.SCRIPTS:
        text = page.asset(file)
        for wanted, source in re.findall(r'^import \{ (.*?) \} from "\./(.*?)";$', text, re.MULTILINE):
            for name in wanted.split(", "):
                assert exported.get(name) == source, f"{file} imports {name} from {source}"
        assert text.count("import ") == len(re.findall(r"^import \{", text, re.MULTILINE))
        declared = re.findall(r"^(export )?(?:function|class|const|let) (\w+)", text, re.MULTILINE)
        exported |= {name: file for export, name in declared if export}
        names += [name for _, name in declared]
    assert len(names) == len(set(names)), "two modules use one name"
    assert not re.search(r"^(import|export) ", page.script(), re.MULTILINE)
    assert "innerHTML" not in page.script()


def test_embedded_json_cannot_leave_its_element() -> None:
    text = embedded({"name": HOSTILE + "\u2028"})
    assert "<" not in text
    assert json.loads(text)["name"] == HOSTILE + "\u2028"


def eventually(view: Any, condition: str) -> bool:
    """Whether it becomes true (the page's policy forbids Playwright's own way to wait)."""
    for _ in range(10 * PATIENCE):
        if view.evaluate(condition):
            return True
        view.wait_for_timeout(100)
    return False


class TestBrowser:
    def test_the_page_opens_from_a_file_and_says_the_sentences(self, browser: Any, written: Path, llama: Atlas) -> None:
        with opened(browser, written.as_uri()) as (view, complaints):
            view.wait_for_selector("html[data-ready=yes]")
            view.wait_for_selector(".card .main-svg")
            told = [
                sentences.kinds(llama.heads).text,
                sentences.position(llama.heads, ["rotary encoding"]).text,
                sentences.stands_out(llama.heads, llama.layers, rotary.recommended_by_kind(llama)).text,
            ]
            assert view.locator(".sentence").all_text_contents() == told
            assert view.locator(".card .js-plotly-plot").count() == 3
            assert view.evaluate("document.documentElement.scrollWidth <= innerWidth")
            view.set_viewport_size({"width": 800, "height": 900})
            assert eventually(view, "document.documentElement.scrollWidth <= innerWidth")
            assert violations(view) == []
            assert complaints.all == []

    def test_tables_sort_and_filter(self, browser: Any, written: Path, llama: Atlas) -> None:
        with opened(browser, written.as_uri()) as (view, complaints):
            table = view.locator("[data-table=heads]")
            rows = table.locator("tbody button.head")
            names = sentences.head_names(llama.heads)
            assert rows.all_text_contents() == names
            sort = table.locator("[data-sort=prev_mass]")
            sort.focus()
            view.keyboard.press("Enter")
            falling = llama.heads.sort_values("prev_mass", ascending=False, kind="stable")
            assert rows.all_text_contents() == sentences.head_names(falling)
            assert table.locator("th[aria-sort=descending]").all_text_contents() == ["prev mass \u2193?"]
            view.keyboard.press("Enter")  # the button keeps the focus
            assert rows.all_text_contents() == sentences.head_names(falling.iloc[::-1])
            find = table.get_by_label("Filter")
            find.fill("prev_mass > 0.15 and layer <= 2")
            kept = llama.heads.query("prev_mass > 0.15 and layer <= 2")
            assert set(rows.all_text_contents()) == set(sentences.head_names(kept))
            assert table.locator(".count").text_content() == f"{len(kept)} of 36 heads"
            find.fill("loc")
            assert rows.count() == (llama.heads["label"] == "local").sum()
            find.fill("4.2")
            assert rows.all_text_contents() == ["4.2"]
            find.fill("no_such > 1")
            assert "there is no column" in str(table.locator(".count").text_content())
            find.fill("")
            label = llama.heads["label"].iloc[-1]
            table.get_by_role("combobox", name="Label").select_option(label)
            assert rows.count() == (llama.heads["label"] == label).sum()
            table.get_by_role("combobox", name="Label").select_option("")
            table.get_by_role("combobox", name="Layer").select_option("3")
            assert rows.count() == 6
            table.get_by_role("combobox", name="Columns").select_option("all")
            assert table.locator("thead th").count() == llama.heads.dropna(axis=1, how="all").shape[1] - 1
            table.get_by_label("What qk_align_z means").click()
            view.locator("#meaning", has_text="standard normal").wait_for()
            assert view.locator("#meaning math").count() == 1
            assert complaints.all == []

    def test_a_head_opens_by_keyboard_and_closes(self, browser: Any, written: Path, llama: Atlas) -> None:
        with opened(browser, written.as_uri(), color_scheme="dark") as (view, complaints):
            button = view.locator("[data-table=heads]").get_by_role("button", name="1.1", exact=True)
            button.focus()
            view.keyboard.press("Enter")
            view.wait_for_selector("#dossier[open] .panels .main-svg")
            row = llama.heads.iloc[7]
            assert str(view.locator("#dossier-title").text_content()) == f"Head 1.1 {row['label']}"
            words = view.locator("#dossier .words").inner_text()
            assert f"{round(100 * row['prev_mass'])}\u00a0% " in words
            assert f"Labeled \u2018{row['label']}\u2019" in words
            for panel, draw, trace in (
                ("lags", figures.head_lags, 2),
                ("spectrum", figures.head_spectrum, 0),
                ("rho", figures.head_rho, 1),
            ):
                seen = view.evaluate(f"document.querySelector('[data-panel={panel}]').data[{trace}].y")
                np.testing.assert_allclose(
                    np.array(seen, dtype=float), drawn(draw(llama, 1, 1)).data[trace].y, rtol=1e-5, atol=1e-6
                )
            seen = np.array(view.evaluate("document.querySelector('[data-panel=logits]').data[0].z"), dtype=float)
            expected = drawn(figures.mean_logits(llama, 1, 1)).data[0]
            inside = np.clip(expected.z, expected.zmin, expected.zmax)
            np.testing.assert_allclose(seen, inside, atol=1.01 * expected.zmax / 254)
            assert violations(view) == []
            view.keyboard.press("ArrowRight")
            assert "Head 1.2" in str(view.locator("#dossier-title").text_content())
            assert view.url.endswith("#head-1.2")
            view.keyboard.press("Escape")
            assert view.locator("#dossier[open]").count() == 0
            assert button.evaluate("element => element === document.activeElement")
            view.goto(written.as_uri() + "#head-4.2")
            assert "Head 4.2" in str(view.locator("#dossier-title").text_content())
            assert complaints.all == []

    def test_a_click_on_the_map_opens_the_head_and_print_has_every_row(self, browser: Any, written: Path) -> None:
        with opened(browser, written.as_uri()) as (view, complaints):
            view.locator("#map").scroll_into_view_if_needed()
            view.wait_for_selector("#map .main-svg")
            view.get_by_label("Color heads by").select_option("prev_mass")
            cell = view.evaluate(
                """() => { const plot = document.getElementById('map'), {xaxis, yaxis} = plot._fullLayout;
                const box = plot.getBoundingClientRect();
                return [box.x + xaxis._offset + xaxis.d2p(4), box.y + yaxis._offset + yaxis.d2p(2)]; }"""
            )
            view.mouse.move(*cell)
            view.mouse.click(*cell)
            view.wait_for_selector("#dossier[open]")
            assert "Head 2.4" in str(view.locator("#dossier-title").text_content())
            view.evaluate("window.dispatchEvent(new Event('beforeprint'))")
            assert view.locator("#dossier[open]").count() == 0
            view.emulate_media(media="print")
            assert view.locator("[data-figure]:not(.js-plotly-plot)").count() == 0
            assert view.locator("[data-table=heads] tbody tr").count() == 36
            assert not view.get_by_label("Filter").first.is_visible()
            assert complaints.all == []


class TestEveryAtlas:
    def test_sentences_stand_where_measures_are_missing(self, place: Path, atlases: Atlases, gpt2: Atlas) -> None:
        old = atlases("llama", FAMILY_TOKENS, streams=("positions", "attention"), batch=4, shard=6)
        for atlas, words in (
            (gpt2, "has no rotary encoding"),
            (atlases.family("gpt_oss"), "What the heads of"),
            (old, "this atlas has no labels"),
            (unknown_family(place), "no adapter knows the family"),
        ):
            text = report_html(atlas)
            assert words in text
            assert text.count('<section id="') == 10
            told = re.findall(r'<p class="sentence">(.*?)</p>', text)
            assert len(told) == 3
            assert min(map(len, told)) > 30

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ["weights", "encoder"])
    def test_the_page_works_without_them(
        self, name: str, browser: Any, place: Path, atlases: Atlases, weighed: Atlas
    ) -> None:
        atlas = weighed if name == "weights" else atlases.family("bert")
        path = write_report(atlas.path.parent, out=place / f"{name}.html")
        with opened(browser, path.as_uri()) as (view, complaints):
            view.wait_for_selector("html[data-ready=yes]")
            words = {"weights": "made from weights alone", "encoder": "only defined for causal models"}[name]
            assert words in view.locator("main").inner_text()
            whereabouts = "document.querySelector('[data-table=heads]').getBoundingClientRect().y + scrollY"
            before = view.evaluate(whereabouts)
            view.locator("#map").scroll_into_view_if_needed()
            view.wait_for_selector("#map .main-svg")
            assert view.evaluate(whereabouts) == before  # pictures have their room beforehand: no click goes astray
            view.locator("[data-table=heads] button.head").first.click()
            view.locator("#dossier-title", has_text="Head 0.0").wait_for()
            assert complaints.all == []

    @pytest.mark.slow
    def test_names_from_an_atlas_are_text(self, browser: Any, place: Path, llama: Atlas) -> None:
        folder = place / "hostile"
        shutil.copytree(llama.path.parent, folder)
        described = folder / "atlas.zarr" / "zarr.json"
        kept = json.loads(described.read_text())
        kept["attributes"]["model"]["name"] = kept["attributes"]["model"]["title"] = HOSTILE
        kept["attributes"]["model"]["family"] = HOSTILE
        kept["attributes"]["corpus"]["name"] = HOSTILE
        kept["attributes"]["notes"] = [HOSTILE]
        described.write_text(json.dumps(kept))
        labels = folder / "atlas.zarr" / "tables" / "heads" / "zarr.json"
        words = json.loads(labels.read_text())
        words["attributes"]["words"]["label"][0] = HOSTILE
        labels.write_text(json.dumps(words))
        write_manifest(folder / "atlas.zarr")
        path = write_report(folder)
        assert path == folder / "report.html"
        with opened(browser, path.as_uri()) as (view, complaints):
            view.wait_for_selector(".card .main-svg")
            assert HOSTILE in str(view.locator("h1").text_content())
            assert HOSTILE in view.locator("#provenance").inner_text()
            view.locator("[data-table=heads] button.head").first.click()
            view.locator("#dossier-title", has_text="Head").wait_for()
            assert HOSTILE in str(view.locator("#dossier-title").text_content())
            assert view.evaluate("window.hacked") is None
            assert view.locator("main img, header img, dialog img").count() == 0
            view.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=window.hacked=1>')")
            complaints.wait(view)
            assert view.evaluate("window.hacked") is None  # even if it were HTML, the page's policy would not run it
            assert all("Content Security Policy" in line for line in complaints.all)


def unknown_family(place: Path) -> Atlas:
    """A scan of a model that no adapter knows."""
    model = sample_model("llama")
    model.config.model_type = "unheard-of"
    return arm.scan(model, FAMILY_TOKENS, out=place / "unknown", streams=("positions", "attention"))


class Work(NamedTuple):
    """What a page of so many heads costs: the seconds to load it and to sort its table 20 times; its bytes."""

    heads: int
    loading: float
    sorting: float
    size: int


class TestSize:
    @pytest.mark.slow
    def test_the_work_of_a_page_grows_no_faster_than_its_heads(self, browser: Any, place: Path) -> None:
        """Loading and sorting a page of 1,024 heads, against one of 64: the page's own work, whoever else is busy."""
        few, many = (self.work(browser, place / f"{size}", size) for size in (8, 32))
        assert many.heads / few.heads == 16
        assert many.loading < 16 * few.loading
        assert many.sorting < 16 * few.sorting
        assert many.size < 15e6

    def work(self, browser: Any, folder: Path, size: int) -> "Work":
        """What a page of size x size heads costs the browser."""
        atlas = random_llama(folder, size, size, 2, torch.randint(0, 64, (2, 16)))
        path = write_report(folder)
        context = window(browser, viewport={"width": 1280, "height": 800})
        view = context.new_page()
        clock = context.new_cdp_session(view)
        clock.send("Performance.enable", {"timeDomain": "threadTicks"})  # the page's own work, whoever else is busy
        view.goto(path.as_uri())
        view.wait_for_selector("html[data-ready=yes]")
        view.wait_for_selector(".card .main-svg >> nth=2")
        loading = spent(clock)
        view.wait_for_timeout(300)
        view.locator("[data-table=heads] [data-sort=entropy_norm]").click()
        expected = sentences.head_names(atlas.heads.sort_values("entropy_norm", ascending=False, kind="stable"))[0]
        shown = "document.querySelector('[data-table=heads] button.head').textContent"
        assert eventually(view, f"{shown} === {expected!r}")
        before = spent(clock)
        view.evaluate(
            """() => { for (let i = 0; i < 20; i++) {
            document.querySelector('[data-table=heads] [data-sort=entropy_norm]').click();
            document.body.offsetHeight; } }"""
        )
        sorting = spent(clock) - before
        context.close()
        return Work(len(atlas.heads), loading, sorting, path.stat().st_size)

    def test_twelve_by_twelve_heads_fit_in_15_megabytes(self, place: Path) -> None:
        atlas = random_llama(place / "twelve", 12, 12, 8, torch.randint(0, 64, (1, 128)))
        assert len(report_html(atlas).encode()) < 15e6
        assert len(json.dumps(dossiers(atlas, None))) < 3e6


def spent(clock: Any) -> float:
    """Seconds that the page's main thread has worked."""
    metrics = clock.send("Performance.getMetrics")["metrics"]
    return float(next(one["value"] for one in metrics if one["name"] == "TaskDuration"))


def random_llama(out: Path, layers: int, heads: int, width: int, tokens: torch.Tensor) -> Atlas:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=heads * width,
        intermediate_size=16,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        max_position_embeddings=128,
    )
    return arm.scan(LlamaForCausalLM(config).eval(), tokens, out=out, streams=("positions", "attention", "chunks"))


# the command ------------------------------------------------------------------------------------------------------


class TestCommand:
    @pytest.mark.slow
    def test_a_comparison_reports_what_changed(self, browser: Any, place: Path, llama: Atlas, gpt2: Atlas) -> None:
        out = place / "both" / "compared.html"
        run = CliRunner().invoke(app, ["report", str(llama.path.parent), str(gpt2.path.parent), "--out", str(out)])
        assert run.exit_code == 0
        assert str(out) in run.output.replace("\n", "")
        found = compare(llama, gpt2)
        changed = sentences.changed_labels(llama.heads, gpt2.heads)
        with opened(browser, out.as_uri()) as (view, complaints):
            view.wait_for_selector(".card .main-svg >> nth=2")
            assert view.locator("h1").text_content() == "What changed from llama to gpt2"
            first = sentences.labels_changed(llama.heads, gpt2.heads)
            assert view.locator(".sentence").first.text_content() == first.text
            rows = view.locator("[data-table=labels] tbody button.head").all_text_contents()
            assert rows == sentences.head_names(changed)
            first = view.locator("[data-table=changes] tbody tr").first.inner_text().split("\t")
            top = found.heads.iloc[0]
            assert first[:2] == [f"{top['layer']}.{top['head']}", top["measure"]]
            view.locator("[data-table=changes] tbody tr").first.click()
            line = view.locator(
                "#dossier tr", has=view.get_by_role("rowheader", name="prev_mass", exact=True)
            ).inner_text()
            at = (llama.heads["layer"] == top["layer"]) & (llama.heads["head"] == top["head"])
            before, after = (float(table.loc[at, "prev_mass"].iloc[0]) for table in (llama.heads, gpt2.heads))
            assert [float(cell.replace("\u2212", "-")) for cell in line.split("\t")[1:3]] == pytest.approx(
                [before, after], abs=6e-4
            )
            view.keyboard.press("Escape")
            assert violations(view) == []
            assert complaints.all == []

    def test_mistakes_are_sentences_with_exit_code_2(
        self,
        llama: Atlas,
        weighed: Atlas,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        small = arm.weigh(sample_model("bert"), out=tmp_path / "small", matrices=False).path.parent
        for arguments, words in (
            ([weighed.path.parent, small], "only models of one shape can be compared"),
            ([tmp_path / "nothing"], "there is no folder"),
            ([weighed.path.parent, weighed.path.parent, small], "only models of one shape can be compared"),
        ):
            monkeypatch.setattr("sys.argv", ["armillary", "report", *map(str, arguments)])
            with pytest.raises(SystemExit) as ended:
                main()
            assert ended.value.code == 2
            assert words in capsys.readouterr().err

    def test_it_can_be_shown_at_once(self, weighed: Atlas, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        shown: list[str] = []
        monkeypatch.setattr("typer.launch", lambda address: shown.append(address))
        out = tmp_path / "a b.html"
        CliRunner().invoke(
            app, ["report", str(weighed.path.parent), "--out", str(out), "--open"], catch_exceptions=False
        )
        assert shown == [out.as_uri()]
        assert [path.name for path in tmp_path.iterdir()] == ["a b.html"]  # no half-written file is left
