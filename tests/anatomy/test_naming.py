"""Titles show a model's name, not the path that was typed."""

import struct
from pathlib import Path

import pytest
from typer.testing import CliRunner

import armillary as arm
from armillary.anatomy.gguf_header import gguf_text
from armillary.anatomy.naming import corpus_title, recorded_title, title
from armillary.anatomy.samples import sample_model
from armillary.cli import app
from conftest import FAMILY_TOKENS

COMMIT = "93efa2f097d58c2a74874c7e644dbc9b0cee75a2"


@pytest.mark.parametrize(
    ("typed", "called"),
    [
        ("m/SmolLM2-135M/hf", "SmolLM2-135M"),
        ("/data/SmolLM2-135M/hf/", "SmolLM2-135M"),
        ("/data/SmolLM2-135M/model", "SmolLM2-135M"),
        (f"/cache/hub/models--HuggingFaceTB--SmolLM2-135M/snapshots/{COMMIT}", "HuggingFaceTB/SmolLM2-135M"),
        ("/hub/models--gpt2/snapshots/main", "gpt2"),
        (f"/data/gemma/{COMMIT}", "gemma"),
        ("runs/first/locater/checkpoint-500", "locater/checkpoint-500"),
        ("/runs/locater/final", "locater/final"),
        ("/runs/locater/step_20/model", "locater/step_20"),
        ("../stories15M", "stories15M"),
        ("HuggingFaceTB/SmolLM2-135M", "HuggingFaceTB/SmolLM2-135M"),
        ("gpt2", "gpt2"),
        ("LlamaForCausalLM", "LlamaForCausalLM"),
        ("/m/gemma-3-270m-q4_k_m.gguf", "gemma-3-270m-q4_k_m"),
        ("/m/gemma3/ggml-model-q4_0.gguf", "gemma3"),
        ("/", "/"),
    ],
)  # fmt: skip
def test_a_model_is_called_by_its_name(typed: str, called: str) -> None:
    assert title(typed) == called


def test_a_relative_folder_that_exists_is_not_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    (tmp_path / "tiny" / "hf").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "tiny" / "hf")
    assert title(".") == "tiny"
    monkeypatch.chdir(tmp_path)
    assert title("models/tiny") == "tiny"
    assert title("models/other") == "models/other"


def gguf(path: Path, *fields: tuple[str, int, bytes]) -> Path:
    """The beginning of a GGUF file with these fields: (key, kind, value as stored)."""
    body = b"".join(text(key) + struct.pack("<I", kind) + value for key, kind, value in fields)
    path.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, 0, len(fields)) + body)
    return path


def text(words: str) -> bytes:
    return struct.pack("<Q", len(words.encode())) + words.encode()


def test_a_gguf_file_without_a_name_is_called_by_the_name_inside(tmp_path: Path) -> None:
    name = ("general.name", 8, text("Gemma 3\n270m"))
    tags = ("general.tags", 9, struct.pack("<IQ", 8, 2) + text("a") + text("b"))
    numbers = ("general.sizes", 9, struct.pack("<IQ", 4, 3) + bytes(12))
    file = gguf(tmp_path / "model.gguf", ("general.file_type", 4, bytes(4)), tags, numbers, name)
    assert title(file) == "Gemma 3 270m"
    assert title(gguf(tmp_path / "mine.gguf", name)) == "mine"


def test_a_damaged_gguf_file_has_no_name_inside(tmp_path: Path) -> None:
    whole = gguf(tmp_path / "model.gguf", ("general.type", 8, text("model")), ("general.name", 8, text("Gemma")))
    data = whole.read_bytes()
    for size in range(len(data)):
        whole.write_bytes(data[:size])
        assert gguf_text(whole, "general.name") in ("", "Gemma"[: max(0, size - len(data) + 5)])
    whole.write_bytes(data.replace(struct.pack("<Q", 5) + b"model", struct.pack("<Q", 1 << 60) + b"model"))
    assert gguf_text(whole, "general.name") == ""


def test_a_corpus_is_called_by_its_file() -> None:
    assert corpus_title("/data/corpora/wikitext.txt") == "wikitext.txt"
    assert corpus_title("builtin:prose") == "builtin:prose"
    assert corpus_title("a/b.txt+hf:Salesforce/wikitext:raw") == "b.txt + hf:Salesforce/wikitext:raw"


def test_an_atlas_records_the_title_and_its_report_shows_it(tmp_path: Path) -> None:
    model = sample_model("llama")
    model.config.name_or_path = "m/SmolLM2-135M/hf"
    atlas = arm.scan(model, FAMILY_TOKENS, out=tmp_path / "atlas")
    assert atlas.attrs["model"]["title"] == recorded_title({"name": "m/SmolLM2-135M/hf"}) == "SmolLM2-135M"
    out = tmp_path / "report.html"
    assert CliRunner().invoke(app, ["report", str(atlas.path.parent), "--out", str(out)]).exit_code == 0
    page = out.read_text()
    assert "<h1>What the heads of SmolLM2-135M do, on" in page
    assert "m/SmolLM2-135M/hf" in page  # in the provenance


def test_weights_alone_record_the_title_too(tmp_path: Path) -> None:
    atlas = arm.weigh(arm.bundled("llama"), out=tmp_path / "weights", matrices=False)
    assert atlas.attrs["model"]["title"] == title(str(arm.bundled("llama")))
