"""The viewer in a real browser: what clicks and keys change; numbers on screen are the atlas's and the tap's."""

import json
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote

import numpy as np
import pytest
from test_viewer import HOSTILE, PATIENCE, TEXT, Service, Slow, loaded, scanned, serving, tapped, viewing, wait_for

from armillary.probe.terms import text_constituents
from armillary.streams.constituents import TERMS
from armillary.text.words import join, words_of
from armillary.viewer import texts
from armillary.viewer.worker import Gone
from browser import ARGUMENTS, CHROMIUM, Complaints, chromium, violations, window

READY = "body[data-state=ready]"


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with serving(compare=True) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


class Tab:
    """A page that several tests use one after the other, since to load it takes longer than what they do with it."""

    def __init__(self, browser: Any, service: Service) -> None:
        self.context = window(browser, viewport={"width": 1366, "height": 850}, accept_downloads=True)
        self.page, self.complaints, self._address = self.context.new_page(), Complaints(), service.address
        self.complaints.watch(self.page)
        self._count = 0

    def show(self, **state: Any) -> Any:
        """The page with this state in its address, drawn."""
        self._count += 1
        fields = "&".join(f"{name}={quote(json.dumps(value))}" for name, value in {**state, "n": self._count}.items())
        if self._count == 1:
            self.page.goto(f"{self._address}&{fields}")
        else:
            self.page.evaluate("(hash) => { document.body.dataset.state = 'working'; location.hash = hash; }", fields)
        self.page.wait_for_selector(READY)
        self.page.evaluate("() => { scrollTo(0, 0); document.activeElement?.blur(); }")
        return self.page


@pytest.fixture(scope="module")
def one_tab(browser: Any, service: Service) -> Iterator[Tab]:
    tab = Tab(browser, service)
    yield tab
    tab.context.close()


@pytest.fixture
def tab(one_tab: Tab) -> Iterator[Tab]:
    """The shared page; whatever a test does, the page must complain about nothing."""
    yield one_tab
    assert one_tab.complaints.all == []


@contextmanager
def another(browser: Any, service: Service, **state: Any) -> Iterator[Any]:
    """A page of its own."""
    tab = Tab(browser, service)
    try:
        yield tab.show(**state)
        assert tab.complaints.all == []
    finally:
        tab.context.close()


def ready(page: Any, name: str, value: Any) -> None:
    """Wait until the state that the address holds says so and everything is drawn.

    Of a value with fields, the given ones count.
    """

    def says() -> bool:
        held = dict(parse_qsl(page.evaluate("location.hash.slice(1)")))
        if name not in held:
            page.wait_for_timeout(10)
            return False
        found = json.loads(held[name])
        return bool(value.items() <= found.items() if isinstance(value, dict) else found == value)

    wait_for(says)
    page.wait_for_selector(READY)


def hovered(page: Any, card: str, i: int, j: int) -> dict[str, str]:
    """What the page tells of cell (i, j) of a matrix when the pointer is on it."""
    canvas = page.locator(f"#plot-{card} canvas")
    canvas.scroll_into_view_if_needed()
    box = json.loads(canvas.get_attribute("data-box"))
    place = canvas.bounding_box()
    page.mouse.move(0, 0)
    page.mouse.move(
        place["x"] + box["x"] + (j + 0.5) * box["w"] / box["m"], place["y"] + box["y"] + (i + 0.5) * box["h"] / box["n"]
    )
    lines = page.locator(".tip div").all()
    return {line.locator("span").inner_text(): line.locator("b").inner_text() for line in lines}


def plotted(page: Any, card: str, field: str, trace: int = 0) -> np.ndarray:
    """The numbers of a Plotly trace on the page."""
    return np.array(page.evaluate(f"Array.from(document.getElementById('plot-{card}').data[{trace}].{field})"), float)


