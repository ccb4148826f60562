"""The viewer's server: its numbers are the atlas's and the tap's, and hostile requests do not harm it."""

import base64
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from tempfile import mkdtemp
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import Float

import armillary as arm
from armillary import interventions
from armillary.atlas.atlas import Atlas
from armillary.commands.view import live_model
from armillary.errors import ArmillaryError
from armillary.observe.view import AttentionView
from armillary.probe.terms import text_constituents
from armillary.probe.trial import trial
from armillary.streams.attention import AttentionStatistics
from armillary.streams.constituents import TERMS, ConstituentShares
from armillary.streams.stream import Stream
from armillary.text.words import join, token_words, words_of
from armillary.viewer import texts
from armillary.viewer.cells import cells_of, max_cells, mean_cells
from armillary.viewer.changes import requested_change
from armillary.viewer.fields import Fields
from armillary.viewer.guard import MOST_BYTES, Gate
from armillary.viewer.live import HeadOnText, LiveModel, _between
from armillary.viewer.pages import Pages
from armillary.viewer.server import Server, Viewer, address, configuration, listening_socket
from armillary.viewer.turns import Asker, Turns
from armillary.viewer.worker import Abandoned, Gone

TEXT = "When the old clock struck twelve, the clock maker opened the old door."
HOSTILE = "<img src=x onerror=alert(1)> <b>bold</b> $x^2$ <script>alert(2)</script> &amp; \N{SNOWMAN}"
LENGTH = 64
PATIENCE = 300.0
"""Seconds that anything may take on a busy machine."""


@cache
def scanned(corpus: str) -> Atlas:
    """A small atlas of the bundled rotary model, made once for all tests of this process."""
    torch.set_num_threads(1)
    folder = Path(mkdtemp(prefix="armillary-viewer-")) / corpus.partition(":")[2]
    kept: dict[str, Any] = {} if corpus == "builtin:prose" else {"streams": ("positions", "attention")}
    return arm.scan(arm.bundled("llama"), corpus, out=folder, length=LENGTH, sequences=8, second_pass=8, **kept)


@cache
def loaded() -> LiveModel:
    live, why = live_model(scanned("builtin:prose"), None, {})
    assert live is not None, why
    return live


class Service:
    """A viewer that listens in a thread of this process."""

    def __init__(self, pages: Pages) -> None:
        self.viewer = Viewer(pages, Gate("127.0.0.1"))
        self._socket = listening_socket("127.0.0.1", 0)
        self.port = self._socket.getsockname()[1]
        self.address = address(self.viewer.gate, self.port)
        self._server = Server(configuration(self.viewer.application), self.viewer.worker)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)

    def send(self, path: str, body: bytes | None = None, *, method: str = "POST", **headers: str) -> tuple[int, bytes]:
        """The status and body of a request; headers replace the good ones, an empty one is left out."""
        good = {
            "host": f"127.0.0.1:{self.port}",
            "content-type": "application/json",
            "x-armillary-token": self.viewer.gate.token,
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in good.items():
            if value:
                connection.putheader(name, value)
        if body is not None and "content_length" not in headers:
            connection.putheader("content-length", str(len(body)))
        connection.endheaders()
        try:
            if body:
                connection.send(body)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it refused before it had read all
        answer = connection.getresponse()
        found = answer.status, answer.read()
        connection.close()
        return found

    def ask(self, name: str, **fields: Any) -> Any:
        status, body = self.send(f"/api/{name}", json.dumps(fields).encode())
        assert status == 200, body
        return json.loads(body)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(PATIENCE)


@contextmanager
def serving(*, alone: bool = False, compare: bool = False) -> Iterator[Service]:
    other = scanned("builtin:code") if compare else None
    live = None if alone else loaded()
    service = Service(Pages(scanned("builtin:prose"), other, live, "it is not needed here" if alone else ""))
    try:
        yield service
    finally:
        service.stop()


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with serving() as found:
        yield found


def unpacked(array: dict[str, Any]) -> Float[np.ndarray, "..."]:

    return np.frombuffer(base64.b64decode(array["f4"]), "<f4").reshape(array["shape"])


def tapped(text: str, layer: int) -> AttentionView:
    """The layer's view of a run of the text, by the tap itself."""
    live = loaded()
    found: list[AttentionView] = []
    tokens = torch.tensor([live.tokenizer(text)["input_ids"]])
    with torch.no_grad(), arm.Tap(live.model, lambda view: found.append(view) if view.layer == layer else None):
        live.model(input_ids=tokens)
    return found[0]


def weights() -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in loaded().model.state_dict().items()}


def same_weights(before: dict[str, torch.Tensor]) -> bool:
    now = loaded().model.state_dict()
    return all(torch.equal(now[name], tensor) for name, tensor in before.items())


def request_for(name: str, body: str, port: int, token: str) -> bytes:
    """A request as it goes over the wire."""
    return (
        f"POST /api/{name} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
        f"x-armillary-token: {token}\r\ncontent-length: {len(body)}\r\n\r\n{body}"
    ).encode()


