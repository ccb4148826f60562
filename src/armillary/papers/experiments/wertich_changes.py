"""Wertich, §8.4 and §8.5: few-shot prompts with random weights, and with spectra scaled by alpha."""

from contextlib import AbstractContextManager, nullcontext
from html import escape
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import torch
from plotly.subplots import make_subplots

from armillary.anatomy.modes import own_random_numbers
from armillary.figures.style import styled
from armillary.interventions.spectra import randomized, scaled
from armillary.papers.experiments.experiment import Claim, Experiment, Outcome, Settings, ordered, sized
from armillary.papers.experiments.wertich_claims import mean_error, over_models
from armillary.papers.experiments.wertich_prompts import NEEDS, Prompt, loaded, opened, prompts, settings_for, tokens_of
from armillary.papers.experiments.wertich_weights import colors_of
from armillary.probe.attention_map import attention_map, layer_masses
from armillary.probe.trial import run

# Imports inside functions: transformers takes seconds to import.

INITIAL = "whole model as initialized"
RANDOM = {
    "W_q, W_k: Xavier noise": "shape",
    "W_q, W_k: noise of their norms": "norm",
    "W_q, W_k: own spectra, random bases": "spectrum",
}
ALPHAS = (0.5, 1.0, 2.0)
"""§8.5: the spectra of W_q and W_k times alpha, so that logits are multiplied by alpha^2 (`armillary theory T8.1`)."""

# random weights -----------------------------------------------------------------------------------------------------


def random_weights(settings: Settings) -> Outcome:
    """Attention entropy over its maximum, by layer: learned weights and four kinds of random weights."""
    rows, texts = [], []
    seeds = settings_for(settings).seeds
    for name, place in loaded(settings).items():
        model, tokenizer = opened(settings, place)
        changes: list[tuple[str, int, Any, AbstractContextManager[Any]]] = [("learned", 0, model, nullcontext())]
        for seed in range(seeds):
            changes.append((INITIAL, seed, initialized(model, seed), nullcontext()))
            changes += [(kind, seed, model, _random(model, keep, seed)) for kind, keep in RANDOM.items()]
        for weights, seed, changed, context in changes:
            with context:
                for number, prompt in enumerate(prompts(settings)):
                    generate = settings_for(settings).generate if number == seed == 0 else 0
                    measured = run(changed, tokenizer, _tokens(changed, tokenizer, prompt), generate)
                    labels = {"model": name, "weights": weights, "seed": seed, "prompt": number, "loss": measured.loss}
                    for layer, entropy in enumerate(measured.entropy_norm.mean(1)):
                        rows.append({**labels, "layer": layer, "entropy_norm": float(entropy)})
                    if measured.written is not None:
                        texts.append({"model": name, "weights": weights, "written": _new(measured.written, prompt)})
    entropies = pd.DataFrame(rows)
    measures = ["entropy_norm", "loss"]
    grouped = entropies.groupby(["model", "weights", "layer"], sort=False)[measures]
    table = grouped.mean().join(grouped.sem().add_suffix("_error")).reset_index()
    names = list(dict.fromkeys(entropies["model"]))

    def entropy_of(name: str, weights: str) -> tuple[float, float]:
        part = entropies[(entropies["model"] == name) & (entropies["weights"] == weights)]
        return mean_error(part.groupby(["seed", "prompt"])["entropy_norm"].mean().to_numpy())

    def flatter(name: str) -> Claim:
        (initial, error), (learned, other) = entropy_of(name, INITIAL), entropy_of(name, "learned")
        says = "attention is flatter with random weights than with learned ones (entropy over the largest possible)"
        both = float(np.hypot(error, other))
        return ordered(says, initial, learned, error=both, printed="Fig. 8.7 against 8.5")

    uniform = "attention of a randomly initialized model is uniform: entropy over the largest possible"
    claims = [
        over_models(
            {name: sized(uniform, 1.0, entropy_of(name, INITIAL)[0], place="§8.4, Fig. 8.7") for name in names}
        ),
        over_models({name: flatter(name) for name in names}),
    ]
    kinds = list(RANDOM)
    learned = [
        f"How flat random attention is depends on what is kept. {name}: entropy over the largest possible is "
        f"{entropy_of(name, 'learned')[0]:.2f} learned, {entropy_of(name, INITIAL)[0]:.3f} in the model as "
        f"initialized; with only W_q and W_k replaced it is {entropy_of(name, kinds[0])[0]:.2f} with Xavier noise, "
        f"{entropy_of(name, kinds[1])[0]:.2f} with noise of the heads' own norms and "
        f"{entropy_of(name, kinds[2])[0]:.2f} with their own spectra between random bases."
        for name in names[:1]
    ]
    return Outcome(
        {"entropy": table, "texts": pd.DataFrame(texts)}, {"entropy": _entropy_figure(table)}, claims, learned
    )