def click_cell(page: Any, card: str, layer: int, head: int) -> None:
    """Click the cell of a head on a Plotly map."""
    place = page.evaluate(
        f"""(() => {{ const plot = document.getElementById('plot-{card}'), l = plot._fullLayout,
        box = plot.getBoundingClientRect();
        return [box.x + l.xaxis._offset + l.xaxis.c2p({head}), box.y + l.yaxis._offset + l.yaxis.c2p({layer})]; }})()"""
    )
    page.mouse.move(place[0] - 2, place[1] - 2)
    page.mouse.move(*place)
    page.mouse.click(*place)


class TestMap:
    def test_a_click_chooses_a_head_and_everything_follows(self, tab: Tab) -> None:
        page = tab.show()
        click_cell(page, "map", 3, 4)
        ready(page, "head", [3, 4])
        assert page.locator("#head-name").inner_text().startswith("Head 3.4")
        atlas = scanned("builtin:prose")
        row = atlas.heads.query("layer == 3 and head == 4").iloc[0]
        assert float(page.locator("#chosen-value").inner_text()) == pytest.approx(row["entropy"], rel=1e-3)
        lags = atlas.group("attention")["logit_mean_by_lag"].to_numpy()[3, 4]
        np.testing.assert_allclose(plotted(page, "lags", "y", 2), lags, rtol=1e-5)
        shares = plotted(page, "constituents", "x")
        assert np.nansum(shares) == pytest.approx(1, abs=1e-5)
        assert shares[0] == pytest.approx(row["share_mean_mean"], rel=1e-5)
        rho = atlas.group("attention")["rho"].to_numpy()[3, 4]
        np.testing.assert_allclose(plotted(page, "rho", "y"), rho, rtol=1e-5)

    def test_arrow_keys_move_and_stop_at_the_edges(self, tab: Tab) -> None:
        page = tab.show(head=[1, 1])
        for key, head in (
            ("ArrowDown", [2, 1]),
            ("ArrowRight", [2, 2]),
            ("ArrowUp", [1, 2]),
            ("ArrowLeft", [1, 1]),
        ):
            page.keyboard.press(key)
            ready(page, "head", head)
        for _ in range(8):
            page.keyboard.press("ArrowRight")
        ready(page, "head", [1, 5])
        assert page.locator("#head-name").inner_text().startswith("Head 1.5")

    @pytest.mark.parametrize("measure", ["content_share", "label", "qk_align_z"])
    def test_any_measure_colors_the_map(self, tab: Tab, measure: str) -> None:
        page = tab.show()
        page.select_option("#color", measure)
        ready(page, "color", measure)
        drawn = page.evaluate("document.getElementById('plot-map').data[0].z")
        table = scanned("builtin:prose").heads.pivot(index="layer", columns="head", values=measure)
        if measure == "label":
            words = page.evaluate("document.getElementById('plot-map').data[0].colorbar.ticktext")
            assert [[words[i] for i in row] for row in drawn] == table.to_numpy().tolist()
        else:
            np.testing.assert_allclose(np.array(drawn, float), table.to_numpy(float), rtol=1e-6)

    def test_the_label_and_its_evidence(self, tab: Tab) -> None:
        from armillary.lenses.labels import evidence_table

        page = tab.show(head=[2, 2])
        row = scanned("builtin:prose").heads.query("layer == 2 and head == 2").iloc[0]
        assert row["label"] in page.locator("#head-name").inner_text()
        told = page.locator("table.evidence tbody tr").all_inner_texts()
        evidence = evidence_table(scanned("builtin:prose")).query("layer == 2 and head == 2")
        assert len(told) == len(evidence)
        first = evidence.iloc[0]
        assert told[0].split("\t")[:2] == [first["label"], first["measure"]]
        assert float(told[0].split("\t")[2]) == pytest.approx(first["value"], rel=1e-3)


