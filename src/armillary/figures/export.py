"""Export figures as SVG, drawn by an installed browser (Plotly needs one)."""

import shutil
from collections.abc import Sequence
from urllib.parse import unquote

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from armillary.errors import ArmillaryError

# Imports inside functions: playwright is an optional package.

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update")


def svgs(figures: Sequence[go.Figure], *, width: int = 900) -> list[str]:
    """Each figure as the text of an SVG file. Needs Playwright and a Chromium; 3-D plots are not drawn."""
    browser = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        raise ArmillaryError("pictures need Playwright: pip install 'armillary[pictures]'") from error
    if browser is None:
        raise ArmillaryError(f"pictures need a browser; none of {', '.join(BROWSERS)} is installed (apt-get: chromium)")
    with sync_playwright() as started:
        opened = started.chromium.launch(executable_path=browser, args=list(FLAGS))
        page = opened.new_page()
        page.set_content("<!doctype html><title>figure</title><div id='here'></div>")
        page.add_script_tag(content=get_plotlyjs())
        drawn = []
        for figure in figures:
            height = figure.layout.height or 480
            size = {"format": "svg", "width": figure.layout.width or width, "height": height}
            script = "([figure, size]) => Plotly.toImage(JSON.parse(figure), size)"
            address = page.evaluate(script, [figure.to_json(), size])
            drawn.append(unquote(address.removeprefix("data:image/svg+xml,")))
        opened.close()
    return drawn
