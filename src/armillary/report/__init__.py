"""Write a self-contained HTML report: what a model's heads do, or how two atlases differ."""

from pathlib import Path

from armillary.atlas.atlas import Atlas, open_atlas
from armillary.files.atomic import make_folder, write_atomically
from armillary.report.changes import comparison_page
from armillary.report.page import render
from armillary.report.whole import atlas_page

__all__ = ["report_html", "write_report"]


def report_html(atlas: Atlas, other: Atlas | None = None) -> str:
    """The report of an atlas as HTML; with another atlas, the report of what changed."""
    return render(atlas_page(atlas) if other is None else comparison_page(atlas, other))


def write_report(folder: str | Path, other: str | Path | None = None, *, out: str | Path | None = None) -> Path:
    """Write the report of an atlas (or two) and return its path: `out`, or report.html in the folder."""
    atlas = open_atlas(folder)
    second = None if other is None else open_atlas(other)
    path = Path(out) if out is not None else Path(folder) / "report.html"
    make_folder(path.parent)
    write_atomically(path, report_html(atlas, second).encode("utf-8"))
    return path
