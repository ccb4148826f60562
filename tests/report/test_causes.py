"""The report on causes: the sentence is true of what was measured, and the circuit view works in a browser."""

from pathlib import Path
from typing import Any

import pytest

import armillary as arm
from armillary.atlas.atlas import Atlas
from armillary.atlas.effects import effects_about, keep_effects
from armillary.probe.ablation import ablate, with_direct_logits
from armillary.report import report_html
from armillary.report.causes import circuit_data, matters
from browser import chromium, opened
from handmade import copies, copying_llama

STREAMS = ("positions", "attention", "constituents", "patterns", "sources")


@pytest.fixture(scope="module")
def atlas(tmp_path_factory: pytest.TempPathFactory) -> Atlas:
    """The induction circuit that was put together by hand, scanned and ablated."""
    folder, model = tmp_path_factory.mktemp("circuit"), copying_llama()
    scanned = arm.scan(model, copies(16), streams=STREAMS, out=folder)
    assert matters(scanned) is None
    measured = with_direct_logits(model, scanned, ablate(model, scanned, exact=None))
    keep_effects(scanned, measured.heads, measured.about)
    return arm.open_atlas(folder)


def test_the_first_sentences_name_the_circuit(atlas: Atlas) -> None:
    sentence, about = matters(atlas), effects_about(atlas)
    assert sentence is not None
    assert about is not None
    assert {sentence.facts["head 0"], sentence.facts["head 1"]} == {"L0H0", "L1H0"}
    largest = max(about["together"]["loss"], about["repeat_together"]["loss"])
    assert sentence.facts["loss"] == largest
    assert f"{largest:.2f} nats per token" in sentence.text
    assert sentence.text in report_html(atlas)


def test_parts_of_the_logit_add_up(atlas: Atlas) -> None:
    about = effects_about(atlas)
    assert about is not None
    parts = atlas.heads["direct_logit"].sum() + sum(about["other_logits"].values())
    assert abs(parts - about["logit"]) < 1e-4


def test_the_circuit_has_the_edge(atlas: Atlas) -> None:
    data = circuit_data(atlas)
    assert data is not None
    named = [node[0] for node in data["nodes"]]
    edges = {(named[a], named[b], data["sides"][side]): share for a, b, side, share in data["edges"]}
    assert edges["L0H0", "L1H0", "key"] > 0.9


def test_a_report_without_them_says_how_to_get_them() -> None:
    plain = report_html(arm.scan(copying_llama(), copies(16), streams=("positions", "attention")))
    assert "run `armillary ablate MODEL DIR` first" in plain
    assert "this atlas has no sources" in plain.lower()


def test_the_circuit_view_works_in_a_browser(atlas: Atlas, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(report_html(atlas), encoding="utf-8")
    with chromium() as running, opened(running, file.as_uri()) as (window, complaints):
        lists: Any = window.evaluate(
            """async () => {
                const plot = document.getElementById("circuit");
                plot.scrollIntoView();
                const choose = document.getElementById("circuit-head");
                const until = async (ready) => { while (!ready()) await new Promise((done) => setTimeout(done, 50)); };
                await until(() => plot.data);
                const before = document.getElementById("circuit-shown").textContent;
                choose.value = [...choose.options].find((option) => option.textContent.startsWith("L1H0")).value;
                choose.dispatchEvent(new Event("input"));
                await until(() => document.getElementById("circuit-lists").children.length);
                return [before, document.getElementById("circuit-shown").textContent,
                        ...[...document.getElementById("circuit-lists").children].map((one) => one.textContent)];
            }"""
        )
        assert not complaints.all
    before, after, _, key, *_ = lists
    assert int(before.split(": ")[1].split()[0]) >= int(after.split(": ")[1].split()[0]) > 0
    assert key.startswith("The key of L1H0 comes fromL0H0 (previous)")
