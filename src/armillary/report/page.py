"""Render sections as one HTML file: escaped text, JSON data, inlined scripts and styles, a content security policy."""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from latex2mathml.converter import convert
from plotly.offline import get_plotlyjs

from armillary.atlas.columns import TABLES, definition, in_order
from armillary.figures.policy import content_policy, embedded
from armillary.report.dossiers import plain

SCRIPTS = (
    "format.js",
    "plots.js",
    "filter.js",
    "popover.js",
    "table.js",
    "dossier.js",
    "map.js",
    "timeline.js",
    "main.js",
)
"""The page's modules, each after those that it imports."""


@dataclass(frozen=True)
class Words:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Picture:
    """A figure with its caption; `opens` where a click on a head opens its dossier."""

    figure: go.Figure
    caption: str
    opens: bool = False


@dataclass(frozen=True)
class Grid:
    """A sortable table; `meaning` is its entry in TABLES. `sets` are named sets of columns, the first is shown."""

    name: str
    table: pd.DataFrame
    meaning: str
    caption: str
    sets: dict[str, list[str]] = field(default_factory=dict)
    filters: bool = False
    sort: str = ""


@dataclass(frozen=True)
class Pairs:
    """Names with their values, as text."""

    rows: dict[str, str]


@dataclass(frozen=True)
class HeadMap:
    """A map of all heads, colored by a measure that the reader chooses."""

    caption: str


@dataclass(frozen=True)
class TimeSlider:
    """A slider over checkpoints: the map of heads, the loss with births, and the curves of a chosen column."""

    columns: Sequence[str]
    unit: str
    steps: Sequence[str]


Block = Words | Picture | Grid | Pairs | HeadMap | TimeSlider


@dataclass(frozen=True)
class Section:
    """A part of the report."""

    id: str
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Card:
    """A sentence of the first screen with its picture, if there is one."""

    text: str
    picture: Picture | None


@dataclass(frozen=True)
class Page:
    """Everything in the file. `data` is what the scripts need besides tables and figures."""

    title: str
    subtitle: str
    cards: Sequence[Card]
    sections: Sequence[Section]
    data: dict[str, Any]


def render(page: Page) -> str:
    """The file's text."""
    figures: dict[str, Any] = {}
    tables: dict[str, Any] = {}
    cards = "".join(_card(card, i, figures) for i, card in enumerate(page.cards))
    body = "".join(_section(section, figures, tables) for section in page.sections)
    used = {(table["meaning"], column["name"]) for table in tables.values() for column in table["columns"]}
    links = [(section.id, section.title) for section in page.sections] + [("definitions", "Definitions")]
    data = {**page.data, "figures": figures, "tables": tables, "template": _template()}
    scripts = [get_plotlyjs(), script()]
    parts = {
        "policy": content_policy(scripts),
        "title": escape(page.title),
        "subtitle": escape(page.subtitle),
        "style": asset("report.css"),
        "links": "".join(f'<li><a href="#{name}">{escape(title)}</a></li>' for name, title in links),
        "cards": cards,
        "sections": body + _definitions(used),
        "data": embedded(data),
        "plotly": scripts[0],
        "script": scripts[1],
    }
    return _filled("report.html", parts)


def _filled(template: str, parts: dict[str, str]) -> str:
    """A template with its slots filled, in one pass: a name in the atlas that looks like a slot is not replaced."""
    return re.sub(r"\{\{(\w+)\}\}", lambda slot: parts[slot[1]], asset(template))


@cache
def asset(name: str) -> str:
    """A file of this package."""
    return files("armillary.report").joinpath(name).read_text(encoding="utf-8")


@cache
def script() -> str:
    """All modules as one script, without 'import' and 'export': exported names are unique on the page."""
    text = "\n".join(asset(name) for name in SCRIPTS)
    text = re.sub(r'^import .*? from "\./.*?";\n', "", text, flags=re.MULTILINE)
    return re.sub(r"^export ", "", text, flags=re.MULTILINE)


@cache
def _template() -> dict[str, Any]:
    empty = go.Figure(layout=dict(template="plotly_white"))
    template: dict[str, Any] = json.loads(empty.to_json())["layout"]["template"]
    return template


# blocks -----------------------------------------------------------------------------------------------------------


def _card(card: Card, number: int, figures: dict[str, Any]) -> str:
    drawn = _picture(card.picture, f"first-{number}", figures, titled=False) if card.picture else ""
    return f'<article class="card"><p class="sentence">{escape(card.text)}</p>{drawn}</article>'


