"""Columns of the heads table that `armillary ablate` adds: what a head does for the next token, and for the loss."""

from functools import partial

from armillary.atlas.columns.column import Column

_effect = partial(Column, table="heads", lens="atlas.effects")

CAUSES = (
    _effect(
        "ablation_loss",
        "How much the loss on text rises when the head's output (before W_o) is replaced by its mean at the same "
        "position; measured for the heads with the largest estimates, or for all (`armillary ablate --exact`).",
        r"L(o \to \bar o_t) - L",
        unit="nats per token",
        sets=("usual", "overview"),
    ),
    _effect("ablation_se", "Standard error of ablation_loss over sequences.", unit="nats per token"),
    _effect(
        "gradient_loss",
        "The same to first order, for all heads from one backward pass.",
        r"-\tfrac{\partial L}{\partial o} \cdot (o - \bar o_t)",
        unit="nats per token",
    ),
    _effect(
        "repeat_ablation_loss",
        "How much the loss on the second copy of repeated random tokens rises without the head.",
        r"L_2(o \to \bar o_t) - L_2",
        unit="nats per token",
        sets=("usual", "overview"),
    ),
    _effect("repeat_ablation_se", "Standard error of repeat_ablation_loss over sequences.", unit="nats per token"),
    _effect("repeat_gradient_loss", "repeat_ablation_loss to first order, for all heads.", unit="nats per token"),
    _effect(
        "direct_logit",
        "What the head itself adds to the logit of the true next token (less the mean over the vocabulary), with the "
        "final norm's observed scale kept: the parts of all heads, MLPs, embedding and biases add up to the model's.",
        r"\langle z W_o, u_{\text{next}} - \bar u \rangle",
        unit="logit",
        sets=("overview",),
    ),
)
