"""Write figures to one self-contained HTML file, whose policy allows only its own scripts."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from armillary.figures.policy import content_policy, embedded
from armillary.files.atomic import write_atomically

STYLE = """
body{font-family:system-ui,sans-serif;max-width:1200px;margin:2rem auto;padding:0 1rem;color:#222}
pre{white-space:pre-wrap}
"""

SCRIPT = """
const figures = JSON.parse(document.getElementById("figures").textContent);
const places = [...document.querySelectorAll("[data-figure]")];
const drawn = places.map((place) => {
  const { data, layout } = figures[place.dataset.figure];
  return Plotly.newPlot(place, data, layout, { displaylogo: false, responsive: true });
});
Promise.all(drawn).then(() => (document.documentElement.dataset.ready = "yes"));
"""


def write_page(path: Path, title: str, figures: Sequence[go.Figure], text: str = "") -> None:
    """Write the figures, one below the other, with Plotly in the file; title and text are escaped."""
    named = {str(i): figure for i, figure in enumerate(figures)}
    note = f"<pre>{escape(text)}</pre>" if text else ""
    write_atomically(path, html_page(title, note + "".join(map(place_for, named)), named).encode("utf-8"))


def place_for(name: str) -> str:
    """The element in which the figure of that name is drawn."""
    return f'<div data-figure="{escape(name)}"></div>'


def html_page(title: str, body: str, figures: Mapping[str, go.Figure], style: str = STYLE) -> str:
    """A whole file: the title as text, the body as HTML, and the figures for which the body has places."""
    scripts = [get_plotlyjs(), SCRIPT] if figures else []
    data = {name: json.loads(str(figure.to_json())) for name, figure in figures.items()}
    held = f'<script type="application/json" id="figures">{embedded(data)}</script>' if figures else ""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{content_policy(scripts)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer"><link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{style}</style></head><body><h1>{escape(title)}</h1>{body}{held}"
        + "".join(f"<script>{script}</script>" for script in scripts)
        + "</body></html>"
    )