class TestText:
    def test_typing_shows_attention_of_the_tap(self, tab: Tab) -> None:
        page = tab.show(head=[2, 3])
        page.keyboard.press("t")
        page.keyboard.type(TEXT)
        ready(page, "text", TEXT)
        view = tapped(TEXT, 2)
        attention, logits = view.attention()[0, 3], view.logits()[0, 3]
        told = hovered(page, "attention", 9, 4)
        assert float(told["attention"]) == pytest.approx(float(attention[9, 4]), rel=1e-4)
        assert float(told["logit"]) == pytest.approx(float(logits[9, 4]), rel=1e-4)
        lens = text_constituents(scanned("builtin:prose"), loaded().model, loaded().tokenizer, 2, 3, TEXT)
        assert float(told["content·content"]) == pytest.approx(lens.terms["cvec_cvec"][9, 4], rel=1e-3)
        assert hovered(page, "attention", 2, 8)[""] == "not visible"

    def test_the_next_head_shows_its_own_attention(self, tab: Tab) -> None:
        page = tab.show(head=[2, 3], tab="text", text=TEXT)
        page.keyboard.press("ArrowRight")
        ready(page, "head", [2, 4])
        told = hovered(page, "attention", 7, 5)
        assert float(told["attention"]) == pytest.approx(float(tapped(TEXT, 2).attention()[0, 4, 7, 5]), rel=1e-4)

    def test_words(self, tab: Tab) -> None:
        page = tab.show(head=[1, 0], tab="text", text=TEXT)
        page.get_by_role("button", name="words").click()
        ready(page, "level", "word")
        words = words_of(loaded().tokenizer, TEXT)
        expected = join(tapped(TEXT, 1).attention()[0, 0].double().numpy(), words)
        told = hovered(page, "attention", 6, 2)
        assert told["query"] == f"6 {words.names[6]}"
        assert float(told["attention"]) == pytest.approx(expected[6, 2], rel=1e-4)

    def test_switching_terms_off_recomputes_the_softmax(self, tab: Tab) -> None:
        live, gone = loaded(), Gone()
        head = live.head(live.run(TEXT, 2, gone), 2, 1)
        page = tab.show(head=[2, 1], tab="text", text=TEXT)
        for off in (["mean_mean"], ["mean_mean", "cvec_cvec"]):
            page.locator(f"#term-{off[-1]}").click()
            ready(page, "off", off)
            kept = tuple(term for term in TERMS if term not in off)
            expected = texts.attention_of_terms(head, kept)[8, 3]
            told = hovered(page, "chosen", 8, 3)
            assert float(told["of the chosen terms"]) == pytest.approx(expected, rel=1e-4)
            assert float(told["attention"]) == pytest.approx(head.attention[8, 3], rel=1e-4)
            assert page.locator(f"#term-{off[-1]}").get_attribute("aria-pressed") == "false"
        page.get_by_role("button", name="Content only").click()
        page.wait_for_selector(READY)
        told = hovered(page, "chosen", 8, 3)
        expected = texts.attention_of_terms(head, ("cvec_cvec",))[8, 3]
        assert float(told["of the chosen terms"]) == pytest.approx(expected, rel=1e-4)

    def test_a_tokens_row_and_the_keys_for_it(self, tab: Tab) -> None:
        page = tab.show(head=[3, 1], tab="text", text=TEXT)
        page.locator(".token").nth(10).click()
        ready(page, "query", 10)
        row = tapped(TEXT, 3).attention()[0, 1, 10, :11].numpy()
        first = page.locator("#row-keys tbody tr").first.locator("td").all_inner_texts()
        assert int(first[0].split()[0]) == int(row.argmax())
        assert float(first[1]) == pytest.approx(float(row.max()), rel=1e-3)
        page.locator("body").press("]")
        ready(page, "query", 11)

    def test_frequencies_token_by_token(self, tab: Tab) -> None:
        page = tab.show(head=[3, 2], tab="text", text=TEXT)
        use = loaded().frequencies(loaded().run(TEXT, 3, Gone()), 3, 2)
        assert use is not None
        told = hovered(page, "usage", 5, 9)
        assert float(told["share of the row's logits"]) == pytest.approx(use.products[9, 5] / use.squares[9], rel=1e-3)
        page.get_by_role("button", name="norm of q").click()
        ready(page, "usage", "q")
        assert float(hovered(page, "usage", 5, 9)["norm of q"]) == pytest.approx(use.q[9, 5], rel=1e-4)
        np.testing.assert_allclose(
            plotted(page, "frequency-share", "y"), use.products.sum(0) / use.squares.sum(), rtol=1e-6
        )

    def test_a_thousand_tokens_stay_usable_and_a_click_tells_exact_numbers(self, tab: Tab) -> None:
        long = " ".join([TEXT] * 36)
        page = tab.show(head=[4, 2], tab="text")
        page.locator("#text").fill(long)
        ready(page, "text", long)
        status = page.locator("#text-status").inner_text()
        count = int(status.split()[0])
        assert count > 1000
        step = int(re.search(r"cells of (\d+) tokens", status)[1])  # type: ignore[index]
        attention = tapped(long, 4).attention()[0, 2].numpy()
        i, j = 120, 100
        told = hovered(page, "attention", i, j)
        block = attention[i * step : (i + 1) * step, j * step : (j + 1) * step]
        assert float(told["largest attention"]) == pytest.approx(float(block.max()), rel=1e-4)
        canvas = page.locator("#plot-attention canvas").bounding_box()
        box = json.loads(page.locator("#plot-attention canvas").get_attribute("data-box"))
        page.mouse.click(canvas["x"] + box["x"] + 10, canvas["y"] + box["y"] + (i + 0.5) * box["h"] / box["n"])
        ready(page, "query", i * step)
        first = page.locator("#row-keys tbody tr").first.locator("td").all_inner_texts()
        row = attention[i * step]
        assert int(first[0].split()[0]) == int(row.argmax())
        assert float(first[1]) == pytest.approx(float(row.max()), rel=1e-3)

    def test_hostile_text_is_shown_and_never_run(self, tab: Tab) -> None:
        page = tab.show(tab="text", text=HOSTILE)
        page.on("dialog", lambda dialog: pytest.fail("a script ran"))
        assert "".join(page.locator(".token").all_inner_texts()).startswith("<img")
        assert page.locator("main img, main b:not(.tip b), #strip script").count() == 0
        assert page.locator("svg a, svg image[href^=http]").count() == 0
        page.keyboard.press("w")
        ready(page, "level", "word")
        assert hovered(page, "attention", 1, 0)["key"].startswith("0 <")
        page.keyboard.press("3")
        ready(page, "tab", "change")
        page.select_option("#color", "entropy_norm")
        page.wait_for_selector(READY)