class TestNumbers:
    def test_the_table_is_the_atlases(self, service: Service) -> None:
        atlas, told = scanned("builtin:prose"), service.ask("start")
        for name in atlas.heads.columns:
            given = [None if value is None else value for value in told["table"][name]]
            expected = [
                None if value != value or value is None else value for value in atlas.heads[name].astype(object)
            ]
            assert given == expected, name
        assert {"entropy", "label", "content_share"} <= {measure["name"] for measure in told["measures"]}
        assert next(m["means"] for m in told["measures"] if m["name"] == "entropy").startswith("Entropy")

    @pytest.mark.parametrize(("layer", "head"), [(0, 0), (3, 4), (5, 5)])
    def test_a_dossiers_arrays_are_the_atlases(self, service: Service, layer: int, head: int) -> None:
        atlas, arrays = scanned("builtin:prose"), service.ask("head", layer=layer, head=head)["arrays"]
        mean = atlas.group("attention")["logit_mean_by_lag"].to_numpy()[layer, head]
        np.testing.assert_allclose(unpacked(arrays["lag_mean"]), mean, rtol=1e-6)
        rho = atlas.group("attention")["rho"].to_numpy()[layer, head]
        np.testing.assert_allclose(unpacked(arrays["rho_observed"]), rho, rtol=1e-6)
        singular = atlas.group("spectral")["qk_singular"].to_numpy()[layer, head]
        np.testing.assert_allclose(unpacked(arrays["qk_singular"]), singular / np.linalg.norm(singular), rtol=1e-6)

    def test_every_figure_has_a_template_whose_fields_are_named(self, service: Service) -> None:
        told, arrays = service.ask("start"), service.ask("head", layer=2, head=1)["arrays"]
        assert list(told["figures"]) == ["patterns", "constituents", "lags", "logits", "frequencies", "spectrum", "rho"]
        for name, figure in told["figures"].items():
            named = {array for trace in figure["data"] for array in trace.get("meta", {}).values()}
            assert named, name
            assert named <= set(arrays), name

    @pytest.mark.parametrize(("layer", "head"), [(0, 2), (4, 1)])
    def test_attention_logits_and_entropy_are_the_taps(self, service: Service, layer: int, head: int) -> None:
        told, view = service.ask("look", text=TEXT, layer=layer, head=head), tapped(TEXT, layer)
        seen = np.tril(np.ones((view.queries, view.keys), dtype=bool))
        attention = view.attention()[0, head].double().numpy()
        np.testing.assert_allclose(unpacked(told["attention"])[seen], attention[seen], atol=1e-7)
        assert np.isnan(unpacked(told["attention"])[~seen]).all()
        np.testing.assert_allclose(unpacked(told["logits"])[seen], view.logits()[0, head].numpy()[seen], atol=1e-5)
        entropy = -np.where(attention > 0, attention * np.log(np.maximum(attention, 1e-300)), 0).sum(1)
        np.testing.assert_allclose(unpacked(told["entropy"]), entropy, atol=1e-5)

    def test_terms_are_those_of_the_lens_and_add_up_to_the_logits(self, service: Service) -> None:
        told, live = service.ask("look", text=TEXT, layer=2, head=3), loaded()
        lens = text_constituents(scanned("builtin:prose"), live.model, live.tokenizer, 2, 3, TEXT)
        for name in TERMS:
            np.testing.assert_allclose(unpacked(told["terms"][name]), lens.terms[name], atol=1e-5)
        total = np.sum([unpacked(told["terms"][name]).astype(float) for name in TERMS], axis=0)
        seen = lens.visible
        np.testing.assert_allclose(total[seen], unpacked(told["logits"])[seen], atol=1e-4)

    def test_frequency_shares_are_those_of_a_scan_of_this_text(self, service: Service) -> None:
        told, view = service.ask("look", text=TEXT, layer=3, head=2)["frequencies"], tapped(TEXT, 3)
        stream = Stream(AttentionStatistics(skip=1, length=view.queries))
        stream.update(3, view)
        channels = stream.finish(4)["channel_share"][3, 2].numpy()
        # halves are pairs; the viewer computes in float64, a scan in float32 with float64 sums
        np.testing.assert_allclose(told["share"], channels.reshape(2, -1).sum(0), rtol=0, atol=1e-7)
        assert sum(told["share"]) == pytest.approx(1)
        rows = unpacked(told["products"])[2:] / unpacked(told["squares"])[2:, None]
        np.testing.assert_allclose(rows.sum(1), 1, atol=1e-4)
        chunks = view.q[0, 2].reshape(view.queries, 2, -1).norm(dim=1).numpy()
        np.testing.assert_allclose(unpacked(told["q"]), chunks, rtol=1e-5)

    def test_shares_of_the_terms_are_those_of_a_scan_of_this_text(self, service: Service) -> None:
        told, live, view = service.ask("look", text=TEXT, layer=3, head=2)["shares"], loaded(), tapped(TEXT, 3)
        assert live.means is not None
        stream = Stream(ConstituentShares(live.anatomy, live.means, live.skip))
        stream.update(3, view)
        found = stream.finish(6)
        for name in TERMS:
            assert told[name] == pytest.approx(float(found[f"share_{name}"][3, 2]), abs=1e-6)
        assert sum(told.values()) == pytest.approx(1)

    @pytest.mark.parametrize("text", ["a b", "hi"])
    def test_two_tokens_have_attention_but_no_shares(self, service: Service, text: str) -> None:
        told = service.ask("look", text=text, layer=1, head=1)
        np.testing.assert_allclose(np.nansum(unpacked(told["attention"]), axis=1), 1, atol=1e-6)
        assert set(told["frequencies"]["share"]) == set(told["shares"].values()) == {None}

    def test_next_tokens_are_the_models(self, service: Service) -> None:
        live = loaded()
        tokens = torch.tensor([live.tokenizer(TEXT)["input_ids"]])
        with torch.no_grad():
            expected = live.model(input_ids=tokens).logits[0, -1].double().softmax(-1)
        best = service.ask("look", text=TEXT, layer=0, head=0)["next"][0]
        assert best["p"][0] == pytest.approx(float(expected.max()), rel=1e-6)
        assert best["token"] == live.tokenizer.decode([int(expected.argmax())])

    def test_spirals_are_the_lenses_coordinates(self, service: Service) -> None:
        from armillary.lenses.positional import positional_arrays

        figure = service.ask("spiral", kind="pos", layer=4)
        coordinates = positional_arrays(scanned("builtin:prose"))["coordinates"].to_numpy()[4]
        x = figure["data"][0]["x"]
        found = np.frombuffer(base64.b64decode(x["bdata"]), x["dtype"]) if isinstance(x, dict) else x
        np.testing.assert_allclose(found, coordinates[:, 0])
        assert figure["data"][0]["type"] == "scatter3d"
        assert service.ask("spiral", kind="cvec", layer=0)["data"]


