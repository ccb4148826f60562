"""Wertich, §7.2.3: do all tokens become equal with depth? Random stacks and trained models, with and without skips."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import torch
from jaxtyping import Float, Int
from plotly.subplots import make_subplots
from torch import Tensor, nn

from armillary.anatomy.layout import entry, find_stack
from armillary.anatomy.modes import evaluating
from armillary.anatomy.registry import adapter_for
from armillary.anatomy.source import describe
from armillary.errors import ArmillaryError
from armillary.figures.style import styled
from armillary.observe.tap import Tap
from armillary.papers.experiments.experiment import Claim, Experiment, Outcome, Settings, ordered
from armillary.papers.experiments.material import corpora, models
from armillary.papers.experiments.wertich_changes import initialized
from armillary.papers.experiments.wertich_claims import below, mean_error, over_models
from armillary.papers.experiments.wertich_prompts import opened
from armillary.papers.experiments.wertich_weights import colors_of
from armillary.streams.similarity import TokenSimilarity
from armillary.text.names import split_sources
from armillary.text.sources import documents


@dataclass(frozen=True)
class Mixtures:
    """Random stacks: `runs` of `tokens` x `width`, `depth` layers. Models: number and length of texts."""

    models: tuple[str, ...]
    tokens: int
    width: int
    depth: int
    runs: int
    texts: int
    length: int


SMALL = Mixtures(("stories15M", "bundled-llama", "bundled-gpt2"), 32, 64, 16, 8, 8, 96)
PAPER = Mixtures(("mistralai/Mistral-7B-Instruct-v0.2",), 64, 256, 32, 32, 64, 512)
CORPUS = ("builtin:prose",)
BETAS = (1.0, 0.9, 0.5, 0.1)
"""x becomes LayerNorm((1 - beta) x + beta attention(x)), as §7.2.3 proposes; 1 is without a skip connection."""
FULL, NO_SKIP, NO_MLP, ALONE = "as it is", "no skip", "no MLP", "no MLP, no skip"
VARIANTS = {FULL: (True, True), NO_SKIP: (False, True), NO_MLP: (True, False), ALONE: (False, False)}
"""Variant -> (skip around attention, MLP)."""
MERGED = 0.1
"""Tokens count as merged if their distance from the mean is below this share of their norm."""


def mixture(settings: Settings) -> Outcome:
    """|H - 1 mean'|/|H| over the tokens H of a text (0: all equal) and their mean cosine, by layer."""
    chosen = SMALL if settings.small else PAPER
    stacks = pd.concat([random_stacks(chosen, beta) for beta in BETAS], ignore_index=True)
    rows = []
    source = next(iter(corpora(settings, CORPUS, CORPUS).values()))
    for name, place in models(settings, chosen.models, chosen.models).items():
        model, tokenizer = opened(settings, place)
        tokens = blocks(tokenizer, source, chosen.texts, chosen.length)
        for weights, changed in (("learned", model), ("initialized", initialized(model, 0))):
            for variant, (skip, mlp) in VARIANTS.items():
                with without(changed, skip=skip, mlp=mlp):
                    similarity = by_depth(changed, tokens)
                rows.append(similarity.assign(model=name, weights=weights, variant=variant))
    by_text = pd.concat(rows, ignore_index=True)
    table = _means(by_text, ["model", "weights", "variant", "layer"])
    random = _means(stacks, ["beta", "layer"])
    claims = _claims(by_text, stacks, chosen)
    names = list(dict.fromkeys(by_text["model"]))
    ends = {(n, w, v): _last(by_text, n, w, v)[0] for n in names for w in ("learned", "initialized") for v in VARIANTS}
    cosines = {(n, v): _last(by_text, n, "learned", v, "token_cosine")[0] for n in names for v in VARIANTS}
    learned = [
        "What keeps tokens apart after the last layer (what tells them apart over their length; their mean cosine): "
        + "; ".join(
            f"{n}: "
            + ", ".join(f"{v} {ends[n, 'learned', v]:.2f} ({cosines[n, v]:.2f})" for v in VARIANTS)
            + f", against {ends[n, 'initialized', ALONE]:.2g} for random weights without both"
            for n in names
        )
        + ".",
        f"In random stacks a skip slows the merging: after {chosen.depth} layers of LayerNorm((1 - beta) x + beta "
        "attention(x)) what tells tokens apart is "
        + ", ".join(f"{_end(stacks, chosen.depth, beta)[0]:.2g} at beta = {beta:g}" for beta in BETAS)
        + ".",
    ]
    figures = {"models": _models_figure(table), "stacks": _stacks_figure(random)}
    return Outcome({"models": table, "random_stacks": random}, figures, claims, learned)