@own_random_numbers()
def initialized(model: Any, seed: int) -> Any:
    """A model of the same configuration with the initial weights of its family."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    fresh = AutoModelForCausalLM.from_config(model.config)
    return fresh.float().eval().to(next(model.parameters()).device)


def _random(model: Any, keep: str, seed: int) -> AbstractContextManager[Any]:
    return randomized(model, keep=keep, seed=seed)  # type: ignore[arg-type]


def _tokens(model: Any, tokenizer: Any, prompt: Prompt) -> torch.Tensor:
    return tokens_of(tokenizer, prompt.text).to(next(model.parameters()).device)


def _new(written: str, prompt: Prompt) -> str:
    """The generated text, without the prompt."""
    at = written.find(prompt.text.strip())
    return written[at + len(prompt.text.strip()) :] if at >= 0 else written[len(prompt.text) :]


def _entropy_figure(table: pd.DataFrame) -> go.Figure:
    names = list(dict.fromkeys(table["model"]))
    figure = make_subplots(1, len(names), subplot_titles=names, shared_yaxes=True, horizontal_spacing=0.03)
    for weights, color in colors_of(table["weights"]).items():
        for col, name in enumerate(names, start=1):
            part = table[(table["model"] == name) & (table["weights"] == weights)]
            figure.add_scatter(
                x=part["layer"],
                y=part["entropy_norm"],
                error_y=dict(array=part["entropy_norm_error"], thickness=1),
                line_color=color,
                name=weights,
                legendgroup=weights,
                showlegend=col == 1,
                row=1,
                col=col,
            )
    figure.update_xaxes(title="layer").update_yaxes(range=[0, 1.03])
    figure.update_yaxes(title="entropy / largest possible", row=1, col=1)
    figure.update_layout(legend=dict(orientation="h", y=-0.22))
    styled(figure, "Flatness of attention with learned and with random weights (Wertich, Figure 8.7)", height=440)
    return figure.update_layout(margin_b=110)


# scaled spectra -----------------------------------------------------------------------------------------------------


def scaled_spectra(settings: Settings) -> Outcome:
    """alpha = 1/2, 1, 2: entropy, attention to the word itself and to sinks, loss, and generated text."""
    rows, layers, texts = [], [], []
    for name, place in loaded(settings).items():
        model, tokenizer = opened(settings, place)
        for alpha in ALPHAS:
            for number, prompt in enumerate(prompts(settings)):
                tokens = _tokens(model, tokenizer, prompt)
                with scaled(model, alpha):
                    found = run(model, tokenizer, tokens, settings_for(settings).generate)
                    masses = layer_masses(attention_map(model, tokenizer, prompt.text))
                new = _new(found.written or "", prompt)
                here = {"model": name, "alpha": alpha, "prompt": number}
                rows.append(
                    {
                        **here,
                        "entropy_norm": float(found.entropy_norm.mean()),
                        "itself": float(masses["itself"].mean()),
                        "sinks": float(masses["sinks"].mean()),
                        "loss": found.loss,
                        "strangeness": strangeness(model, tokenizer, prompt.text, new),
                        "repeated": repeated(prompt.text, new),
                    }
                )
                layers += [
                    {**here, "layer": layer, "entropy_norm": float(value)}
                    for layer, value in enumerate(found.entropy_norm.mean(1))
                ]
                if number < 2:
                    texts.append({**here, "target": prompt.target, "written": new})
    every = pd.DataFrame(rows)
    measures = [column for column in every.columns if column not in ("model", "alpha", "prompt")]
    grouped = every.groupby(["model", "alpha"], sort=False)[measures]
    table = grouped.mean().join(grouped.sem().add_suffix("_error")).reset_index()
    by_layer = pd.DataFrame(layers).groupby(["model", "alpha", "layer"], sort=False)["entropy_norm"]
    entropies = by_layer.agg(["mean", "sem"]).rename(columns={"mean": "entropy_norm", "sem": "error"}).reset_index()
    names = list(dict.fromkeys(every["model"]))
    learned = [
        "Where alpha = 2 sends the attention: from alpha = 1 to 2 the mass on the word itself goes "
        + ", ".join(f"{_at(every, n, 1, 'itself'):.2f} to {_at(every, n, 2, 'itself'):.2f} ({n})" for n in names)
        + ", that on the first token and special ones "
        + ", ".join(f"{_at(every, n, 1, 'sinks'):.2f} to {_at(every, n, 2, 'sinks'):.2f} ({n})" for n in names)
        + ". The loss on the prompt at alpha = 1/2, 1, 2 is "
        + "; ".join(", ".join(f"{_at(every, n, a, 'loss'):.2f}" for a in ALPHAS) + f" ({n})" for n in names)
        + "."
    ]
    tables = {"means": table, "entropy": entropies, "texts": pd.DataFrame(texts)}
    figures = {"entropy": _alpha_figure(entropies), "texts": _texts_figure(texts)}
    return Outcome(tables, figures, _alpha_claims(every, names), learned)


def _alpha_claims(every: pd.DataFrame, names: list[str]) -> list[Claim]:
    def compared(says: str, measure: str, larger: float | int, smaller: float | int, printed: str) -> Claim:
        each = {name: _compared(every, name, says, measure, larger, smaller, printed) for name in names}
        return over_models(each)

    flat = "attention becomes flat with alpha = 1/2: entropy over the largest possible"
    weak = "flat, §8.5; 'not as strong as expected but still visible'"
    return [
        compared("alpha = 2 sharpens attention (entropy at 1 and 2)", "entropy_norm", 1, 2, "§8.5, Fig. 8.8"),
        compared("alpha = 1/2 flattens attention (entropy at 1/2 and 1)", "entropy_norm", 0.5, 1, "§8.5, Fig. 8.9"),
        over_models({name: sized(flat, 1.0, _at(every, name, 0.5, "entropy_norm"), place=weak) for name in names}),
        compared("with alpha = 2 words attend to themselves (at 2 and 1)", "itself", 2, 1, "predominantly (§8.5)"),
        compared(
            "text written with alpha = 1/2 is stranger than with alpha = 2 (loss of the unchanged model on it)",
            "strangeness",
            0.5,
            2,
            "sequences without meaning against coherent English (§8.5)",
        ),
        compared("alpha = 2 repeats the prompt (share of word triples, at 2 and 1)", "repeated", 2, 1, "often (§8.5)"),
        compared("alpha = 1/2 hurts (loss on the prompt, at 1/2 and 1)", "loss", 0.5, 1, "no language left (§8.5)"),
        compared(
            "alpha = 1/2 hurts more than 2 (loss on the prompt)", "loss", 0.5, 2, "sentences at 2, none at 1/2 (§8.5)"
        ),
    ]


def strangeness(model: Any, tokenizer: Any, prompt: str, new: str) -> float:
    """Mean loss per token (nats) of the generated text under the unchanged model; NaN for empty text."""
    start = tokens_of(tokenizer, prompt).shape[1]
    tokens = tokens_of(tokenizer, prompt + new).to(next(model.parameters()).device)
    if tokens.shape[1] <= start:
        return float("nan")
    with torch.no_grad():
        logits = model(input_ids=tokens).logits[0, start - 1 : -1].double()
    return float(torch.nn.functional.cross_entropy(logits, tokens[0, start:]))


def repeated(prompt: str, new: str, run_of: int = 3) -> float:
    """The share of trigrams of the generated text that occur in the prompt; NaN if there are none."""

    def runs(text: str) -> list[tuple[str, ...]]:
        words = text.lower().split()
        return [tuple(words[i : i + run_of]) for i in range(len(words) - run_of + 1)]

    in_prompt, trigrams = set(runs(prompt)), runs(new)
    return sum(trigram in in_prompt for trigram in trigrams) / len(trigrams) if trigrams else float("nan")


def _at(table: pd.DataFrame, name: str, alpha: float | int, measure: str) -> float:
    return float(table[(table["model"] == name) & (table["alpha"] == alpha)][measure].mean())


def _compared(
    table: pd.DataFrame, name: str, says: str, measure: str, larger: float | int, smaller: float | int, printed: str
) -> Claim:
    """The claim that a measure is larger at one alpha than at another, paired by prompt."""
    by_alpha = table[table["model"] == name].pivot(index="prompt", columns="alpha", values=measure)
    both = by_alpha[[larger, smaller]].dropna()
    if len(both) < 2:
        return Claim(says, printed, "nothing was written", "undecided")
    _, error = mean_error((both[larger] - both[smaller]).to_numpy())
    why = "it is zero with both" if not both.to_numpy().any() else ""
    means = (float(both[larger].mean()), float(both[smaller].mean()))
    return ordered(says, *means, error=error, printed=printed, why=why)


def _alpha_figure(entropies: pd.DataFrame) -> go.Figure:
    names = list(dict.fromkeys(entropies["model"]))
    figure = make_subplots(1, len(names), subplot_titles=names, shared_yaxes=True, horizontal_spacing=0.03)
    for alpha, color in zip(ALPHAS, ("#1f77b4", "black", "#d62728"), strict=True):
        for col, name in enumerate(names, start=1):
            part = entropies[(entropies["model"] == name) & (entropies["alpha"] == alpha)]
            figure.add_scatter(
                x=part["layer"],
                y=part["entropy_norm"],
                error_y=dict(array=part["error"], thickness=1),
                line_color=color,
                name=f"alpha = {alpha:g}",
                legendgroup=f"{alpha}",
                showlegend=col == 1,
                row=1,
                col=col,
            )
    figure.update_xaxes(title="layer").update_yaxes(range=[0, 1.03])
    figure.update_yaxes(title="entropy / largest possible", row=1, col=1)
    title = "Flatness of attention when the spectra of W_q and W_k are scaled (Wertich, Figures 8.8 and 8.9)"
    return styled(figure, title, height=400)


def _texts_figure(texts: list[dict[str, Any]]) -> go.Figure:
    """The text generated after the first prompt, a row for each model and alpha."""
    first = [row for row in texts if row["prompt"] == 0]
    shown = [escape(" ".join(str(row["written"]).split()), quote=False) or "(blank lines)" for row in first]
    cells = [[row["model"] for row in first], [f"{row['alpha']:g}" for row in first], shown]
    look = dict(align="left", height=36, font_size=12)
    table = go.Table(
        header=dict(values=["model", "alpha", "written after '... Word: Ant. Clue:'"], align="left"),
        cells=dict(values=cells, **look),
        columnwidth=[1.2, 0.5, 6],
    )
    height = 130 + 36 * len(first)
    return styled(go.Figure(table), "What the models write when the spectra are scaled (Wertich, §8.5)", height=height)


EXPERIMENTS = (
    Experiment(
        "wertich-random-weights",
        "Wertich",
        "§8.4, Figure 8.7",
        "How flat is attention with random weights?",
        random_weights,
        minutes=0.8,
        needs=NEEDS,
    ),
    Experiment(
        "wertich-scaled",
        "Wertich",
        "§8.5, Figures 8.8 and 8.9",
        "What happens to attention and text when the spectra of W_q and W_k are scaled?",
        scaled_spectra,
        minutes=1.5,
        needs=NEEDS,
    ),
)