class TestLongTexts:
    LONG = " ".join([TEXT] * 16)

    def test_the_largest_attention_of_a_cell_and_the_mean_logit_are_shown(self, service: Service) -> None:
        told, view = service.ask("look", text=self.LONG, layer=3, head=2), tapped(self.LONG, 3)
        step, n = told["step"], view.queries
        assert n > 256
        assert step == -(-n // 256)
        attention = view.attention()[0, 2].double().numpy()
        shown = unpacked(told["attention"])
        assert shown.shape == (len(told["starts"]),) * 2
        i, j = 90, 40
        block = attention[i * step : (i + 1) * step, j * step : (j + 1) * step]
        assert shown[i, j] == pytest.approx(block.max(), rel=1e-6)
        assert np.isnan(shown[0, 5])

    def test_words_are_joined_before_the_largest_is_taken(self) -> None:
        words = words_of(loaded().tokenizer, self.LONG)
        attention = tapped(self.LONG, 1).attention()[0, 0].double().numpy()
        seen = np.tril(np.ones(attention.shape, dtype=bool))
        shown = texts.shown_attention(attention, seen, words, cells_of(words))
        step = cells_of(words).step
        np.testing.assert_allclose(
            shown[20, 3], join(attention, words)[20 * step : 21 * step, 3 * step : 4 * step].max()
        )

    def test_exact_rows_on_demand(self, service: Service) -> None:
        told, view = service.ask("row", text=self.LONG, layer=2, head=5, token=200), tapped(self.LONG, 2)
        np.testing.assert_allclose(
            unpacked(told["attention"])[:201], view.attention(slice(200, 201))[0, 5, 0, :201].numpy(), atol=1e-7
        )
        assert np.isnan(unpacked(told["attention"])[201:]).all()

    def test_beyond_the_scanned_positions_constituents_are_missing_and_it_is_said_why(self, service: Service) -> None:
        told = service.ask("look", text=self.LONG, layer=0, head=0)
        assert told["terms"] is None
        assert f"the means of {LENGTH} positions" in told["why"]

    def test_cells_of_a_matrix(self) -> None:
        words = token_words(loaded().tokenizer, self.LONG)
        cells, n = cells_of(words), len(words.tokens)
        rng = np.random.default_rng(0)
        values, seen = rng.normal(size=(n, n)), np.tril(np.ones((n, n), dtype=bool))
        mean, step = mean_cells(values, seen, cells), cells.step
        block = np.s_[10 * step : 11 * step, 10 * step : 11 * step]
        assert mean[10, 10] == pytest.approx(values[block][seen[block]].mean())
        assert np.isnan(mean[0, 1])
        largest = max_cells(np.where(seen, values, np.nan), step)
        assert largest[10, 10] == values[block][seen[block]].max()


class TestTerms:
    @pytest.mark.parametrize("softcap", [None, 1.5])
    @pytest.mark.parametrize("sink", [None, 0.7])
    def test_all_terms_together_make_the_attention_of_the_view(self, softcap: float | None, sink: float | None) -> None:
        generator = torch.Generator().manual_seed(1)
        q, k, bias = (torch.randn(1, 1, 9, 9, generator=generator) for _ in range(3))
        sinks = None if sink is None else torch.tensor([sink])
        view = AttentionView(q, k, k, scale=0.5, causal=True, bias=bias, softcap=softcap, sinks=sinks)
        parts = torch.rand(9, 1, 1, generator=generator)
        parts = parts / parts.sum()
        products = view.products()[0, 0].double()
        terms = {name: (share * products).numpy() for name, share in zip(TERMS, parts, strict=False)}
        terms["bias"] = bias[0, 0].double().numpy()
        seen = view.visible()[0, 0].numpy()
        head = HeadOnText(np.zeros((9, 9)), np.zeros((9, 9)), seen, np.zeros(9), terms, "", softcap, sink)
        expected = view.attention()[0, 0].double().numpy()
        np.testing.assert_allclose(texts.attention_of_terms(head, TERMS), expected, atol=1e-6)

    def test_without_any_term_attention_is_uniform(self) -> None:
        live, gone = loaded(), Gone()
        head = live.head(live.run(TEXT, 1, gone), 1, 1)
        rows = texts.attention_of_terms(head, ())
        np.testing.assert_allclose(rows[7, :8], 1 / 8)

    def test_special_tokens_are_those_of_the_scan(self) -> None:
        words = words_of(loaded().tokenizer, "one two")
        around = _between(words, [0], [], {0: "<s>"})
        assert around.tokens == (0, *words.tokens)
        assert around.names == ("<s>", *words.names)
        assert around.of_token.tolist() == [0, *(words.of_token + 1)]
        assert around.special.tolist() == [True, *words.special]
        assert _between(around, [0], [], {0: "<s>"}) is around


CHANGES = {
    "scale": ({"kind": "scale", "alpha": 3, "scope": "head"}, lambda m: interventions.scaled(m, 3.0, heads=[(2, 1)])),
    "cut": (
        {"kind": "cut", "rank": 2, "scope": "layer"},
        lambda m: interventions.cut(m, 2, layers=[2]),
    ),
    "randomize": (
        {"kind": "randomize", "keep": "spectrum", "seed": 5, "scope": "all"},
        lambda m: interventions.randomized(m, keep="spectrum", seed=5),
    ),
    "frequencies": ({"kind": "frequencies", "p": 0.25}, lambda m: interventions.rotary(m, p=0.25)),
    "frequencies of a base": (
        {"kind": "frequencies", "p": 0.25, "base": "10000"},
        lambda m: interventions.rotary(m, p=0.25, of_base=1e4),
    ),
    "remove": (
        {"kind": "remove", "part": "position", "scope": "layer"},
        lambda m: interventions.without(m, "position", scanned("builtin:prose"), layers=[2]),
    ),
}


class TestChanges:
    @pytest.mark.parametrize("name", CHANGES)
    def test_before_and_after_are_the_interventions_own(self, service: Service, name: str) -> None:
        asked, change = CHANGES[name]
        kept, live = weights(), loaded()
        told = service.ask("change", text=TEXT, layer=2, head=1, change=asked)
        expected = trial(live.model, live.tokenizer, TEXT, change)
        for moment, run in (("before", expected.before), ("after", expected.after)):
            np.testing.assert_allclose(unpacked(told[moment]["heads"]), run.entropy, atol=1e-5)
            assert told[moment]["loss"] == pytest.approx(run.loss, rel=1e-6)
        assert not np.allclose(run.entropy, expected.before.entropy, atol=1e-4)
        assert same_weights(kept)

    def test_a_change_that_is_given_up_is_taken_back(self) -> None:
        live, kept = loaded(), weights()
        change, name = requested_change(Fields({"kind": "randomize", "scope": "all"}), live, 0, 0)
        gone = Gone()

        def spoiled(model: Any) -> Any:
            gone.set()  # the client leaves while the model is changed
            return change(model)

        with pytest.raises(Abandoned):
            live.run("never seen before", 0, gone, spoiled, name)
        assert same_weights(kept)


BAD_FIELDS: dict[str, Any] = {
    "no text": {"layer": 0, "head": 0},
    "text is a number": {"text": 5, "layer": 0, "head": 0},
    "layer is a text": {"text": TEXT, "layer": "0", "head": 0},
    "layer is true": {"text": TEXT, "layer": True, "head": 0},
    "layer is a fraction": {"text": TEXT, "layer": 0.5, "head": 0},
    "no such layer": {"text": TEXT, "layer": 6, "head": 0},
    "negative head": {"text": TEXT, "layer": 0, "head": -1},
    "huge head": {"text": TEXT, "layer": 0, "head": 10**300},
    "unknown level": {"text": TEXT, "layer": 0, "head": 0, "level": "../../etc/passwd"},
    "unknown field": {"text": TEXT, "layer": 0, "head": 0, "path": "/etc/passwd"},
    "unknown term": {"text": TEXT, "layer": 0, "head": 0, "terms": ["mean_mean", "__class__"]},
    "terms is a text": {"text": TEXT, "layer": 0, "head": 0, "terms": "bias"},
    "empty text": {"text": "", "layer": 0, "head": 0},
    "one token": {"text": "a", "layer": 0, "head": 0},
    "a lone surrogate": {"text": "a \ud800 b", "layer": 0, "head": 0},
    "too many tokens": {"text": "a b " * 3000, "layer": 0, "head": 0},
    "too many characters": {"text": " " * 70_000, "layer": 0, "head": 0},
}

BAD_CHANGES: dict[str, Any] = {
    "unknown": {"kind": "delete"},
    "no kind": {},
    "a list": [],
    "infinite": {"kind": "scale", "alpha": 1e300},
    "no number": {"kind": "scale", "alpha": "2"},
    "rank beyond the head": {"kind": "cut", "rank": 25},
    "p above one": {"kind": "frequencies", "p": 1.5},
    "a base that no layer has": {"kind": "frequencies", "p": 0.5, "base": "7"},
    "reversed is a word": {"kind": "frequencies", "p": 0.5, "reversed": "yes"},
    "seed": {"kind": "randomize", "seed": 2**80},
    "part": {"kind": "remove", "part": "everything"},
    "extra": {"kind": "scale", "alpha": 1, "weights": "/etc/passwd"},
}

BAD_BODIES = {
    "nothing": b"",
    "no JSON": b"hello",
    "half of it": b'{"layer": 0, "head":',
    "a list": b"[]",
    "NaN": b'{"layer": NaN, "head": 0}',
    "infinity": b'{"layer": Infinity, "head": 0}',
    "overflow": b'{"layer": 1e999, "head": 0}',
    "five thousand digits": b'{"layer": ' + b"9" * 5000 + b', "head": 0}',
    "deep": b"[" * 100_000,
    "not UTF-8": b'{"layer": "\xff\xfe"}',
    "null bytes": b"\x00" * 100,
}


class TestHostileRequests:
    @pytest.mark.parametrize("name", BAD_FIELDS)
    def test_bad_fields(self, service: Service, name: str) -> None:
        status, body = service.send("/api/look", json.dumps(BAD_FIELDS[name]).encode())
        assert 400 <= status < 500, body
        assert b"Traceback" not in body

    @pytest.mark.parametrize("name", BAD_CHANGES)
    def test_bad_changes(self, service: Service, name: str) -> None:
        fields = {"text": TEXT, "layer": 0, "head": 0, "change": BAD_CHANGES[name]}
        status, body = service.send("/api/change", json.dumps(fields).encode())
        assert 400 <= status < 500, body

    @pytest.mark.parametrize("name", BAD_BODIES)
    def test_bad_bodies(self, service: Service, name: str) -> None:
        assert 400 <= service.send("/api/head", BAD_BODIES[name])[0] < 500

    def test_oversized(self, service: Service) -> None:
        assert service.send("/api/look", b"x" * (MOST_BYTES + 1))[0] == 413
        assert service.send("/api/look", b" " * 5_000_000)[0] == 413

    def test_the_server_lives_on_and_the_model_is_whole(self, service: Service) -> None:
        expected = service.ask("look", text=TEXT, layer=1, head=1)["attention"]
        kept = weights()
        for body in BAD_BODIES.values():
            service.send("/api/look", body)
        for fields in BAD_FIELDS.values():
            service.send("/api/look", json.dumps(fields).encode())
        assert service.ask("look", text=TEXT, layer=1, head=1)["attention"] == expected
        assert same_weights(kept)

    @pytest.mark.parametrize("token", ["", "wrong", "\N{LATIN SMALL LETTER E WITH ACUTE}".encode().decode("latin-1")])
    def test_without_the_token_nothing_is_told(self, service: Service, token: str) -> None:
        for path in ("/api/start", "/api/head", "/api/look", "/api/row", "/api/change", "/api/spiral"):
            status, body = service.send(path, b"{}", x_armillary_token=token)
            assert status == 403
            assert b"llama" not in body
        status, page = service.send("/", method="GET", x_armillary_token="")
        assert status == 200  # the empty page
        assert b"llama" not in page
        assert service.send(f"/api/start?token={service.viewer.gate.token}", b"{}", x_armillary_token="")[0] == 403

    def test_tokens_are_long_and_new_each_time(self) -> None:
        tokens = {Gate("127.0.0.1").token for _ in range(50)}
        assert len(tokens) == 50
        assert all(len(token) >= 43 for token in tokens)
        assert Gate("127.0.0.1").token not in repr(Gate("127.0.0.1"))

    @pytest.mark.parametrize(
        "host",
        [
            "evil.example",
            "evil.example:80",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "0.0.0.0",
            "[::1",
            "127.0.0.1:x",
        ],
    )
    def test_a_name_that_was_made_to_mean_this_machine_is_refused(self, service: Service, host: str) -> None:
        for path, method in (("/api/start", "POST"), ("/api/enter", "POST"), ("/", "GET")):
            status, _ = service.send(path, b"{}" if method == "POST" else None, method=method, host=host)
            assert status == 421
        assert service.send("/static/app.js", method="GET", host=host)[0] == 421

    @pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://127.0.0.1:1", "file://"])
    def test_another_pages_request_is_refused(self, service: Service, origin: str) -> None:
        assert service.send("/api/start", b"{}", origin=origin)[0] == 403
        assert service.send("/api/start", b"{}", origin=f"http://127.0.0.1:{service.port}")[0] == 200
        assert service.send("/api/start", b"{}", sec_fetch_site="cross-site")[0] == 403
        assert service.send("/api/start", b"{}", content_type="text/plain")[0] == 415  # what a form can send

    @pytest.mark.parametrize(
        "path",
        [
            "/static/../guard.py",
            "/static/..%2f..%2f..%2f..%2fetc%2fpasswd",
            "/static/%2e%2e/%2e%2e/pyproject.toml",
            "/static//etc/passwd",
            "/../../etc/passwd",
            "/static/app.js%00.html",
            "/etc/passwd",
            "/api/",
            "/api/start/../../etc/passwd",
            "//evil.example/",
        ],
    )
    def test_no_path_reaches_the_file_system(self, service: Service, path: str) -> None:
        status, body = service.send(path, method="GET")
        assert status in (403, 404)
        assert b"root:" not in body

    def test_methods(self, service: Service) -> None:
        assert service.send("/api/start", method="GET")[0] == 405
        assert service.send("/", b"{}")[0] == 405
        assert service.send("/api/start", b"{}", method="DELETE")[0] == 405

    def test_garbage_on_the_wire(self, service: Service) -> None:
        for sent in (b"\x16\x03\x01\x02\x00garbage", b"GET / HTTP/9.9\r\n\r\n", b"A" * 100_000 + b"\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", service.port), timeout=PATIENCE) as raw:
                raw.sendall(sent)
                raw.settimeout(PATIENCE)
                with suppress(ConnectionResetError):
                    assert raw.recv(100)[9:10] in (b"4", b"")
        assert service.send("/static/app.js", method="GET")[0] == 200

    def test_every_answer_forbids_what_the_page_does_not_need(self, service: Service) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", service.port)
        for path in ("/", "/static/plotly.min.js", "/nothing", "/api/start"):
            connection.request("GET", path)
            answer = connection.getresponse()
            answer.read()
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "script-src 'self';" in policy
            assert "unsafe-eval" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "no-referrer"
            assert answer.headers["access-control-allow-origin"] is None
            assert answer.headers["cache-control"] == "no-store"
            assert answer.headers["server"] is None
        connection.close()

    def test_labels_of_tokens_are_escaped_and_tokens_are_not(self, service: Service) -> None:
        told = service.ask("look", text=HOSTILE, layer=0, head=0)
        assert "".join(told["tokens"]).replace("\N{SNOWMAN}", "").startswith("<img src=x")
        for label in [*told["labels"], *told["word_labels"], *(token["label"] for token in told["next"])]:
            assert not re.search(r"[<>$]", label)


