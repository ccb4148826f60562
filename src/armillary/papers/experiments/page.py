"""Write EXPERIMENTS.md from the result folders, paper by paper."""

from collections import Counter
from pathlib import Path

from armillary.errors import ArmillaryError
from armillary.figures.export import svgs
from armillary.files.atomic import make_folder, write_atomically
from armillary.papers.experiments.experiment import SAME_SIZE
from armillary.papers.experiments.registry import experiments
from armillary.papers.experiments.results import Result, read_all

TITLES = {
    "Song": "Song and Zhong: positions, contexts and constituents",
    "Wertich": "Wertich: attention as a bilinear form on Gaussian data",
    "Bao": "Bao, Hataya and Karakida: spectra, propagation and LocAteR",
    "Barbero": "Barbero et al.: what rotary frequencies are for",
}


FOREMOST = "rotary-mean"
"""The experiment that no paper has; its findings are listed first."""


def write_experiments(results: Path, to: Path) -> int:
    """Write the page and its figures (in a folder beside it, of the same name); returns the number of results."""
    finished = read_all(results)
    if not finished:
        raise ArmillaryError(f"there is no result in {results}", advice="`armillary experiment run --quick` makes some")
    pictures = to.with_suffix("")
    pictures = pictures.with_name(pictures.name.lower()) / "figures"
    make_folder(pictures)
    figures = [(result, name) for result in finished for name in result.figures]
    for (result, name), svg in zip(figures, svgs([result.figure(name) for result, name in figures]), strict=True):
        write_atomically(pictures / f"{result.name}-{name}.svg", svg.encode("utf-8"))
    relative = pictures.relative_to(to.parent)
    write_atomically(to, "\n".join(lines(finished, relative)).encode("utf-8"))
    return len(finished)


def lines(results: list[Result], pictures: Path) -> list[str]:
    """The lines of the page; `pictures` is the path of its figures relative to the page."""
    counts = Counter(claim.verdict for result in results for claim in result.claims)
    known = experiments()
    minutes = sum(known[result.name].minutes for result in results)
    sizes = sorted({result.size for result in results})
    by_importance = sorted(results, key=lambda result: result.name != FOREMOST)
    lines = [
        "# The papers' tables and figures, run again",
        "",
        "Written by `armillary experiment page` from the result folders. What was found is never typed; what the "
        "papers printed is quoted with its place.",
        f"{len(results)} experiments ({', '.join(sizes)} size), which take some {minutes:.0f} minutes of one core "
        "where nothing is kept from earlier runs. Of the papers' "
        f"{sum(counts.values())} claims that were put to the test: "
        + ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
        + ".",
        "",
        f"*Same size*: a number within {SAME_SIZE:.0%} of the printed one (of the larger of the two), or within two "
        "standard errors. *Same direction*: the order or the sign that the paper states, beyond two standard errors "
        "where there are any. *Differs*: the other way round, or another size. *Undecided*: within two standard errors "
        "of no difference, the models disagree, or there is nothing to measure. The last column says what is different "
        "here, or names a reason: one that was tested where it cites a row of the ledger (`armillary theory`), else a "
        "guess. 'A against B' are the two sides in the order of the sentence.",
        "",
        "## What was learned that the papers do not say",
        "",
        *(f"- {sentence} ([{result.name}](#{result.name}))" for result in by_importance for sentence in result.learned),
        "",
    ]
    for paper, title in TITLES.items():
        own = [result for result in results if result.paper == paper]
        if own:
            lines += [f"## {title}", "", *(line for result in own for line in _section(result, pictures))]
    return lines


def _section(result: Result, pictures: Path) -> list[str]:
    lines = [
        f"### {result.name}",
        "",
        f"**{result.of}.** {result.question} (`armillary experiment run {result.name}`, {result.size} size)",
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