class TestSpiral:
    def test_the_slider_the_plane_and_contents(self, tab: Tab) -> None:
        from armillary.lenses.positional import context_coordinates, positional_arrays

        atlas = scanned("builtin:prose")
        positions = positional_arrays(atlas)["coordinates"].to_numpy()
        page = tab.show(tab="spiral", dims="2")
        np.testing.assert_allclose(plotted(page, "spiral", "y"), positions[0, :, 1], rtol=1e-5, atol=1e-7)
        page.locator("#point").fill("4")
        ready(page, "point", 4)
        np.testing.assert_allclose(plotted(page, "spiral", "x"), positions[4, :, 0], rtol=1e-5, atol=1e-7)
        page.get_by_role("button", name="contents").click()
        ready(page, "kind", "cvec")
        contents = context_coordinates(atlas, 4)["coordinates"].to_numpy()
        np.testing.assert_allclose(plotted(page, "spiral", "x"), contents[:, 0], rtol=1e-5, atol=1e-7)
        page.get_by_role("button", name="3-D").click()
        page.wait_for_selector("#plot-spiral .gl-container canvas")
        page.wait_for_selector(READY)
        np.testing.assert_allclose(plotted(page, "spiral", "z"), contents[:, 2], rtol=1e-5, atol=1e-7)


