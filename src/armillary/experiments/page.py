"""EXPERIMENTS.md: what the results say, paper by paper, every number from the result folders."""

from collections import Counter
from pathlib import Path

from armillary.errors import ArmillaryError
from armillary.experiments.results import Result, read_all
from armillary.figures.export import svgs
from armillary.files import write_atomically

TITLES = {
    "Song": "Song and Zhong: positions, contexts and constituents",
    "Wertich": "Wertich: attention as a bilinear form on Gaussian data",
    "Bao": "Bao, Hataya and Karakida: spectra, propagation and LocAteR",
    "Barbero": "Barbero et al.: what rotary frequencies are for",
}


def write_experiments(results: Path, to: Path) -> int:
    """Write the page and its pictures (a folder beside it, named like it); returns how many results it tells of."""
    found = read_all(results)
    if not found:
        raise ArmillaryError(f"there is no result in {results}: `armillary experiment run --quick` makes some")
    pictures = to.with_suffix("")
    pictures = pictures.with_name(pictures.name.lower()) / "figures"
    pictures.mkdir(parents=True, exist_ok=True)
    named = [(result, name) for result in found for name in result.figures]
    for (result, name), svg in zip(named, svgs([result.figure(name) for result, name in named]), strict=True):
        write_atomically(pictures / f"{result.name}-{name}.svg", svg.encode("utf-8"))
    shown = pictures.relative_to(to.parent)
    write_atomically(to, "\n".join(_lines(found, shown)).encode("utf-8"))
    return len(found)


def _lines(found: list[Result], pictures: Path) -> list[str]:
    counts = Counter(claim.verdict for result in found for claim in result.claims)
    minutes = sum(result.seconds for result in found) / 60
    sizes = sorted({result.size for result in found})
    lines = [
        "# The papers' tables and figures, run again",
        "",
        "Written by `armillary experiment page` from the result folders; no number here was typed.",
        f"{len(found)} experiments ({', '.join(sizes)} size), {minutes:.0f} minutes in all. Of the papers' "
        f"{sum(counts.values())} claims that were put to the test: "
        + ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
        + ".",
        "",
        "## What was learned that the papers do not say",
        "",
        *(f"- {sentence} ([{result.name}](#{result.name}))" for result in found for sentence in result.learned),
        "",
    ]
    for paper, title in TITLES.items():
        own = [result for result in found if result.paper == paper]
        if own:
            lines += [f"## {title}", "", *(line for result in own for line in _section(result, pictures))]
    return lines


def _section(result: Result, pictures: Path) -> list[str]:
    lines = [
        f"### {result.name}",
        "",
        f"**{result.of}.** {result.question} ({result.size} size, {result.seconds:.0f} s)",
        "",
        "| verdict | the paper says | printed | found | why |",
        "|---|---|---|---|---|",
        *(
            f"| {c.verdict} | {_cell(c.says)} | {_cell(c.printed)} | {_cell(c.found)} | {_cell(c.why)} |"
            for c in result.claims
        ),
        "",
    ]
    for name in result.figures:
        lines += [f"![{name.replace('_', ' ')}]({pictures.as_posix()}/{result.name}-{name}.svg)", ""]
    return lines


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