def random_stacks(chosen: Mixtures, beta: float) -> pd.DataFrame:
    """Similarity by depth in stacks of attention layers with Xavier weights: LayerNorm((1 - beta) x + beta Ax W_v)."""
    generator = torch.Generator().manual_seed(0)
    d = chosen.width

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    x = torch.nn.functional.layer_norm(drawn(chosen.runs, chosen.tokens, d), (d,))
    rows = _similarities(x, 0, 0)
    for layer in range(1, chosen.depth + 1):
        w_q, w_k, w_v = (drawn(chosen.runs, d, d) / d**0.5 for _ in range(3))
        attention = ((x @ w_q) @ (x @ w_k).mT / d**0.5).softmax(-1)
        x = torch.nn.functional.layer_norm((1 - beta) * x + beta * (attention @ x @ w_v), (d,))
        rows += _similarities(x, layer, 0)
    return pd.DataFrame(rows).assign(beta=beta)


def _similarities(h: Float[Tensor, "sequence position width"], layer: int, skip: int) -> list[dict[str, Any]]:
    """A row for each sequence: the similarity of its tokens."""
    measure = TokenSimilarity(skip)
    rows = []
    for number, hidden in enumerate(h):
        measures = measure.finish(measure.measure(hidden[None]))
        rows.append({"sequence": number, "layer": layer, **{name: float(value) for name, value in measures.items()}})
    return rows


def blocks(tokenizer: Any, source: str, count: int, length: int) -> Int[Tensor, "text token"]:
    """The first `length` tokens of the first `count` documents that are long enough."""
    sequences: list[list[int]] = []
    for document in documents(split_sources(source)):
        tokens = tokenizer(document.text[: 20 * length], verbose=False)["input_ids"][:length]
        if len(tokens) == length:
            sequences.append(tokens)
        if len(sequences) == count:
            break
    if len(sequences) < 2:
        raise ArmillaryError(
            f"{source} has {len(sequences)} texts of {length} tokens, too few", advice="give a longer corpus"
        )
    return torch.tensor(sequences)


@torch.no_grad()
def by_depth(model: Any, tokens: Int[Tensor, "text token"]) -> pd.DataFrame:
    """Similarity of the tokens of each text in the residual stream before and after every block, without the first."""
    rows: list[dict[str, Any]] = []
    with evaluating(model), Tap(model, None, lambda layer, h: rows.extend(_similarities(h.double().cpu(), layer, 1))):
        entry(model)(input_ids=tokens.to(next(model.parameters()).device))
    return pd.DataFrame(rows)


@contextmanager
def without(model: nn.Module, *, skip: bool, mlp: bool) -> Iterator[nn.Module]:
    """The model without the skip connection around attention (skip=False), without its MLPs (mlp=False), or both.

    h + attention(h) becomes attention(h): h is subtracted from the output of attention.
    """
    anatomy = describe(model)
    adapter = adapter_for(anatomy.family)
    stack = find_stack(model, anatomy)
    if adapter is None or not all(hasattr(block, "mlp") for block in stack.blocks):
        raise ArmillaryError(
            f"the attention and MLP of a {anatomy.family} block are not known", advice="give a Llama or GPT-2"
        )
    with ExitStack() as undo:
        for block in stack.blocks:
            if not skip:
                entering: list[Tensor] = []
                attention = block.get_submodule(adapter.attention)
                undo.callback(block.register_forward_pre_hook(_keep(entering), with_kwargs=True).remove)
                undo.callback(attention.register_forward_hook(_take_off(entering)).remove)
            if not mlp:
                undo.callback(block.get_submodule("mlp").register_forward_hook(_nothing).remove)
        yield model


def _keep(entering: list[Tensor]) -> Any:
    def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
        entering[:] = [args[0] if args else kwargs["hidden_states"]]

    return hook


def _take_off(entering: list[Tensor]) -> Any:
    def hook(module: nn.Module, args: Any, given: Any) -> Any:
        return (given[0] - entering[0], *given[1:]) if isinstance(given, tuple) else given - entering[0]

    return hook


def _nothing(module: nn.Module, args: Any, given: Tensor) -> Tensor:
    return torch.zeros_like(given)