class TestChange:
    def test_a_scaled_head_beside_the_original(self, tab: Tab) -> None:
        from armillary import interventions
        from armillary.probe.trial import trial

        page = tab.show(head=[2, 1], tab="change", text=TEXT)
        page.locator("#change-alpha-exact").fill("3")
        page.locator("#change-alpha-exact").press("Enter")
        ready(page, "change", {"kind": "scale", "scope": "head", "alpha": 3})
        live = loaded()
        run = trial(live.model, live.tokenizer, TEXT, lambda m: interventions.scaled(m, 3.0, heads=[(2, 1)]))
        summary = page.locator("#change-summary").inner_text()
        before, after = re.findall(r"([\d.]+) → ([\d.]+) nats", summary)[0]
        assert float(before) == pytest.approx(run.before.entropy[2, 1], rel=1e-3)
        assert float(after) == pytest.approx(run.after.entropy[2, 1], rel=1e-3)
        told = hovered(page, "after", 9, 4)
        assert float(told["before"]) == pytest.approx(float(tapped(TEXT, 2).attention()[0, 1, 9, 4]), rel=1e-4)
        with interventions.scaled(live.model, 3.0, heads=[(2, 1)]):
            assert float(told["after"]) == pytest.approx(float(tapped(TEXT, 2).attention()[0, 1, 9, 4]), rel=1e-3)
        page.locator("#card-entropies").scroll_into_view_if_needed()
        drawn = page.evaluate("document.getElementById('plot-entropies').data[0].z.map((row) => Array.from(row))")
        np.testing.assert_allclose(drawn, run.after.entropy - run.before.entropy, atol=1e-5)

    def test_the_numbers_beside_a_slider_are_those_that_are_tried(self, tab: Tab) -> None:
        page = tab.show(head=[2, 1], tab="change", text=TEXT, change={"kind": "scale", "scope": "head", "alpha": 1.5})
        exact = page.locator("#change-alpha-exact")
        assert exact.input_value() == "1.5"
        exact.fill("50")
        exact.press("Enter")
        ready(page, "change", {"kind": "scale", "scope": "head", "alpha": 8})
        assert exact.input_value() == "8"

    def test_what_cannot_be_shown_leaves_nothing_of_the_text_before(self, tab: Tab) -> None:
        page = tab.show(head=[2, 1], tab="text", text=TEXT)
        assert page.locator("#card-attention").is_visible()
        tab.show(head=[2, 1], tab="text", text="a")
        assert "1 token" in page.locator("#problem").inner_text()
        assert not page.locator("#card-attention").is_visible()
        tab.complaints.console.clear()  # the browser notes every answer of 4xx

    @pytest.mark.parametrize("kind", ["cut", "randomize", "frequencies", "remove"])
    def test_every_change_moves_attention(self, tab: Tab, kind: str) -> None:
        page = tab.show(head=[2, 1], tab="change", text=TEXT)
        page.select_option("#change-kind", kind)
        ready(page, "change", {"kind": kind})
        moved = float(re.search(r"changed by ([\d.e-]+)", page.locator("#change-summary").inner_text())[1])  # type: ignore[index]
        assert 0.001 < moved <= 1
        assert page.locator("#problem").is_hidden()
        before, after = (plotted(page, "next-both", "x", trace) for trace in (0, 1))
        assert not np.allclose(before, after, atol=1e-6)


class TestCompare:
    def test_two_atlases(self, tab: Tab) -> None:
        first, second = (scanned(f"builtin:{name}").heads for name in ("prose", "code"))
        page = tab.show(tab="compare", color="prev_mass")
        drawn = np.array(page.evaluate("document.getElementById('plot-compare-change').data[0].z"), float)
        grids = [
            table.pivot(index="layer", columns="head", values="prev_mass").to_numpy(float) for table in (first, second)
        ]
        np.testing.assert_allclose(drawn, grids[1] - grids[0], atol=1e-9)
        lines = [line.split("\t") for line in page.locator("#compare-here tbody tr").all_inner_texts()]
        missing = [line for line in lines if "\N{EN DASH}" in line[1:3]]
        assert missing  # the second scan has no constituents
        assert all(line[3] == "\N{EN DASH}" for line in missing)
        row = page.locator("[aria-label='The largest changes'] tbody tr").nth(3)
        head, measure, a, b, *_ = row.locator("td").all_inner_texts()
        row.get_by_role("button").click()
        layer, number = map(int, head.split("."))
        ready(page, "head", [layer, number])
        assert page.locator("#color").input_value() == measure
        values = [table.query(f"layer == {layer} and head == {number}")[measure].item() for table in (first, second)]
        assert [float(a), float(b)] == pytest.approx(values, rel=1e-3)


