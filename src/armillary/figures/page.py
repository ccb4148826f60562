"""Figures in one HTML file that needs no network."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

import plotly.graph_objects as go

from armillary.files import write_atomically


def write_page(path: Path, title: str, figures: Sequence[go.Figure], text: str = "") -> None:
    """Write the figures, one below the other, with Plotly inside the file; title and text are never read as HTML."""
    parts = [
        figure.to_html(full_html=False, include_plotlyjs="inline" if i == 0 else False, config={"displaylogo": False})
        for i, figure in enumerate(figures)
    ]
    style = "body{font-family:system-ui,sans-serif;max-width:1200px;margin:2rem auto;padding:0 1rem;color:#222}"
    note = f"<pre>{escape(text)}</pre>" if text else ""
    page = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{style}pre{{white-space:pre-wrap}}</style></head><body><h1>{escape(title)}</h1>{note}"
        + "".join(parts)
        + "</body></html>"
    )
    write_atomically(path, page.encode("utf-8"))
