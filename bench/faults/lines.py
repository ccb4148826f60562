"""Absurd command lines: a command that works, with one or two of its arguments replaced, added or left out."""

import random
from pathlib import Path

from faults.material import TEXT

WORDS = " ".join(TEXT.split()[:12])
NUMBERS = (
    "-1",
    "0",
    "1",
    "2.5",
    "1e3",
    "1e400",
    "nan",
    "inf",
    "-inf",
    "",
    " ",
    "x",
    "0x10",
    "٣",
    "²",
    "1_0",
    "9" * 12,
    "9" * 30,
    "--",
    "None",
)
PATHS = (
    "",
    ".",
    "/",
    "{null}",
    "{full}",
    "{pipe}",
    "no/such/folder",
    "~nobody/x",
    "a\tb",
    "x" * 300,
    "file.txt",
    "{atlas}",
    "{model}",
)
WORDS_OF_CHOICE = (
    "",
    " ",
    "x",
    "AUTO",
    "none",
    "-",
    ",",
    ",,",
    "0,0",
    "9999",
    "-1",
    "0-",
    "3-1",
    "²",
    "٣",
    "q,k,z",
    "a=b",
    "\N{SNOWMAN}",
    "é" * 200,
)
HEADS = (
    "",
    ".",
    "0",
    "0.",
    ".0",
    "0.99",
    "99.0",
    "-1.0",
    "0.-1",
    "².³",
    "0.0.0",
    "1e1.0",
    "a.b",
    "\u0660.\u0661",
    "0.1 ",
    "L0H1",
    "9" * 30 + ".0",
)
TEXTS = (
    "",
    " ",
    "\n",
    "a",
    "\N{SNOWMAN}",
    "\u0000"[:0] + "\u200b",
    "word " * 30,
    "\ud800".encode("utf-8", "surrogatepass").decode("utf-8", "replace"),
)

OPTIONS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("--length", "--sequences", "--skip", "--batch", "--shard", "--seed", "--second-pass", "--workers"), NUMBERS
    ),
    **dict.fromkeys(("--threads", "--layer", "--rows", "--generate", "--cut", "--blocks", "--components"), NUMBERS),
    **dict.fromkeys(("--scale", "--share", "--shrinkage", "--port", "--processes"), NUMBERS),
    **dict.fromkeys(
        ("--out", "--html", "--model", "--corpus", "--prompt-file", "--atlas", "--record", "--compare"), PATHS
    ),
    **dict.fromkeys(
        ("--streams", "--bos", "--when-nan", "--device", "--dtype", "--device-map", "--engine"), WORDS_OF_CHOICE
    ),
    **dict.fromkeys(
        ("--part", "--sort", "--columns", "--against", "--level", "--layers", "--heads", "--weights"), WORDS_OF_CHOICE
    ),
    **dict.fromkeys(
        ("--keep", "--remove", "--parts", "--paper", "--sweep", "--size", "--host", "--spans", "--address"),
        WORDS_OF_CHOICE,
    ),
    "--head": HEADS,
    "--text": TEXTS,
}
"""What each option may be given in place of something sensible."""
TAKES = {
    "scan": "--length --sequences --skip --batch --shard --seed --second-pass --workers --threads --out --corpus "
    "--streams --bos --when-nan --device --dtype --device-map --engine --part --address",
    "weights": "--seed --workers --threads --out --against --html --engine",
    "merge": "--workers --threads --out --model --device --engine",
    "heads": "--sort --layer --columns",
    "layers": "--sort --layer --columns",
    "labels": "",
    "show": "--text --model --html",
    "compare": "--rows",
    "report": "--out",
    "frequencies": "--head --layer --share --text --model --html",
    "gaussian": "--head --shrinkage --components --columns --html",
    "localization": "--head --html",
    "intervene": "--scale --cut --keep --remove --parts --layers --heads --seed --text --generate --html --out --atlas",
    "map": "--text --prompt-file --level --layers --heads --weights --spans --rows --html",
    "rope": "--sweep --corpus --length --sequences --html",
    "train": "--out --seed",
    "runs": "--html",
    "theory": "--paper --seed --processes --html",
    "inspect": "",
    "verify-heads": "--model --blocks --heads",
    "view": "--model --compare --port --host",
    "check": "",
    "experiment show": "--out",
    "doctor": "",
}
REFUSED_ALWAYS = {
    ("scan", "--corpus", ""),
    ("rope", "--corpus", ""),
    ("scan", "--streams", ""),
    ("scan", "--device", "meta"),
    *((command, "--workers", value) for command in ("scan", "weights", "merge") for value in ("0", "-1", "")),
    *(
        ("scan", option, value)
        for option in ("--length", "--sequences", "--batch", "--shard")
        for value in ("0", "-1", "nan")
    ),
    ("scan", "--skip", "-1"),
    ("compare", "--rows", "-1"),
    ("map", "--rows", "-1"),
    ("theory", "--processes", "0"),
    ("theory", "--processes", "-1"),
    *(("show", "L.H", head) for head in HEADS if head not in ("\u0660.\u0661", "0.1 ")),
    *(
        (command, "--out", value)
        for command in ("scan", "weights")
        for value in ("", "{null}", "{full}", "{pipe}", "{model}")
    ),
    *((command, "--html", "{full}") for command in ("map", "show", "runs", "theory")),
}
"""(command, option, value) that no guess makes sense of."""