class TestSaving:
    def test_png_svg_and_json_of_a_figure(self, tab: Tab) -> None:
        page = tab.show(head=[2, 3], tab="text", text=TEXT)
        for card in ("attention", "frequency-share"):
            page.locator(f"#card-{card}").scroll_into_view_if_needed()
            for kind in ("png", "svg", "json"):
                with page.expect_download() as waiting:
                    page.locator(f"#card-{card} [data-save={kind}]").click()
                saved = Path(waiting.value.path()).read_bytes()
                assert waiting.value.suggested_filename.endswith(f".{kind}")
                if kind == "png":
                    assert saved.startswith(b"\x89PNG")
                elif kind == "svg":
                    assert saved.startswith(b"<svg")
                elif card == "attention":
                    z = np.array(json.loads(saved)["data"][0]["z"], float)
                    attention = tapped(TEXT, 2).attention()[0, 3].numpy()
                    np.testing.assert_allclose(z[9, :10], attention[9, :10], atol=1e-6)
                    assert np.isnan(z[9, 10])

    @pytest.mark.slow
    def test_a_link_restores_the_view(self, browser: Any, service: Service, tab: Tab) -> None:
        state = dict(head=[4, 3], color="first_mass", tab="text", text=TEXT, level="word", off=["cvec_cvec"], query=5)
        page = tab.show(**state)
        page.keyboard.press("]")
        ready(page, "query", 6)
        address, told = page.url, hovered(page, "chosen", 7, 2)
        context = window(browser, viewport={"width": 1366, "height": 850})
        try:
            other = context.new_page()
            other.goto(service.address)  # another browser needs the printed address once
            other.wait_for_selector(READY)
            other = context.new_page()
            other.goto(address)
            other.wait_for_selector(READY)
            assert other.locator("#head-name").inner_text().startswith("Head 4.3")
            assert other.locator("#color").input_value() == "first_mass"
            assert other.locator("#text").input_value() == TEXT
            assert other.locator("#term-cvec_cvec").get_attribute("aria-pressed") == "false"
            assert other.locator(".token.query").get_attribute("data-token") == "6"
            assert hovered(other, "chosen", 7, 2) == told
        finally:
            context.close()

    def test_an_address_that_holds_nonsense_is_no_harm(self, tab: Tab) -> None:
        page = tab.show(head=[99, "x"], tab="<b>", text=5, off=["nothing"], point=-3, change=None)
        assert page.locator("#head-name").inner_text().startswith("Head 0.0")
        assert page.locator("#problem").is_hidden()
        tab.show(head=[1, 2], __proto__={"tab": "text"}, constructor=1, toString=2)
        assert page.locator("#head-name").inner_text().startswith("Head 1.2")
        assert page.locator("#view-head").is_visible()