def _section(section: Section, figures: dict[str, Any], tables: dict[str, Any]) -> str:
    parts = [f'<section id="{section.id}" aria-labelledby="{section.id}-title">']
    parts.append(f'<h2 id="{section.id}-title">{escape(section.title)}</h2>')
    for i, block in enumerate(section.blocks):
        if isinstance(block, Words):
            parts.append(f"<p>{escape(block.text)}</p>")
        elif isinstance(block, Picture):
            parts.append(_picture(block, f"{section.id}-{i}", figures))
        elif isinstance(block, Grid):
            parts.append(_grid(block, tables))
        elif isinstance(block, HeadMap):
            parts.append(
                '<figure class="map"><div class="controls"><label>Color heads by '
                '<select id="map-measure"></select></label></div><div class="plot" id="map" role="group" '
                f'aria-label="{escape(block.caption)}"></div><figcaption>{escape(block.caption)}</figcaption></figure>'
            )
        elif isinstance(block, TimeSlider):
            parts.append(_time_slider(block))
        else:
            rows = "".join(f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>" for key, value in block.rows.items())
            parts.append(f'<dl class="pairs">{rows}</dl>')
    return "".join([*parts, "</section>"])


def _picture(picture: Picture, name: str, figures: dict[str, Any], *, titled: bool = True) -> str:
    figures[name] = {**plain(picture.figure), "opens": picture.opens}
    title = figures[name]["layout"].pop("title", {}).get("text", "")
    height = int(figures[name]["layout"].get("height", 400))
    heading = f"<strong>{title}.</strong> " if title and titled else ""
    caption = escape(picture.caption)
    return (
        f'<figure><div class="plot" role="group" aria-label="{caption}" data-figure="{name}" '
        f'style="min-height:{height}px"></div><figcaption>{heading}{caption}</figcaption></figure>'
    )


def _time_slider(block: TimeSlider) -> str:
    """The controls and the places of the figures, which timeline.js fills."""
    shown = (f'<option value="{escape(name)}">{escape(name.replace("_", " "))}</option>' for name in block.columns)
    slots = {
        "last": str(len(block.steps) - 1),
        "now": escape(f"{block.unit} {block.steps[-1]}"),
        "options": "".join(shown),
    }
    return _filled("timeline.html", slots)


def _grid(grid: Grid, tables: dict[str, Any]) -> str:
    tables[grid.name] = {
        "meaning": grid.meaning,
        "columns": [_column(grid, str(column)) for column in grid.table.columns],
        "sets": grid.sets,
        "filters": grid.filters,
        "sort": grid.sort,
        "caption": grid.caption,
    }
    return f'<div class="grid" data-table="{grid.name}"></div>'


def _column(grid: Grid, name: str) -> dict[str, Any]:
    values = grid.table[name]
    number = pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)
    declared = definition(grid.meaning, name)
    cells = [_number(value) for value in values] if number else [_word(value) for value in values]
    return {"name": name, "number": number, "words": declared.words if declared else "", "values": cells}


def _word(value: Any) -> str | None:
    """A word as it is, yes or no, or null where it is missing."""
    if pd.isna(value):
        return None
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _number(value: Any) -> float | int | None:
    """A number to seven digits, whole ones as they are; missing and infinite ones as null."""
    if pd.isna(value) or not math.isfinite(float(value)):
        return None
    number = float(f"{float(value):.7g}")
    return int(number) if number.is_integer() and abs(number) < 1e15 else number


def _definitions(used: set[tuple[str, str]]) -> str:
    parts = [
        '<section id="definitions" aria-labelledby="definitions-title"><h2 id="definitions-title">Definitions</h2>'
    ]
    parts.append("<p>Every column of the tables above. Averages exclude padding and masked entries.</p>")
    for table in TABLES:
        columns = [column for meaning, column in sorted(used) if meaning == table]
        if not columns:
            continue
        parts.append(f"<details><summary>{table} ({len(columns)})</summary><dl>")
        for column in in_order(table, columns):
            declared = definition(table, column)
            formula = f" {convert(declared.formula)}" if declared and declared.formula else ""
            words = escape(declared.words) if declared else "This column has no definition yet."
            parts.append(
                f'<div id="def-{table}-{escape(column)}"><dt>{escape(column)}</dt><dd>{words}{formula}</dd></div>'
            )
        parts.append("</dl></details>")
    return "".join([*parts, "</section>"])
