"""Write the ledger as one HTML page: formulas as MathML, evidence, and figures of the largest corrections."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert

from armillary.figures.page import html_page, place_for
from armillary.files.atomic import write_atomically
from armillary.papers.ledger.entry import Entry, Result
from armillary.papers.ledger.words import VERDICTS, sentence

STYLE = """
body{font-family:system-ui,sans-serif;max-width:1100px;margin:2rem auto;padding:0 1rem;color:#222;line-height:1.45}
h1{font-size:1.7rem}h2{margin-top:2.5rem;border-bottom:1px solid #ccc}
article{border-left:4px solid #bbb;padding:.2rem 0 .2rem 1rem;margin:1.1rem 0;break-inside:avoid}
article.holds{border-color:#2a9d5c}article.approximately{border-color:#e0a100}
article.differs{border-color:#c0392b}article.unresolved{border-color:#7b1fa2}
header{display:flex;gap:.8rem;align-items:baseline;flex-wrap:wrap}header b{font-size:1.05rem}
.verdict{font-size:.85rem;padding:.05rem .5rem;border-radius:.7rem;background:#eee}
.place{color:#666;font-size:.9rem}.label{color:#666;font-size:.85rem;display:inline-block;min-width:5.5rem}
ul{margin:.3rem 0;padding-left:1.2rem;font-size:.9rem;color:#333}math{font-size:1.05rem}
table.count{border-collapse:collapse}table.count td,table.count th{padding:.2rem .9rem;text-align:right}
table.count td:first-child{text-align:left}nav{columns:6;font-size:.85rem}nav a{display:block;color:#345}
"""


def write_page(path: Path, entries: Sequence[Entry], results: dict[str, Result], figures: dict[str, Any]) -> None:
    """Write the page; `figures` are Plotly figures by the id of the entry that they belong to."""
    papers = list(dict.fromkeys(entry.paper for entry in entries))
    body = [_counts(entries, results), _contents(entries, results)]
    for paper in papers:
        body.append(f"<h2>{escape(paper)}</h2>")
        body += [
            _article(entry, results[entry.id], place_for(entry.id) if entry.id in figures else "")
            for entry in entries
            if entry.paper == paper
        ]
    introduction = (
        "<p>Every statement of the four papers, re-checked. Each verdict follows from the numbers below it; nothing "
        "but the statements is written by hand.</p>"
    )
    write_atomically(path, html_page("The theory ledger", introduction + "".join(body), figures, STYLE).encode("utf-8"))


def formula(tex: str) -> str:
    """TeX as MathML; as source if it cannot be converted."""
    if not tex:
        return ""
    try:
        return str(convert(tex))
    except Exception:
        return f"<code>{escape(tex)}</code>"


def _article(entry: Entry, result: Result, figure: str) -> str:
    evidence = "".join(f"<li>{escape(sentence(item))}</li>" for item in result.evidence)
    corrected = f'<div><span class="label">corrected</span>{formula(entry.corrected)}</div>' if entry.corrected else ""
    command = f"<p>Measured by <code>{escape(entry.command)}</code></p>" if entry.command else ""
    remark = f"<p>{escape(entry.remark)}</p>" if entry.remark else ""
    return (
        f'<article class="{result.verdict.split()[0]}" id="{escape(entry.id)}"><header><b>{escape(entry.id)}</b>'
        f'<span class="verdict">{VERDICTS[result.verdict]}</span>'
        f'<span class="place">{escape(entry.place)}</span></header>'
        f'<p>{escape(entry.statement)}</p><div><span class="label">as printed</span>{formula(entry.printed)}</div>'
        f"{corrected}{remark}{command}<ul>{evidence}</ul>{figure}</article>"
    )


def _counts(entries: Sequence[Entry], results: dict[str, Result]) -> str:
    papers = list(dict.fromkeys(entry.paper for entry in entries))
    head = "".join(f"<th>{label}</th>" for label in VERDICTS.values())
    rows = []
    for paper in papers:
        verdicts = [results[entry.id].verdict for entry in entries if entry.paper == paper]
        cells = "".join(f"<td>{verdicts.count(verdict)}</td>" for verdict in VERDICTS)
        rows.append(f"<tr><td>{escape(paper)}</td>{cells}</tr>")
    return f'<table class="count"><tr><th></th>{head}</tr>{"".join(rows)}</table>'


def _contents(entries: Sequence[Entry], results: dict[str, Result]) -> str:
    differs = [entry.id for entry in entries if results[entry.id].verdict == "differs"]
    links = "".join(f'<a href="#{escape(name)}">{escape(name)}</a>' for name in differs)
    return f"<h2>Where print and measurement differ</h2><nav>{links}</nav>"