class TestLife:
    @pytest.mark.slow
    def test_two_tabs_do_not_disturb_each_other(self, browser: Any, service: Service) -> None:
        with (
            another(browser, service, head=[1, 1], tab="text", text=TEXT) as one,
            another(browser, service, head=[2, 1], tab="change", text=f"{TEXT} And again.") as two,
        ):
            for key in ("ArrowRight", "ArrowDown", "ArrowRight"):
                one.keyboard.press(key)
                two.keyboard.press(key)
            ready(one, "head", [2, 3])
            ready(two, "head", [3, 3])
            told = hovered(one, "attention", 9, 4)
            assert float(told["attention"]) == pytest.approx(float(tapped(TEXT, 2).attention()[0, 3, 9, 4]), rel=1e-4)
            assert one.locator("#text").input_value() == TEXT
            before = tapped(f"{TEXT} And again.", 3).attention()[0, 3, 9, 4]
            assert float(hovered(two, "before", 9, 4)["before"]) == pytest.approx(float(before), rel=1e-4)

    def test_a_killed_browser_leaves_no_running_work(self, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(texts, "look", slow := Slow())
        state = "&".join(f"{name}={quote(json.dumps(value))}" for name, value in (("tab", "text"), ("text", TEXT)))
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
            arguments = [*ARGUMENTS, "--headless=new", f"--user-data-dir={profile}", "--remote-debugging-port=0"]
            started = subprocess.Popen(
                [str(CHROMIUM), *arguments, f"{service.address}&{state}"],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            try:
                assert slow.begun.wait(PATIENCE)
                time.sleep(0.2)
                assert not slow.ended.is_set()
            finally:
                os.killpg(started.pid, signal.SIGKILL)  # a group of its own, which holds this browser alone
                started.wait(PATIENCE)
            assert slow.ended.wait(PATIENCE)
        wait_for(lambda: not service.viewer.worker.busy)

    def test_without_a_model_the_page_says_what_is_missing(self, browser: Any) -> None:
        with serving(alone=True) as alone, another(browser, alone, tab="text") as page:
            assert page.locator("#badge").inner_text() == "atlas only"
            assert "--model MODEL" in page.locator("#missing").inner_text()
            assert page.locator("#text").is_disabled()
            assert "--model MODEL" in page.locator("#view-text").inner_text()
            page.keyboard.press("3")
            assert "--model MODEL" in page.locator("#view-change").inner_text()
            page.keyboard.press("1")
            page.wait_for_selector(READY)
            assert len(plotted(page, "lags", "y", 2)) > 10
            assert "--compare" in page.locator("#view-compare").text_content()

    def test_what_the_browser_is_given_opens_the_viewer_and_the_key_leaves_the_address(
        self, browser: Any, tmp_path: Path
    ) -> None:
        with viewing(tmp_path) as (_, printed, argv):
            key, complaints = printed.partition("=")[2], Complaints()
            context, other = window(browser), window(browser)
            sent: list[str] = []
            context.on("request", lambda asked: sent.append(asked.url + str(asked.headers.get("referer", ""))))
            try:
                page = context.new_page()
                complaints.watch(page)
                page.goto(argv[1])
                page.wait_for_selector(READY)
                place = page.url.partition("#")[0]
                assert page.url == place == printed.partition("#")[0]
                assert list((tmp_path / "tmp").glob("armillary-*")) == []
                page.reload()
                page.wait_for_selector(READY)
                page.keyboard.press("ArrowRight")
                ready(page, "head", [0, 1])
                second = context.new_page()  # of the same browser: the plain address will do
                complaints.watch(second)
                second.goto(page.url)
                second.wait_for_selector(READY)
                assert second.locator("#head-name").inner_text().startswith("Head 0.1")
                elsewhere = other.new_page()  # of another browser: the printed address
                elsewhere.goto(place)
                elsewhere.wait_for_selector("#problem:not([hidden])")
                elsewhere.goto(printed)  # pasted over the page that was refused
                elsewhere.wait_for_selector(READY)
                assert key not in elsewhere.url
                elsewhere.go_back()
                assert key not in elsewhere.url
                assert not any(key in line or "code=" in line.partition("#")[0] for line in sent)
                assert complaints.all == []
            finally:
                context.close()
                other.close()

    def test_a_wrong_token_is_told_and_nothing_is_shown(self, browser: Any, service: Service) -> None:
        context = window(browser)
        try:
            page = context.new_page()
            page.goto(service.address[:-4] + "AAAA")
            page.wait_for_selector("#problem:not([hidden])")
            assert "token is missing or wrong" in page.locator("#problem").inner_text()
            assert page.locator("#about").inner_text() == ""
            assert page.locator("svg").count() == 0
        finally:
            context.close()

    @pytest.mark.parametrize("view", ["head", "text", "change", "spiral", "compare"])
    def test_axe_finds_nothing_serious(self, tab: Tab, view: str) -> None:
        page = tab.show(head=[2, 2], tab=view, text=TEXT, dims="2")
        before = page.locator("#keys").is_visible()
        page.keyboard.press("?")
        assert page.locator("#keys").is_visible() is not before
        assert violations(page) == []