def working(command: str, base: Path) -> list[str]:
    """Arguments with which a command works."""
    atlas, model = str(base / "atlas"), str(base / "model")
    small = ["--sequences", "2", "--length", "8", "--second-pass", "2"]
    return {
        "scan": [model, *small, "--out", "made"],
        "weights": [str(base / "sample"), "--no-matrices", "--out", "made"],
        "merge": [str(base / "part-1"), str(base / "part-2"), "--out", "made"],
        "show": [atlas, "0.1"],
        "compare": [atlas, atlas],
        "intervene": [model, "--scale", "2", "--text", WORDS],
        "map": [model, "--text", WORDS],
        "rope": [model, "--sweep", "p=1,0.5", "--sequences", "2", "--length", "8"],
        "train": [str(base / "run.toml"), "--out", "made"],
        "runs": [str(base / "run")],
        "theory": ["L1", "--processes", "1"],
        "inspect": [model],
        "verify-heads": [atlas, "--heads", "2", "--blocks", "1"],
        "view": ["no/such/atlas", "--no-browser"],
        "experiment show": ["nothing"],
        "doctor": [],
    }.get(command, [atlas])


def generated(rng: random.Random, number: int, base: Path) -> tuple[str, list[str], bool]:
    """A command line: the command's name, all arguments, and whether it must be refused."""
    command = list(TAKES)[number % len(TAKES)]
    arguments, must_refuse = working(command, base), command == "view"
    for _ in range(rng.randint(1, 2)):
        options = TAKES[command].split()
        way = rng.random()
        if way < 0.1 and arguments:
            arguments.pop(rng.randrange(len(arguments)))  # something is missing
        elif way < 0.16:
            arguments.insert(
                rng.randint(0, len(arguments)),
                rng.choice(("--no-such-option", "-x", "--", "\N{SNOWMAN}", "", "--help")),
            )
        elif way < 0.3 and command == "show":
            arguments[1:2] = [rng.choice(HEADS)]
            must_refuse |= ("show", "L.H", arguments[1]) in REFUSED_ALWAYS
        elif way < 0.3 and arguments:
            arguments[0] = rng.choice(PATHS)
        elif options:
            option = rng.choice(options)
            value = rng.choice(OPTIONS[option])
            must_refuse |= (command, option, value) in REFUSED_ALWAYS
            arguments += [f"{option}={value}"] if value.startswith("-") else [option, value]
    if "--help" in arguments:
        must_refuse = False
    return command, [*command.split(), *arguments], must_refuse
