"""Write a self-contained HTML report: what a model's heads do, or how atlases differ."""

from pathlib import Path

from armillary.atlas.atlas import Atlas, open_atlas
from armillary.files.atomic import make_folder, write_atomically
from armillary.report.changes import comparison_page
from armillary.report.page import render
from armillary.report.series import series_page
from armillary.report.whole import atlas_page

__all__ = ["report_html", "write_report"]


def report_html(atlas: Atlas, *others: Atlas) -> str:
    """The report of an atlas as HTML; with another one, of what changed; with more, of the series."""
    if len(others) > 1:
        return render(series_page([atlas, *others]))
    return render(comparison_page(atlas, others[0]) if others else atlas_page(atlas))


def write_report(folder: str | Path, *others: str | Path, out: str | Path | None = None) -> Path:
    """Write the report of an atlas (or several) and return its path: `out`, or report.html in the first folder."""
    atlases = [open_atlas(place) for place in (folder, *others)]
    path = Path(out) if out is not None else Path(folder) / "report.html"
    make_folder(path.parent)
    write_atomically(path, report_html(*atlases).encode("utf-8"))
    return path