def test_half_a_request_does_not_hold_a_place(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("armillary.viewer.server.MOST_SECONDS", 0.3)
    with socket.create_connection(("127.0.0.1", service.port), timeout=PATIENCE) as half:
        half.sendall(b"POST /api/start HTTP/1.1\r\n")
        assert half.recv(100) == b""  # closed
    monkeypatch.undo()
    assert service.send("/api/start", b"{}")[0] == 200


class TestFiles:
    def test_scripts_make_no_html_and_nothing_is_remote(self) -> None:
        for file in files("armillary.viewer").joinpath("static").iterdir():
            text = file.read_text(encoding="utf-8")
            for forbidden in (
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "new Function",
            ):
                assert forbidden not in text, (file.name, forbidden)
            remote = [where for where in re.findall(r"https?://[^\s\"'`)]+", text) if "www.w3.org" not in where]
            assert remote == [], file.name
            if file.name == "index.html":
                assert not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|<style|\sstyle=", text)
            assert len(text.splitlines()) < 300

    def test_hosts(self) -> None:
        assert Gate("127.0.0.1").knows("localhost:1")
        assert not Gate("127.0.0.1").knows("192.168.0.4:1")
        assert Gate("0.0.0.0").knows("192.168.0.4:1")
        assert not Gate("0.0.0.0").knows("evil.example")
        assert Gate("::1").knows("[::1]:80")
        assert Gate("box.local").knows("box.local:80")

    def test_a_taken_port_is_told(self) -> None:
        with (
            listening_socket("127.0.0.1", 0) as taken,
            pytest.raises(ArmillaryError, match="choose another `port`"),
        ):
            listening_socket("127.0.0.1", taken.getsockname()[1])


class TestWithoutModel:
    def test_the_atlas_alone_is_shown_and_what_is_missing_is_said(self) -> None:
        with serving(alone=True, compare=True) as service:
            told = service.ask("start")
            assert told["live"] is False
            assert any("--model MODEL" in line for line in told["missing"])
            assert service.ask("head", layer=0, head=0)["arrays"]
            for name in ("look", "row", "change"):
                status, body = service.send(f"/api/{name}", json.dumps({"text": TEXT, "layer": 0, "head": 0}).encode())
                assert status == 422
                assert b"--model" in body
            assert told["other"]["corpus"] == "builtin:code"
            first = told["other"]["changes"][0]
            row = scanned("builtin:code").heads.query(f"layer == {first['layer']} and head == {first['head']}").iloc[0]
            assert first["b"] == pytest.approx(row[first["measure"]])

    def test_a_model_that_is_not_the_atlases_is_refused_or_left_out(self) -> None:
        atlas = scanned("builtin:prose")
        with pytest.raises(ArmillaryError, match="other weights"):
            live_model(atlas, str(arm.bundled("gpt2")), {})
        moved = Atlas(atlas.path)
        moved.__dict__["attrs"] = {**atlas.attrs, "model": {**atlas.attrs["model"], "name": "somebody/else"}}
        live, why = live_model(moved, None, {})  # the hub is asked for it
        assert live is None
        assert "somebody/else is neither a folder here nor a model that could be fetched from the hub" in why
        moved.__dict__["attrs"] = {**atlas.attrs, "model": {**atlas.attrs["model"], "name": "/gone/model"}}
        assert live_model(moved, None, {}) == (None, "/gone/model is not a folder here")


class TestWork:
    def test_requests_at_the_same_time_do_not_disturb_each_other(self, service: Service) -> None:
        asked = [
            ("look", {"text": f"{TEXT} {i}", "layer": i % 6, "head": 5 - i % 6}) if i % 2 else
            ("change", {"text": TEXT, "layer": 2, "head": 1, "change": {"kind": "scale", "alpha": i, "scope": "all"}})
            for i in range(6)
        ]  # fmt: skip
        alone = [service.ask(name, **fields) for name, fields in asked]
        loaded()._runs.clear()
        found: dict[int, Any] = {}
        threads = [
            threading.Thread(
                target=lambda i=i, name=name, fields=fields: found.update({i: service.ask(name, **fields)})
            )
            for i, (name, fields) in enumerate(asked)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert [found[i] for i in range(len(asked))] == alone

    def test_when_the_client_leaves_its_work_is_given_up_and_the_queue_is_bounded(
        self, service: Service, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(texts, "look", slow := Slow())
        worker, finished = service.viewer.worker, service.viewer.worker.finished
        monkeypatch.setattr(worker._waiting, "most", 8)
        body = json.dumps({"text": TEXT, "layer": 0, "head": 0})
        sent = request_for("look", body, service.port, service.viewer.gate.token)
        clients = [socket.create_connection(("127.0.0.1", service.port)) for _ in range(9)]
        for client in clients:
            client.sendall(sent)
        assert slow.begun.wait(PATIENCE)
        wait_for(lambda: len(worker._waiting) == 8)
        assert service.send("/api/look", body.encode())[0] == 503
        for client in clients:
            client.close()
        assert slow.ended.wait(PATIENCE)
        wait_for(lambda: not worker.busy)
        assert worker.finished == finished
        assert worker.abandoned >= 9

    def test_fifty_requests_of_five_tabs_at_once(self, service: Service) -> None:
        """Each tab asks ten questions of one kind: of those the last is answered; of three kinds, the last of each."""
        asked = {
            (tab, n): ("row", {"text": TEXT, "layer": n % 6, "head": tab, "token": n + 1})
            if n % 2
            else ("look", {"text": TEXT, "layer": n % 6, "head": tab})
            for tab in range(5)
            for n in range(10)
        }
        alone = {key: service.ask(name, **fields) for key, (name, fields) in asked.items()}
        found = at_once(
            {
                key: partial(service.send, f"/api/{name}", json.dumps(fields).encode(), x_armillary_tab=f"tab{key[0]}")
                for key, (name, fields) in asked.items()
            }
        )
        answered = {key for key, (status, _) in found.items() if status == 200}
        assert {status for status, _ in found.values()} <= {200, 409}
        for key in answered:
            assert json.loads(found[key][1]) == alone[key]
        for tab in range(5):  # the latest question of either kind has its answer, whichever came last
            kinds = {asked[key][0] for key in answered if key[0] == tab}
            assert kinds == {"look", "row"}

    def test_fifty_requests_without_a_name_are_all_answered(self, service: Service) -> None:
        bodies = {n: {"text": TEXT, "layer": n % 6, "head": n // 6 % 6} for n in range(50)}
        alone = {n: service.ask("look", **fields) for n, fields in bodies.items()}
        found = at_once(
            {n: partial(service.send, "/api/look", json.dumps(fields).encode()) for n, fields in bodies.items()}
        )
        assert {status for status, _ in found.values()} == {200}
        assert {n: json.loads(body) for n, (_, body) in found.items()} == alone

    def test_a_newer_question_of_a_tab_ends_the_one_that_runs_and_leaves_other_tabs_alone(
        self, service: Service, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real, slow = texts.look, Slow()
        monkeypatch.setattr(
            texts, "look", lambda live, gone, text, *rest: (slow if text == "slow" else real)(live, gone, text, *rest)
        )
        results: dict[str, tuple[int, bytes]] = {}

        def ask(name: str, tab: str, text: str) -> threading.Thread:
            body = json.dumps({"text": text, "layer": 0, "head": 0}).encode()
            thread = threading.Thread(
                target=lambda: results.update({name: service.send("/api/look", body, x_armillary_tab=tab)})
            )
            thread.start()
            return thread

        threads = [ask("running", "a", "slow")]
        assert slow.begun.wait(PATIENCE)
        threads.append(ask("other", "b", TEXT))
        wait_for(lambda: len(service.viewer.worker._waiting) == 1)
        threads.append(ask("newer", "a", TEXT))
        for thread in threads:
            thread.join(PATIENCE)
        assert {name: status for name, (status, _) in results.items()} == {"running": 409, "other": 200, "newer": 200}
        assert b"superseded" in results["running"][1]

    def test_a_name_of_a_tab_is_short_and_plain(self, service: Service) -> None:
        body = json.dumps({"text": TEXT, "layer": 0, "head": 0}).encode()
        for tab in ("x" * 33, "A B", "../x"):
            assert service.send("/api/look", body, x_armillary_tab=tab)[0] == 400

    def test_an_answer_that_nobody_reads_does_not_hold_a_place(
        self, service: Service, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("armillary.viewer.server.MOST_SECONDS", 1.0)
        state = service._server.server_state
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(("127.0.0.1", service.port))
            client.sendall(b"GET /static/plotly.min.js HTTP/1.1\r\nhost: 127.0.0.1:%d\r\n\r\n" % service.port)
            read = client.recv(12)
            assert read == b"HTTP/1.1 200"

            def ours() -> list[Any]:
                peers = [(one, one.transport.get_extra_info("peername")) for one in list(state.connections)]
                return [one for one, peer in peers if peer == client.getsockname()]

            wait_for(lambda: not ours())
            with suppress(ConnectionResetError):
                while data := client.recv(1_000_000):
                    read += data
        assert len(read) < len(service.send("/static/plotly.min.js", method="GET")[1])  # it was given up


class Slow:
    """Work that ends only when it is given up."""

    def __init__(self) -> None:
        self.begun, self.ended = threading.Event(), threading.Event()

    def __call__(self, live: LiveModel, gone: Gone, *fields: Any) -> dict[str, Any]:
        self.begun.set()
        try:
            while True:
                gone.check()
                time.sleep(0.01)
        finally:
            self.ended.set()


def wait_for(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.01)


def at_once(calls: dict[Any, Callable[[], Any]]) -> dict[Any, Any]:
    """The results of calls that all begin at the same moment."""
    found: dict[Any, Any] = {}
    barrier = threading.Barrier(len(calls))

    def run(key: Any) -> None:
        barrier.wait(PATIENCE)
        found[key] = calls[key]()

    threads = [threading.Thread(target=run, args=(key,)) for key in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert set(found) == set(calls)
    return found


class TestTurns:
    def taken(self, turns: Turns[str]) -> str:
        return " ".join(turns.take() for _ in range(len(turns)))

    def test_tabs_take_turns_whoever_asks_most(self) -> None:
        turns: Turns[str] = Turns(100)
        for n in range(6):
            turns.put(Asker("noisy", f"kind {n}"), f"n{n}")
        turns.put(Asker("quiet", "look"), "q0")
        turns.put(Asker("quiet", "row"), "q1")
        turns.put(Asker("late", "look"), "l0")
        assert self.taken(turns) == "n0 q0 l0 n1 q1 n2 n3 n4 n5"

    def test_a_tab_that_asks_again_after_each_answer_lets_the_others_in(self) -> None:
        turns: Turns[str] = Turns(100)
        order = []
        for tab in "abc":
            turns.put(Asker(tab, "look"), tab)
        for _ in range(9):
            tab = turns.take()
            order.append(tab)
            turns.put(Asker(tab, "look"), tab)
        assert "".join(order) == "abcabcabc"

    def test_a_newer_question_takes_the_place_of_the_older(self) -> None:
        turns: Turns[str] = Turns(100)
        assert turns.put(Asker("a", "look"), "a0") == ([], [])
        turns.put(Asker("b", "look"), "b0")
        assert turns.put(Asker("a", "look"), "a1") == (["a0"], [])
        assert turns.put(Asker("a", "row"), "a2") == ([], [])
        assert self.taken(turns) == "a1 b0 a2"

    def test_clients_without_a_name_supersede_nothing(self) -> None:
        turns: Turns[str] = Turns(100)
        for n in range(3):
            assert turns.put(Asker("", "look"), f"u{n}") == ([], [])
        assert self.taken(turns) == "u0 u1 u2"

    def test_without_room_the_longest_lane_gives_way(self) -> None:
        turns: Turns[str] = Turns(4)
        for n in range(4):
            turns.put(Asker("", "look"), f"u{n}")
        assert turns.put(Asker("a", "look"), "a0") == ([], ["u3"])
        assert turns.put(Asker("b", "look"), "b0") == ([], ["u2"])
        assert turns.put(Asker("", "look"), "u4") == ([], ["u4"])
        assert turns.put(Asker("c", "look"), "c0") == ([], ["u1"])
        assert turns.put(Asker("d", "look"), "d0") == ([], ["d0"])  # nobody has more than it would have
        assert self.taken(turns) == "u0 a0 b0 c0"

    @given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("xyz")), max_size=60), st.integers(1, 12))
    def test_nobody_waits_longer_than_a_round(self, asked: list[tuple[str, str]], most: int) -> None:
        turns: Turns[int] = Turns(most)
        tabs = {}
        for n, (tab, kind) in enumerate(asked):
            superseded, without_room = turns.put(Asker(tab, kind), n)
            tabs[n] = tab
            for gone in (*superseded, *without_room):
                del tabs[gone]
            assert len(turns) == len(tabs) <= most
        order = [tabs[turns.take()] for _ in range(len(turns))]
        for tab in set(order):
            places = [i for i, other in enumerate(order) if other == tab]
            for first, second in pairwise(places):
                between = order[first + 1 : second]
                assert len(between) == len(set(between))  # everybody else at most once


class TestInvitation:
    def test_the_code_opens_once_and_the_file_is_the_users_alone(self) -> None:
        with serving(alone=True) as service:
            page = service.viewer.invite(service.port)
            assert page.stat().st_mode & 0o777 == 0o600
            assert page.parent.stat().st_mode & 0o777 == 0o700
            text = page.read_text(encoding="utf-8")
            assert service.viewer.gate.token not in text
            target, code = re.search(r'location.replace\("(.*?)#code=([\w-]{43})"\)', text).groups()  # type: ignore[union-attr]
            assert target == f"http://127.0.0.1:{service.port}/"
            body = json.dumps({"code": code}).encode()
            for wrong in (b"{}", b'{"code": ""}', b'{"code": "wrong"}', b'{"code": 5}'):
                assert service.send("/api/enter", wrong, x_armillary_token="")[0] in (400, 403)
            assert service.send("/api/enter", body, x_armillary_token="", origin="https://evil.example")[0] == 403
            assert page.exists()
            status, told = service.send("/api/enter", body, x_armillary_token="")
            assert status == 200
            assert json.loads(told) == {"token": service.viewer.gate.token}
            assert not page.parent.exists()
            assert service.send("/api/enter", body, x_armillary_token="")[0] == 403


@contextmanager
def viewing(place: Path) -> Iterator[tuple["subprocess.Popen[str]", str, list[str]]]:
    """`armillary view` in a process of its own: it, the address that it prints, and the command line of its browser."""
    argv = place / "argv.json"
    browser = place / "browser"
    record = f"json.dump(sys.argv, open('{argv}.part', 'w'))\nos.replace('{argv}.part', '{argv}')\n"
    browser.write_text(f"#!{sys.executable}\nimport json, os, sys\n{record}")
    browser.chmod(0o700)
    (place / "tmp").mkdir()
    command = [str(Path(sys.executable).parent / "armillary"), "view", str(scanned("builtin:prose").path.parent)]
    environment = {**os.environ, "BROWSER": f"{browser} %s", "TMPDIR": str(place / "tmp")}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            printed = next(line.strip() for line in process.stdout if "http://" in line)
            wait_for(argv.exists)
            yield process, printed, json.loads(argv.read_text())
        finally:
            process.kill()


class TestCommand:
    def test_the_browsers_command_line_holds_no_key_and_sigterm_leaves_nothing(self, tmp_path: Path) -> None:
        with viewing(tmp_path) as (process, printed, argv):
            assert argv[1].startswith((tmp_path / "tmp").as_uri())
            page = Path(url2pathname(urlsplit(argv[1]).path))
            keys = re.findall(r"(?:code|token)=([\w-]{43})", page.read_text(encoding="utf-8") + printed)
            assert len(set(keys)) == 2
            assert not any(key in argument for key in keys for argument in argv)
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 143
            assert list((tmp_path / "tmp").glob("armillary-*")) == []

    def test_it_prints_an_address_on_this_machine_and_ctrl_c_ends_it_while_a_request_runs(self) -> None:
        command = [str(Path(sys.executable).parent / "armillary")]
        folder = scanned("builtin:prose").path.parent
        with subprocess.Popen(
            [*command, "view", str(folder), "--no-browser"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            where = None
            while where is None:
                line = process.stdout.readline()
                assert line, process.stderr.read()
                where = re.search(r"http://127\.0\.0\.1:(\d+)/#token=([\w-]{43})", line)
            change = {"kind": "randomize", "scope": "all"}
            body = json.dumps({"text": "a b c d " * 500, "layer": 5, "head": 5, "change": change})
            with socket.create_connection(("127.0.0.1", int(where[1]))) as client:
                client.sendall(request_for("change", body, int(where[1]), where[2]))
                time.sleep(0.4)
                process.send_signal(signal.SIGINT)
                assert process.wait(PATIENCE) == 0
                assert "Traceback" not in process.stderr.read()
