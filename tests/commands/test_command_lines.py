"""Command lines that make no sense: each gets exit code 2 and one sentence that names what was given and what to do."""

from pathlib import Path
from typing import Any

import pytest

import armillary as arm
from armillary.anatomy.samples import sample_model
from armillary.errors import ArmillaryError
from armillary.scanning.settings import scan_settings
from conftest import Atlases
from program import complaint

SCAN = "scan MODEL --out OUT"
REMADE = "intervene MODEL --text the"


def words(line: str, places: dict[str, str]) -> list[str]:
    """The words of a command line; '' is an empty one, and names in capitals are places."""
    return ["" if word == "''" else places.get(word, word) for word in line.split(" ")]


@pytest.fixture(scope="module")
def places(atlases: Atlases, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A model with its tokenizer, an atlas, a folder that is new, a training configuration, an empty folder."""
    base = tmp_path_factory.mktemp("lines")
    (base / "run.toml").write_text("[training]\nsteps = 2\n")
    (base / "empty").mkdir()
    sample_model("gpt2").save_pretrained(base / "silent")
    return {
        "MODEL": str(arm.bundled("llama")),
        "SILENT": str(base / "silent"),
        "ATLAS": str(atlases.family("llama").path.parent),
        "OUT": str(base / "new"),
        "CONFIG": str(base / "run.toml"),
        "EMPTY": str(base / "empty"),
        "LONG": "9" * 5000,
        "BYTES": "\udcff",
    }


def numbers(option: str, command: str, least: int) -> list[tuple[str, str]]:
    """A whole number's option with what is below its least value, beyond any, or no whole number."""
    return [
        (f"{command} {option} {least - 1}", f"{option} {least - 1} cannot be used: it should be at least {least}"),
        (f"{command} {option} -9223372036854775808", f"{option} -9223372036854775808 cannot be used"),
        (f"{command} {option} 99999999999999999999999", f"{option} 99999999999999999999999 cannot be used"),
        (f"{command} {option} many", f"{option} many cannot be used: it should be a whole number"),
        (f"{command} {option} 1.5", f"{option} 1.5 cannot be used: it should be a"),
        (f"{command} {option} nan", f"{option} nan cannot be used: it should be a whole number"),
        (f"{command} {option} ''", f"{option} is empty: give it a value, or leave it out"),
        (f"{command} {option}=", f"{option} is empty: give it a value, or leave it out"),
    ]


def floats(option: str, command: str) -> list[tuple[str, str]]:
    """A number's option with what is no finite number."""
    return [
        (f"{command} {option} {value}", f"{option} {value} cannot be used: it should be ")
        for value in ("nan", "inf", "x")
    ]


NUMBERS = [
    line
    for option, command, least in (
        ("--length", SCAN, 2),
        ("--sequences", SCAN, 1),
        ("--skip", SCAN, 0),
        ("--batch", SCAN, 1),
        ("--shard", SCAN, 1),
        ("--seed", SCAN, 0),
        ("--second-pass", SCAN, 1),
        ("--workers", SCAN, 1),
        ("--threads", SCAN, 1),
        ("--workers", "merge A B --out OUT", 1),
        ("--threads", "merge A B --out OUT", 1),
        ("--workers", "weights MODEL --out OUT", 1),
        ("--threads", "weights MODEL --out OUT", 1),
        ("--seed", "weights MODEL --out OUT", 0),
        ("--rows", "compare ATLAS ATLAS", 1),
        ("--rows", "map MODEL --text the", 1),
        ("--heads", "verify-heads ATLAS", 1),
        ("--sequences", "verify-heads ATLAS", 1),
        ("--components", "gaussian ATLAS", 1),
        ("--length", "rope MODEL", 2),
        ("--sequences", "rope MODEL", 1),
        ("--cut", REMADE, 0),
        ("--seed", f"{REMADE} --randomize", 0),
        ("--generate", f"{REMADE} --scale 2", 0),
        ("--seed", "train CONFIG", 0),
        ("--seed", "theory S1", 0),
        ("--processes", "theory S1", 1),
        ("--port", "view ATLAS --no-browser", 0),
    )
    for line in numbers(option, command, least)
]
FLOATS = [
    line
    for option, command in (
        ("--scale", REMADE),
        ("--shrinkage", "gaussian ATLAS"),
        ("--share", "frequencies ATLAS"),
    )
    for line in floats(option, command)
]
EMPTY = [
    (f"{command} {option} ''", f"{option} is empty: give it a value, or leave it out")
    for command, options in {
        SCAN: ("--corpus", "--streams", "--bos", "--when-nan", "--device", "--dtype", "--device-map", "--part"),
        "scan MODEL": ("--out",),
        "heads ATLAS": ("--sort", "--columns", "--layer"),
        "layers ATLAS": ("--sort", "--columns", "--layer"),
        "show ATLAS 0.0": ("--text", "--model", "--html"),
        "view ATLAS": ("--host", "--model", "--compare"),
        "report ATLAS": ("--out",),
        "merge A B": ("--out", "--model", "--device"),
        "weights MODEL --out OUT": ("--against", "--html"),
        "gaussian ATLAS": ("--head", "--columns", "--html"),
        "localization ATLAS": ("--head", "--html"),
        "frequencies ATLAS": ("--head", "--text", "--model", "--html"),
        "rope MODEL": ("--sweep", "--corpus", "--html"),
        "map MODEL": ("--text", "--prompt-file", "--layers", "--heads", "--level", "--weights", "--spans"),
        "intervene MODEL": ("--text", "--keep", "--parts", "--layers", "--heads", "--out", "--atlas", "--remove"),
        "theory": ("--paper", "--html", "--record"),
        "train CONFIG": ("--out",),
        "experiment run": ("--size", "--model", "--corpus", "--out", "--work"),
        "experiment show song-gram": ("--out", "--html"),
        "experiment page": ("--out", "--to"),
        "doctor --verify": ("--record",),
        "demo": ("--out",),
    }.items()
    for option in options
] + [
    (f"{command} ''", "an argument is empty: give it a value, or leave it out")
    for command in (
        "scan",
        "heads",
        "report",
        "inspect",
        "theory",
        "show ATLAS",
        "train",
        "runs",
        "experiment run",
        "map",
    )
]
OTHERS = [
    # the parser's own complaints, in one line
    ("scan", "Missing argument 'MODEL'"),
    ("scan MODEL", "Missing option '--out'"),
    ("scna", "No such command 'scna'. Did you mean 'scan'?"),
    (f"{SCAN} --lenght 3", "No such option: --lenght (Possible options: --engine, --length)"),
    (f"{SCAN} --engine slow", "--engine slow cannot be used: 'slow' is not one of 'local', 'ray'"),
    ("view ATLAS --port 70000", "--port 70000 cannot be used: it should be at most 65535"),
    ("inspect BYTES", "is not UTF-8 text"),
    # scan
    (
        f"{SCAN} --skip 127",
        "--skip 127 leaves too little of sequences of 128 tokens: use sequences of 129 tokens or more, or skip fewer",
    ),
    (f"{SCAN} --streams ,", "there is no stream '': there are positions, attention"),
    (f"{SCAN} --streams attention,attention", "the stream 'attention' was named twice: name each once"),
    (f"{SCAN} --streams entropy", "there is no stream 'entropy': there are positions"),
    (f"{SCAN} --bos sometimes", "--bos sometimes is not known: it can be auto, always, never"),
    (f"{SCAN} --when-nan cry", "--when-nan cry is not known: it can be stop, skip"),
    (f"{SCAN} --part 0/4", "there is no part 0/4: it can be 1/4 to 4/4"),
    (f"{SCAN} --part 5/4", "there is no part 5/4: it can be 1/4 to 4/4"),
    (f"{SCAN} --part 0/0", "there is no part 0/0: a scan has at least 1 part"),
    (f"{SCAN} --part third", "'third' is not a part: write it as in 3/16"),
    (f"{SCAN} --part ¹/²", "is not a part: write it as in 3/16"),
    (f"{SCAN} --part LONG/LONG", "is not a part: write it as in 3/16"),
    (f"{SCAN} --threads 100000", "--threads 100000 cannot be used: it should be at most 1024"),
    (f"{SCAN} --address here", "--address here is for a Ray cluster: add --engine ray"),
    (f"{SCAN} --device abacus", "there is no device 'abacus' here"),
    (f"{SCAN} --dtype int3", "there is no dtype 'int3': there are auto, float32"),
    # atlases
    ("heads ATLAS --layer -1", "there is no layer -1 in this table"),
    ("heads ATLAS --sort beauty", "there is no column 'beauty' to sort by"),
    ("heads ATLAS --columns entropy,beauty", "there is no column 'beauty'"),
    ("heads EMPTY", "is not an atlas"),
    ("show ATLAS LONG.0", "is not a head: write LAYER.HEAD, as in 3.5"),
    ("show ATLAS ².³", "'².³' is not a head: write LAYER.HEAD, as in 3.5"),
    ("show ATLAS 0.99", "there is no head 0.99: this model has layers 0 to 2 with heads 0 to 5"),
    ("show ATLAS 99999999999999999.0", "there is no head 99999999999999999.0"),
    ("show ATLAS 0.0 --html OUT", "--html draws the head on a text: give one with --text"),
    ("compare ATLAS", "compare needs two folders or more"),
    ("gaussian ATLAS --shrinkage 1.5", "--shrinkage 1.5 cannot be used: it should be at most 1"),
    ("frequencies ATLAS --share 2", "--share 2 cannot be used: it should be at most 1"),
    ("frequencies ATLAS --share 0", "a share of 0.0 cannot be kept"),
    ("frequencies ATLAS --head 0.0 --layer 0", "--head already names a layer: leave --layer out"),
    ("view ATLAS --no-browser --host nope.invalid", "there is no machine 'nope.invalid' to listen at"),
    ("view ATLAS --no-browser --host 192.0.2.1", "192.0.2.1 is not an address of this machine"),
    # texts
    ("map MODEL --text the --layers 3-1", "--layers 3-1 is not a list of numbers"),
    ("map MODEL --text the --layers ²", "--layers ² is not a list of numbers"),
    ("map MODEL --text the --layers LONG", "is not a list of numbers"),
    ("map MODEL --text the --layers 99999999", "--layers 99999999 goes beyond any model"),
    ("map MODEL --text the --level letter", "--level letter is not known: it can be word, token"),
    ("map MODEL --text the --spans LONG:LONG", "is not in the text"),
    ("map MODEL", "one text is needed: give --text or --prompt-file"),
    ("map MODEL --prompt-file EMPTY", "cannot be read as UTF-8 text"),
    ("intervene MODEL", "give one of --scale, --cut, --randomize and --remove"),
    (f"{REMADE} --scale 2 --seed 1", "--seed has no effect on this change: leave it out"),
    ("rope MODEL --sweep q=1", "--sweep q=1 is not known: write it as in p=1,0.75,0.5"),
    ("rope MODEL --sweep p=1,x", "--sweep p=1,x has a value that is not a number"),
    ("rope MODEL --sweep p=nan", "--sweep p=nan has a value that is not a number"),
    ("rope MODEL --sweep p=1,inf", "--sweep p=1,inf has a value that is not a number"),
    # the rest
    (
        "theory L9999",
        "no statement 'L9999' in the ledger: there are S1 to S25 (Song), T2.1a to T8.2 (Wertich), L1 to L32",
    ),
    ("theory T2.1z", "(did you mean T2.1f or T2.1e or T2.1d?)"),
    ("theory --paper Nobody", "there is no paper 'Nobody': there are Song, Wertich, Bao and Barbero"),
    ("theory S1 --record OUT", "--record keeps the verdicts of all statements: leave ID and --paper out"),
    ("train OUT", "cannot be read"),
    ("runs EMPTY", "is not a training run"),
    ("merge EMPTY --out OUT", "is not a part of a scan"),
    ("experiment run nothing", "there is no experiment 'nothing'"),
    ("experiment run song-gram --size vast", "--size vast is not known: it can be small, paper"),
    ("experiment show song-gram --out EMPTY", "holds no result"),
    ("weights MODEL --out OUT --against all", "all is neither a folder here nor a model"),
    ("doctor --record OUT", "--record writes the results of --verify: give both"),
]


@pytest.mark.parametrize(("line", "said"), [*NUMBERS, *FLOATS, *EMPTY, *OTHERS], ids=lambda value: value[:60])
def test_a_line_that_makes_no_sense(line: str, said: str, places: dict[str, str]) -> None:
    assert said in complaint(*words(line.replace("LONG", places["LONG"]), places))
    assert not Path(places["OUT"]).exists()


def test_no_message_speaks_of_a_report_that_only_transformers_prints(tmp_path: Path) -> None:
    """'For details look at the above report!' pointed to a table on the terminal."""
    import torch
    from safetensors.torch import load_file, save_file

    sample_model("llama").save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.layers.1.mlp.up_proj.weight"] = torch.zeros(7, 5)
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ArmillaryError, match=r"layers\.1\.mlp\.up_proj\.weight is \(7, 5\), not \(64, 48\)") as told:
        arm.load(tmp_path)
    assert "report" not in str(told.value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"second_pass": 0}, "^`second_pass=0` is too small: it must be 1 or more"),
        ({"batch": -1}, "^`batch=-1` is too small"),
        ({"skip": -1}, "^`skip=-1` is negative: it must be 0 or more"),
        ({"seed": -1}, "^`seed=-1` is out of range"),
        ({"streams": ()}, "^no stream was chosen: there are positions"),
    ],
)
def test_the_library_names_its_settings_as_it_spells_them(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ArmillaryError, match=said):
        scan_settings(**settings)


@pytest.mark.parametrize(("workers", "threads", "said"), [(0, None, "1 worker, not 0"), (1, 0, "1 thread, not 0")])
def test_workers_and_threads_are_at_least_one(workers: int, threads: int | None, said: str) -> None:
    with pytest.raises(ArmillaryError, match=said):
        arm.scan(sample_model("llama"), "builtin:random", workers=workers, threads=threads)
