"""The page of a timeline in a real browser: the slider, the births, the curves; no network, no server; axe."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from armillary.atlas.timelines.timeline import Timeline
from armillary.report.timeline import timeline_html, write_timeline_page
from armillary.report.timeline_sentences import births_sentence, change_sentence, loss_sentence
from browser import PATIENCE, chromium, opened, violations
from timelines import STEPS, story


@pytest.fixture(scope="module")
def timeline(tmp_path_factory: pytest.TempPathFactory) -> Timeline:
    notes = ["step-00000005 could not be scanned: </script><script>alert(1)</script>"]
    return story(tmp_path_factory.mktemp("story"), about={"notes": notes})


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as running:
        yield running


def test_sentences(timeline: Timeline) -> None:
    assert births_sentence(timeline) == (
        "3 of 4 heads are born in this time: a previous head (L0H0) at step 20; an induction head (L1H0) at step 40; "
        "a first-token head (L1H1) at step 40."
    )
    assert (
        loss_sentence(timeline) == "The loss on this text falls from 7.00 nats per token at step 0 to 3.00 at step 80."
    )
    changes = timeline.changes()
    assert "of head L1H0 goes from 0.02 at step 20 to 0.8 at step 40" in change_sentence(
        changes[changes["measure"] == "induction_score"], "step"
    )


def test_the_page_holds_every_checkpoint(timeline: Timeline) -> None:
    html = timeline_html(timeline)
    data = json.loads(re.search(r'id="data">(.*?)</script>', html, re.S)[1])  # type: ignore[index]
    time = data["timeline"]
    assert time["steps"] == list(STEPS)
    for at in range(len(STEPS)):
        words = ["" if code < 0 else time["names"][code] for code in time["codes"][at]]
        assert words == timeline.labels[at].ravel().tolist()
    assert time["columns"]["induction_score"][3][2] == 0.8
    assert "alert(1)</script>" not in html


def test_the_slider_moves_by_keyboard_and_shows_the_heads_of_that_step(
    timeline: Timeline, browser: Any, tmp_path: Path
) -> None:
    page = write_timeline_page(timeline, tmp_path / "page.html")
    with opened(browser, page.as_uri()) as (view, complaints):
        view.wait_for_selector("html[data-ready=yes]")
        view.wait_for_selector("#time-map .main-svg")
        view.wait_for_selector("#time-curves .main-svg")
        assert view.locator("#time-now").text_content() == "step 80"
        shown = "document.getElementById('time-map').data[0].customdata.flat()"
        assert view.evaluate(shown)[2] == "induction"
        view.locator("#time").focus()
        for _ in range(2):
            view.keyboard.press("ArrowLeft")
        assert view.locator("#time-now").text_content() == "step 20"
        assert view.locator("#time").get_attribute("aria-valuetext") == "step 20"
        assert view.evaluate(shown)[2] == "mixed, not significant"
        assert view.evaluate("document.getElementById('time-loss').layout.shapes[0].x0") == 2
        assert "mixed 1" in str(view.locator("#time-legend").text_content())
        view.keyboard.press("Home")
        assert view.locator("#time-before").is_disabled()
        view.locator("#time-next").click()
        assert view.locator("#time-now").text_content() == "step 10"
        view.locator("#time-column").select_option("prev_mass")
        lines = view.evaluate("document.getElementById('time-curves').data.map((t) => [t.name, t.customdata[0], t.y])")
        (induction,) = [y for name, head, y in lines if name == "induction"]
        assert induction[:5] == pytest.approx([0.01, 0.01, 0.01, 0.4, 0.4])
        births = view.locator("[data-table=births] tbody tr").all_text_contents()
        assert len(births) == 3
        assert violations(view) == []
        view.set_viewport_size({"width": 800, "height": 900})
        for _ in range(10 * PATIENCE):  # figures follow the window in their own time
            if view.evaluate("document.documentElement.scrollWidth <= innerWidth"):
                break
            view.wait_for_timeout(100)
        assert view.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert complaints.all == []
