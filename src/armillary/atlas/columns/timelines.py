"""Columns of the tables of timelines: checkpoints, births, the largest changes, and two timelines compared."""

from functools import partial

from armillary.atlas.columns.column import Column, Table

_checkpoint = partial(Column, table="checkpoints", lens="atlas.timelines.timeline", measure=False)
_birth = partial(Column, table="births", lens="atlas.timelines.births", measure=False)
_step = partial(Column, table="steps", lens="atlas.timelines.births", measure=False)
_both = partial(Column, table="births_compared", lens="atlas.timelines.compare", measure=False)
_first = partial(Column, table="first_births", lens="atlas.timelines.compare", measure=False)
_curve = partial(Column, table="curves_compared", lens="atlas.timelines.compare", measure=False)

LAYER = ("layer", "The layer, counted from 0.")
HEAD = ("head", "The head within its layer, counted from 0.")

CHECKPOINTS = Table(
    "checkpoints",
    "A row for every checkpoint of a timeline.",
    (
        _checkpoint("checkpoint", "The step, or the place in the series where steps are not known.", kind="whole"),
        _checkpoint("name", "The name of the checkpoint's folder or revision.", kind="word"),
        _checkpoint("tokens", "Tokens that were trained on until then.", kind="whole", unit="tokens"),
        _checkpoint("loss", "Loss on the text of the timeline, on its first sequences.", unit="nats per token"),
        _checkpoint(
            "logged_loss", "Loss in the run's log at this step, or the last one before it.", unit="nats per token"
        ),
        _checkpoint(
            "held_out_loss", "Held-out loss in the run's log at this step, or the last one.", unit="nats per token"
        ),
        _checkpoint("significant_heads", "Heads whose label is significant.", kind="whole", unit="heads"),
        _checkpoint("same_as", "The earlier checkpoint that has the same weights.", kind="word"),
    ),
)

BIRTHS = Table(
    "births",
    "A row for every head that is born, in the order of birth.",
    (
        _birth(*LAYER, kind="whole"),
        _birth(*HEAD, kind="whole"),
        _birth("label", "The label at the last checkpoint.", kind="word"),
        _birth(
            "birth",
            "The first checkpoint from which on the label is the last one's and significant.",
            kind="whole",
        ),
        _birth("before", "The checkpoint before that; missing if the first has the label.", kind="whole"),
        _birth("label_before", "The label at the checkpoint before.", kind="word"),
    ),
)

STEPS = Table(
    "steps",
    "A row for every large change of a measure of a head from one checkpoint to the next.",
    (
        _step(*LAYER, kind="whole"),
        _step(*HEAD, kind="whole"),
        _step("measure", "Which measure changed.", kind="word"),
        _step("before", "The earlier checkpoint.", kind="whole"),
        _step("after", "The later checkpoint.", kind="whole"),
        _step("a", "Its value at the earlier checkpoint."),
        _step("b", "Its value at the later checkpoint."),
        _step("change", "Later minus earlier.", r"b - a"),
        _step(
            "size",
            "Absolute change, in units of the measure's standard deviation over all heads and checkpoints.",
            r"|b - a| / \operatorname{sd}",
            unit="standard deviations",
        ),
    ),
)

BIRTHS_COMPARED = Table(
    "births_compared",
    "A row for every head that is born in one of two timelines.",
    (
        _both(*LAYER, kind="whole"),
        _both(*HEAD, kind="whole"),
        _both("label_a", "Its label at the end of the first timeline, if it is born there.", kind="word"),
        _both("birth_a", "Its birth in the first timeline.", kind="whole"),
        _both("label_b", "Its label at the end of the second timeline, if it is born there.", kind="word"),
        _both("birth_b", "Its birth in the second timeline.", kind="whole"),
        _both("later", "Birth in the second minus birth in the first; only where the label is the same.", kind="whole"),
    ),
)

FIRST_BIRTHS = Table(
    "first_births",
    "A row for every label: its first birth in two timelines, whichever head it is.",
    (
        _first("label", "The label.", kind="word"),
        _first("first_a", "The first birth of a head with this label in the first timeline.", kind="whole"),
        _first("heads_a", "How many heads of the first timeline are born with this label.", kind="whole", unit="heads"),
        _first("first_b", "The same in the second timeline.", kind="whole"),
        _first("heads_b", "How many heads of the second timeline are born with it.", kind="whole", unit="heads"),
        _first("later", "First birth in the second minus that in the first.", kind="whole"),
    ),
)

CURVES_COMPARED = Table(
    "curves_compared",
    "A row for every measure of a head whose curves in two timelines differ, over the checkpoints that both have.",
    (
        _curve(*LAYER, kind="whole"),
        _curve(*HEAD, kind="whole"),
        _curve("measure", "Which measure.", kind="word"),
        _curve("at", "The checkpoint where the two differ most.", kind="whole"),
        _curve("a", "Its value there in the first timeline."),
        _curve("b", "Its value there in the second timeline."),
        _curve("difference", "Second minus first, there.", r"b - a"),
        _curve("final", "Second minus first, at the last checkpoint that both have."),
        _curve("mean_difference", "Mean absolute difference over the checkpoints that both have."),
        _curve(
            "size",
            "Absolute difference where it is largest, in units of the measure's standard deviation over both.",
            r"|b - a| / \operatorname{sd}",
            unit="standard deviations",
        ),
    ),
)
