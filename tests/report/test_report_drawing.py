"""What the report draws at many layers, and shares that a stack of bars must be able to show."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from armillary import figures
from armillary.report import page, pictures
from browser import chromium, opened


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as running:
        yield running


def labeled(layers: int, heads: int = 9) -> pd.DataFrame:
    layer, head = np.divmod(np.arange(layers * heads), heads)
    label = np.where((layer + head) % 3 > 0, "local", "self")
    return pd.DataFrame({"layer": layer, "head": head, "label": pd.Series(label, dtype="str")})


def lettered(figure: Any) -> bool:
    return any(trace.texttemplate for trace in figure.data)


def test_a_map_grows_with_its_layers_until_letters_no_longer_fit() -> None:
    few, many, most = (figures.measure_map(labeled(n), "label") for n in (6, 30, 200))
    assert few.layout.height < many.layout.height < most.layout.height <= 1600
    assert lettered(few)
    assert lettered(many)
    assert not lettered(most)
    assert "self" in {trace.name for trace in most.data}  # the legend and hovering tell what letters no longer do
    assert all("label: " in trace.hovertemplate for trace in most.data)


def test_the_first_screen_grows_with_the_layers() -> None:
    heights = [pictures.kinds(labeled(n))[0].layout.height for n in (6, 16, 30, 200)]
    assert heights[0] == heights[1] < heights[2] < heights[3] == 600


def test_the_browser_shows_letters_where_cells_have_room(browser: Any, tmp_path: Path) -> None:
    cards = [page.Card("", page.Picture(pictures.kinds(labeled(n))[0], "")) for n in (6, 30)]
    section = page.Section("maps", "Maps", [page.Picture(figures.measure_map(labeled(30), "label"), "")])
    data = {"kind": "atlas", "labels": {}, "maps": {}, "panels": {}, "arrays": {}, "evidence": []}
    file = tmp_path / "maps.html"
    file.write_text(page.render(page.Page("Maps", "", cards, [section], data)))
    with opened(browser, file.as_uri()) as (window, complaints):
        letters = window.evaluate(
            """async () => {
                const plots = [...document.querySelectorAll("[data-figure]")];
                for (const plot of plots) plot.scrollIntoView();
                await new Promise((done) => setTimeout(done, 800));
                return plots.map((plot) => plot.querySelectorAll(".heatmap-label").length);
            }"""
        )
        assert letters[0] == 54  # all heads of 6 layers
        assert letters[1] == 0  # a card of 30 layers has no room
        assert letters[2] == 270  # the map of the section has grown
        assert not complaints.all


def shares(content: float) -> pd.DataFrame:
    """Two layers of one head; content has this share in the second, what is mixed makes up for it."""
    parts = {"share_mean_mean": 0.2, "share_mean_pos": 0.1, "share_pos_mean": 0.1, "share_pos_pos": 0.1}
    table = pd.DataFrame({"layer": [0, 1], "head": [0, 0], **{name: [value] * 2 for name, value in parts.items()}})
    table = table.assign(share_bias=np.nan, content_share=[0.3, content], positional_share=0.5)
    return table.assign(mixed_share=0.5 - table["content_share"])


def test_shares_below_zero_are_drawn_below_zero_and_explained() -> None:
    found = pictures.position(shares(-0.15), pd.DataFrame())
    assert found is not None
    figure, caption = found
    bars = {bar.name: bar.y[1] for bar in figure.data}
    assert figure.layout.barmode == "relative"  # what is negative hangs below zero, the rest stands on it
    assert bars["content"] == pytest.approx(-0.15)
    assert sum(value for value in bars.values() if value > 0) == pytest.approx(1.15)
    assert sum(bars.values()) == pytest.approx(1.0)
    assert sorted(shape.y0 for shape in figure.layout.shapes) == [0, 1]  # lines at 0 % and 100 %
    assert "opposes the others" in caption
    assert "100 %" in caption


def test_plain_shares_need_no_explanation() -> None:
    found = pictures.position(shares(0.2), pd.DataFrame())
    assert found is not None
    assert not found[0].layout.shapes
    assert "against" not in found[1]
