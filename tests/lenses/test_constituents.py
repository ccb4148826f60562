"""Constituents sum to the logits in every family, and are right for heads built by hand."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from transformers import GPT2Config, GPT2LMHeadModel

import armillary as arm
from armillary.anatomy.description import Rotary
from armillary.anatomy.layout import entry
from armillary.anatomy.samples import DISTINCT, sample_model
from armillary.lenses.constituents import means_of
from armillary.observe.verification import relative_error
from armillary.probe.terms import text_constituents
from armillary.streams.constituents import PARTS, TERMS, LogitParts
from conftest import FAMILY_TOKENS, Atlases, shared

TOKENS = torch.randint(5, 99, (8, 20), generator=torch.Generator().manual_seed(3))
SUMS = [name for name in reversed(list(DISTINCT)) if name != "mpt/clipped"]
"""From the last to the first: test_scan.py scans the same models from the first on, perhaps at the same time."""


@pytest.mark.parametrize("name", SUMS)
class TestEveryFamily:
    def test_nine_terms_and_bias_sum_to_the_tapped_logits(self, name: str, atlases: Atlases) -> None:
        model = sample_model(name)
        means, anatomy, errors = means_of(atlases.family(name)), arm.describe(model), []

        def check(view: arm.AttentionView) -> None:
            seen = view.visible()
            total = torch.stack(LogitParts(anatomy, means, view).terms(slice(None))).sum(0)
            errors.append(relative_error(total * seen, view.logits().double() * seen))

        with torch.no_grad(), arm.Tap(model, check):
            model(FAMILY_TOKENS)
        assert len(errors) == len(anatomy.layers)
        assert max(errors) < 1e-4

    def test_shares_add_to_one(self, name: str, atlases: Atlases) -> None:
        heads = atlases.family(name).heads
        shares = heads[[f"share_{term}" for term in TERMS]]
        np.testing.assert_allclose(shares.sum(axis=1), 1, atol=1e-6)
        folded = heads[["positional_share", "content_share", "mixed_share"]]
        np.testing.assert_allclose(folded.sum(axis=1), 1, atol=1e-6)
        assert heads["constituent_error"].max() < 1e-5
        biased = name.split("/")[0] in ("bloom", "mpt", "t5", "mpnet", "deberta-v2") or name == "falcon/alibi"
        assert heads["share_bias"].notna().all() == biased
        assert heads["share_bias"].ne(0).all()  # missing where it does not apply, never zero


def note(found: dict[int, torch.Tensor], view: arm.AttentionView) -> None:
    found.setdefault(view.layer, view.attention())


def test_shares_equal_their_definition(atlases: Atlases) -> None:
    """One head of one layer, with explicit matrices and loops."""
    model, (sequences, length) = sample_model("qwen2"), FAMILY_TOKENS.shape
    atlas = atlases.family("qwen2")
    means, anatomy = means_of(atlas), arm.describe(model)
    seen: list[arm.AttentionView] = []
    with torch.no_grad(), arm.Tap(model, seen.append):
        model(FAMILY_TOKENS)
    layer, head = 1, 3
    view, weights = seen[layer], anatomy.weights(layer)
    position, scale = anatomy.layers[layer].position, anatomy.layers[layer].scale
    assert isinstance(position, Rotary)
    assert view.x is not None
    assert scale is not None
    assert weights.q_bias is not None
    assert weights.k_bias is not None
    q_bias, k_bias = weights.q_bias[head].double(), weights.k_bias[anatomy.layers[layer].kv_head(head)].double()
    x = view.x.double()
    m, p = means.mean[layer], means.pos[layer]
    parts = {"mean": m.expand_as(x), "pos": p.expand_as(x), "cvec": x - m - p}
    from armillary.observe.rebuild import rotate

    def turned(part: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor | float) -> torch.Tensor:
        return rotate(position, (part @ matrix.double() + bias)[:, None], torch.arange(length))[:, 0]

    kv = anatomy.layers[layer].kv_head(head)
    b = {}
    for query in PARTS:
        for key in PARTS:
            q = turned(parts[query], weights.q[head], q_bias if query == "mean" else 0.0)
            k = turned(parts[key], weights.k[kv], k_bias if key == "mean" else 0.0)
            b[f"{query}_{key}"] = (q @ k.mT * scale).numpy()
    whole = np.sum(list(b.values()), axis=0)
    top, bottom = dict.fromkeys(b, 0.0), 0.0
    for c in range(sequences):
        for i in range(1, length):
            keys = list(range(1, i + 1))
            row = whole[c, i, keys] - whole[c, i, keys].mean()
            bottom += (row**2).sum()
            for term, matrix in b.items():
                top[term] += ((matrix[c, i, keys] - matrix[c, i, keys].mean()) * row).sum()
    found = atlas.heads.query("layer == 1 and head == 3").iloc[0]
    for term, value in top.items():
        assert found[f"share_{term}"] == pytest.approx(value / bottom, abs=1e-6)


def built_by_hand() -> tuple[GPT2LMHeadModel, torch.Tensor]:
    """Head 0 reads only positions, head 1 only tokens; every position sees every token equally often."""
    vocabulary, length, d = 16, 16, 64
    config = GPT2Config(vocab_size=vocabulary, n_positions=length, n_embd=d, n_layer=1, n_head=2)
    torch.manual_seed(0)
    model = GPT2LMHeadModel(config).eval()
    signs = torch.tensor([[1.0 if bin(i & j).count("1") % 2 == 0 else -1.0 for j in range(32)] for i in range(32)])
    with torch.no_grad():
        token, place = torch.zeros(vocabulary, d), torch.zeros(length, d)
        rows = signs[1:9]  # orthogonal, each with as many +1 as -1: layer norm divides all tokens by the same number
        token[:, :32] = torch.cat([rows, -rows])
        rows = signs[9:25]
        place[:, 32:] = rows
        model.transformer.wte.weight.copy_(token)
        model.transformer.wpe.weight.copy_(place)
        attention = model.transformer.h[0].attn.c_attn
        attention.weight.zero_()
        attention.bias.zero_()
        w = arm.describe(model).weights(0)
        for head, channels in ((0, slice(32, 64)), (1, slice(0, 32))):
            w.q[head][channels] = torch.randn(32, 32)
            w.k[head][channels] = torch.randn(32, 32)
    ids = (torch.arange(vocabulary)[:, None] + torch.arange(length)[None, :]) % vocabulary
    return model, ids


def test_shares_of_a_positional_and_a_content_head() -> None:
    model, ids = built_by_hand()
    heads = arm.scan(model, ids).heads
    assert heads["positional_share"].tolist() == pytest.approx([1.0, 0.0], abs=1e-7)
    assert heads["content_share"].tolist() == pytest.approx([0.0, 1.0], abs=1e-7)
    assert heads["share_pos_pos"][0] > 0.5
    assert heads["mixed_share"].abs().max() < 1e-7


def attention_without_content(model: torch.nn.Module, tokens: torch.Tensor, atlas: arm.Atlas) -> np.ndarray:
    """How much of each head's attention is lost when its layer reads m + p_t in place of x.

    Total variation between the attention with and without content, over that between the attention and a uniform
    one: 0 for a head that does not need content, 1 for one whose attention becomes uniform. (A head that is nearly
    uniform anyway cannot change much in absolute terms.) Computed with the model, a layer at a time.
    """
    means, anatomy = means_of(atlas), arm.describe(model)
    lost = []
    usual: dict[int, arm.AttentionView] = {}
    with torch.no_grad(), arm.Tap(model, lambda view: usual.setdefault(view.layer, view)):
        entry(model)(input_ids=tokens)
    for layer in range(len(anatomy.layers)):
        found: dict[int, torch.Tensor] = {}
        with (
            torch.no_grad(),
            arm.interventions.without(model, "content", means, layers=[layer]),
            arm.Tap(model, partial(note, found)),
        ):
            entry(model)(input_ids=tokens)
        before, seen = usual[layer].attention(), usual[layer].visible()
        uniform = seen / seen.sum(-1, keepdim=True)
        change, structure = ((before - other).abs().sum(-1)[:, :, 1:].mean((0, 2)) for other in (found[layer], uniform))
        lost.append(change / structure)
    return torch.stack(lost).flatten().numpy()


@pytest.mark.parametrize(
    "name", [pytest.param("stories15M", marks=pytest.mark.slow), "llama", pytest.param("gpt2", marks=pytest.mark.slow)]
)
def test_shares_predict_what_is_lost_without_content(
    name: str, atlases: Atlases, record_property: Callable[..., None]
) -> None:
    """Replacing x by m + p_t changes a positional head little and a content head much."""
    atlas = atlases.trained(name)
    model = arm.load(shared("models/stories15M") if name == "stories15M" else arm.bundled(name), dtype=torch.float32)
    tokens = torch.from_numpy(atlas.group("corpus")["tokens"].to_numpy()[:8])
    lost = attention_without_content(model, tokens, atlas)
    correlation = float(spearmanr(1 - atlas.heads["positional_share"], lost).statistic)
    record_property("rank_correlation", correlation)
    assert correlation > 0.6


class TestOneText:
    def test_matrices_sum_and_folds_agree(self, atlases: Atlases) -> None:
        from armillary.anatomy.loading import load_tokenizer

        folder = arm.bundled("llama")
        model, tokenizer = arm.load(folder, dtype=torch.float32), load_tokenizer(folder)
        atlas = atlases(folder, length=32, sequences=24)
        found = text_constituents(atlas, model, tokenizer, 2, 3, "Return a list of the words in the string.")
        total = np.sum(list(found.terms.values()), axis=0)
        np.testing.assert_allclose(total[found.visible], found.logits[found.visible], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(np.sum(list(found.folded().values()), axis=0), total)
        assert set(found.folded(with_mean=False)) == {"pos_pos", "pos_cvec", "cvec_pos", "cvec_cvec"}
        assert "".join(found.tokens) == "Return a list of the words in the string."
        for layer, head, text, said in (
            (9, 0, "a b", "no head 9.0: this model has layers 0 to 5 with heads 0 to 5"),
            (0, 0, "word " * 99, "may have 2 to 32"),
            (0, 0, "", "may have 2 to 32"),
        ):
            with pytest.raises(arm.ArmillaryError, match=said):
                text_constituents(atlas, model, tokenizer, layer, head, text)

    def test_an_atlas_without_means_says_which_option_adds_them(self) -> None:
        atlas = arm.scan(sample_model("llama"), TOKENS, streams=("attention",))
        with pytest.raises(arm.ArmillaryError, match="`streams=positions,constituents"):
            means_of(atlas)
        with pytest.raises(arm.ArmillaryError, match="is computed from 'positions'"):
            arm.scan(sample_model("llama"), TOKENS, streams=("attention", "constituents"))


def test_a_model_that_clips_has_no_constituents(atlases: Atlases) -> None:
    heads = atlases.family("mpt/clipped").heads
    assert heads["positional_share"].isna().all()
    assert heads["entropy"].notna().all()


def test_the_second_pass_is_resumable_and_settable(tmp_path: Path) -> None:
    from armillary.progress import Progress

    class StopInSecond(Progress):
        passes = 0

        def begin(self, what: str, total: int, unit: str, **others: int) -> None:
            self.passes += 1
            self.batches = 0

        def advance(self, count: int = 1, worker: object = None) -> None:
            self.batches += 1
            if self.passes == 2 and self.batches == 3:
                raise KeyboardInterrupt

    model = sample_model("llama")
    streams = ("positions", "attention", "constituents")
    settings: dict[str, Any] = dict(batch=2, shard=2, second_pass=6, streams=streams)
    with pytest.raises(KeyboardInterrupt):
        arm.scan(model, TOKENS, out=tmp_path / "a", progress=StopInSecond(), **settings)
    resumed = arm.scan(model, TOKENS, out=tmp_path / "a", resume=True, **settings)
    whole = arm.scan(model, TOKENS, **settings)
    assert resumed.heads.equals(whole.heads)
    everything = arm.scan(model, TOKENS, **{**settings, "second_pass": 64})
    assert not everything.heads["positional_share"].equals(whole.heads["positional_share"])
