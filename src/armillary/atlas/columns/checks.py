"""Columns of the tables of checks and comparisons: agreement of lenses, checks of labels, two atlases."""

from functools import partial

from armillary.atlas.columns.column import Column, Table

_agreement = partial(Column, table="agreement", lens="lenses.labels", measure=False)
_verify = partial(Column, table="verify", lens="probe.label_checks", measure=False)
_change = partial(Column, table="changes", lens="atlas.compare", measure=False)
_label_change = partial(Column, table="changes", lens="report.sentences", measure=False)

AGREEMENT = Table(
    "agreement",
    "A row for every two measures that should agree over heads.",
    (
        _agreement("a", "One measure.", kind="word"),
        _agreement("b", "The other measure.", kind="word"),
        _agreement(
            "expected", "Whether the two should rise together (+) or one fall as the other rises (-).", kind="word"
        ),
        _agreement("heads", "Number of heads that have both.", kind="whole", unit="heads"),
        _agreement("correlation", "Spearman's rank correlation over heads.", r"\rho_S", unit="correlation"),
        _agreement("low", "Lower end of the 95 % interval of the correlation.", unit="correlation"),
        _agreement(
            "high",
            "Upper end of the 95 % interval of the correlation, as if heads were independent.",
            unit="correlation",
        ),
        _agreement(
            "verdict",
            "agrees: the whole interval has the expected sign; contradicts: the interval excludes it; open: neither.",
            kind="word",
        ),
        _agreement("why", "Why the two should agree.", kind="word"),
    ),
)

_REMOVED = {
    "used": "without what a head of this label should use",
    "rest": "without all the rest",
    "frequencies": "without the rotary frequencies that such a head should use",
    "other_frequencies": "without the other rotary frequencies",
}

VERIFY = Table(
    "verify",
    "A row for every head whose label `armillary verify-heads` checked, by removing terms from its logits.",
    (
        _verify("layer", "The layer, counted from 0.", kind="whole", sets=("usual",)),
        _verify("head", "The head within its layer, counted from 0.", kind="whole", sets=("usual",)),
        _verify("label", "The label that was checked.", kind="word", sets=("usual",)),
        _verify("significant", "Whether the label is significant against random heads.", kind="yes-no"),
        _verify("used", "What a head of this label should use, which was removed.", kind="word", sets=("usual",)),
        _verify("rest", "What was removed for comparison.", kind="word", sets=("usual",)),
        *(
            _verify(
                f"{measure}_{name}",
                f"{words} {removed}.",
                unit=unit,
                sets=("usual",) if name in ("used", "rest") else (),
            )
            for measure, words, unit in (
                ("keys", "Attention that the label's own keys lose", "share"),
                ("attention", "Total variation distance of the attention before and after, mean over rows,", "share"),
                ("loss", "Change of the loss", "nats per token"),
            )
            for name, removed in _REMOVED.items()
        ),
        _verify(
            "holds",
            "Whether the label's keys lose more without `used` than without `rest` (or attention moves further, where "
            "the label names no keys); missing within two standard errors.",
            kind="yes-no",
            sets=("usual",),
        ),
        _verify(
            "loss_holds",
            "Whether the loss rises more without `used` than without `rest`; missing within two standard errors.",
            kind="yes-no",
            sets=("usual",),
        ),
        _verify(
            "frequencies_hold",
            "The same as holds, for the rotary frequencies that such a head should use against the others.",
            kind="yes-no",
            sets=("usual",),
        ),
    ),
)

CHANGES = Table(
    "changes",
    "A row for every measure of a head or a layer that changed from one atlas to another, or for every changed label.",
    (
        _change("layer", "The layer, counted from 0.", kind="whole"),
        _change("head", "The head within its layer, counted from 0; a head is named LAYER.HEAD.", kind="whole"),
        _change("measure", "Which measure changed.", kind="word"),
        _change("a", "Its value in the first atlas."),
        _change("b", "Its value in the second atlas."),
        _change("change", "Second minus first.", r"b - a"),
        _change(
            "size",
            "Absolute change, in units of the measure's standard deviation over both atlases.",
            r"|b - a| / \operatorname{sd}",
            unit="standard deviations",
        ),
        _label_change("before", "The label in the first atlas.", kind="word"),
        _label_change("after", "The label in the second atlas.", kind="word"),
    ),
)