def _means(table: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    grouped = table.groupby(keys, sort=False)[["rank_one_distance", "token_cosine"]]
    return grouped.mean().join(grouped.sem().add_suffix("_error")).reset_index()


def _at(
    table: pd.DataFrame, name: str, weights: str, variant: str, layer: int, measure: str = "rank_one_distance"
) -> tuple[float, float]:
    """A measure after a given number of blocks: mean and standard error over texts."""
    part = table[(table["model"] == name) & (table["weights"] == weights) & (table["variant"] == variant)]
    return mean_error(part[part["layer"] == layer][measure].to_numpy())


def _last(
    table: pd.DataFrame, name: str, weights: str, variant: str, measure: str = "rank_one_distance"
) -> tuple[float, float]:
    deepest = int(table[table["model"] == name]["layer"].max())
    return _at(table, name, weights, variant, deepest, measure)


def _end(stacks: pd.DataFrame, depth: int, beta: float) -> tuple[float, float]:
    """The distance between tokens at the end of random stacks: mean and standard error over runs."""
    part = stacks[(stacks["layer"] == depth) & (stacks["beta"] == beta)]
    return mean_error(part["rank_one_distance"].to_numpy())


def _claims(table: pd.DataFrame, stacks: pd.DataFrame, chosen: Mixtures) -> list[Claim]:
    names = list(dict.fromkeys(table["model"]))
    ends = {beta: _end(stacks, chosen.depth, beta) for beta in BETAS}
    hypothesis = "Hypothesis, for random matrices (§7.2.3)"

    def alike(name: str, weights: str, printed: str) -> Claim:
        (start, error), (end, other) = _at(table, name, weights, ALONE, 0), _last(table, name, weights, ALONE)
        says = (
            f"tokens grow alike with depth, attention alone, {weights} weights (before the first layer, after the last)"
        )
        both = float(np.hypot(error, other))
        return ordered(says, start, end, error=both, printed=printed)

    def apart(name: str) -> Claim:
        (full, error), (alone, other) = _last(table, name, "learned", NO_MLP), _last(table, name, "learned", ALONE)
        says = "skip connections keep tokens apart (attention alone, with the skip and without)"
        both = float(np.hypot(error, other))
        return ordered(says, full, alone, error=both, printed="proposed, 'residual stream' (§7.3)")

    return [
        below(
            f"tokens of random attention layers become one, after {chosen.depth} layers (what tells them apart)",
            MERGED,
            ends[1.0][0],
            error=ends[1.0][1],
            printed=hypothesis,
        ),
        ordered(
            "a skip connection of beta = 1/2 slows this down",
            ends[0.5][0],
            ends[1.0][0],
            error=float(np.hypot(ends[0.5][1], ends[1.0][1])),
            printed="skips may answer the problem (§7.3)",
        ),
        over_models({name: alike(name, "initialized", hypothesis) for name in names}),
        over_models({name: alike(name, "learned", "Hypothesis, for norms up to 2 (§7.2.3)") for name in names}),
        over_models({name: apart(name) for name in names}),
    ]


def _models_figure(table: pd.DataFrame) -> go.Figure:
    names = list(dict.fromkeys(table["model"]))
    figure = make_subplots(1, len(names), subplot_titles=names, shared_yaxes=True, horizontal_spacing=0.03)
    for variant, color in colors_of(table["variant"]).items():
        for weights, dash in (("learned", "solid"), ("initialized", "dot")):
            for col, name in enumerate(names, start=1):
                part = table[(table["model"] == name) & (table["weights"] == weights) & (table["variant"] == variant)]
                label = f"{variant}, {weights}"
                figure.add_scatter(
                    x=part["layer"],
                    y=part["rank_one_distance"].clip(lower=1e-8),
                    line=dict(color=color, dash=dash),
                    name=label,
                    legendgroup=label,
                    showlegend=col == 1,
                    row=1,
                    col=col,
                )
    figure.update_xaxes(title="blocks passed").update_yaxes(type="log", exponentformat="power")
    figure.update_yaxes(title="what tells tokens apart / length", row=1, col=1)
    figure.update_layout(legend=dict(orientation="h", y=-0.2))
    styled(figure, "How different the tokens of a text stay with depth (Wertich, §7.2.3)", height=480)
    return figure.update_layout(margin_b=120)


def _stacks_figure(random: pd.DataFrame) -> go.Figure:
    figure = go.Figure()
    for beta in BETAS:
        part = random[random["beta"] == beta]
        label = "no skip (beta = 1)" if beta == 1 else f"beta = {beta:g}"
        figure.add_scatter(x=part["layer"], y=part["rank_one_distance"].clip(lower=1e-16), name=label)
    figure.update_xaxes(title="layers passed")
    figure.update_yaxes(title="what tells tokens apart / length", type="log", exponentformat="power")
    return styled(figure, "Random attention layers, LayerNorm((1 - beta) x + beta attention(x))", height=420)


EXPERIMENTS = (
    Experiment(
        "wertich-mixture",
        "Wertich",
        "§7.2.3, §7.3, the 'uniform embedding mixture problem'",
        "Do all tokens become one with depth, and what do skip connections do about it?",
        mixture,
        minutes=0.3,
        needs="mistralai/Mistral-7B-Instruct-v0.2; any text (--corpus), Python's own prose by default",
        quick=True,
    ),
)
