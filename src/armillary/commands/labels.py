"""Print the labels of heads and test them by ablation: labels, verify-heads."""

import json
from typing import Annotated, Any

import typer

from armillary.anatomy.options import ModelOptions
from armillary.commands.options import AsCsv, AsJson, Folder, OtherModel, print_json
from armillary.commands.parameters import with_parameters

# Imports inside functions: the program starts without what this command alone needs.


def labels(folder: Folder, as_json: AsJson = False) -> None:
    """Print how many heads have each label and where, what else they do, and whether the lenses agree."""
    from armillary.atlas.atlas import open_atlas
    from armillary.lenses.labels import agreement_table, evidence_table, label_counts, more_facts
    from armillary.terminal import tables

    atlas = open_atlas(folder)
    counts, agreement = label_counts(atlas), agreement_table(atlas)
    if as_json:
        parts = {
            "labels": counts,
            "more": more_facts(atlas),
            "agreement": agreement,
            "evidence": evidence_table(atlas),
        }
        print_json({name: json.loads(tables.as_json(table)) for name, table in parts.items()})
        return
    sure = "significant against random heads, and not refuted by verify-heads"
    tables.show(counts, title=f"Labels of the heads; 'sure': {sure}")
    more = more_facts(atlas)
    if not more.empty:
        typer.echo()
        tables.show(more, title="Heads that do more than their label says, attend to few keys, or failed their check")
    typer.echo()
    tables.show(agreement, title="Do the lenses agree? Rank correlations over heads")


@with_parameters(ModelOptions)
def verify_heads(
    folder: Folder,
    model: OtherModel = None,
    heads: Annotated[
        int, typer.Option(help="How many heads to check, evenly over the labels, significant heads first.", min=1)
    ] = 24,
    sequences: Annotated[
        int,
        typer.Option(
            "--sequences", "--limit", help="How many sequences of the atlas's text to run for each head.", min=1
        ),
    ] = 8,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    **options: Any,
) -> None:
    """Test labels: remove from a head's logits what its label says it uses, then the rest, and measure the effect."""
    from armillary.anatomy.loading import load_for
    from armillary.atlas.atlas import open_atlas
    from armillary.atlas.verdicts import keep_verdicts
    from armillary.errors import ArmillaryError
    from armillary.probe.label_checks import check_heads, sampled_heads, summary
    from armillary.terminal import tables
    from armillary.terminal.progress import shown_progress

    atlas = open_atlas(folder)
    chosen = sampled_heads(atlas, heads)
    if chosen.empty:
        raise ArmillaryError("no head of this atlas has a label that can be checked: all are broad or mixed")
    loaded = load_for(atlas.attrs["model"], model or atlas.attrs["model"]["name"], **options)
    with shown_progress("checking") as progress:
        verdicts = check_heads(loaded, atlas, chosen, sequences=sequences, progress=progress)
    try:
        keep_verdicts(atlas, verdicts)
    except ArmillaryError as error:  # a read-only folder: print the verdicts all the same
        typer.echo(f"armillary: the verdicts are not saved for labels, report and viewer: {error}", err=True)
    if as_csv:
        typer.echo(verdicts.to_csv(index=False), nl=False)
    elif as_json:
        parts = {"heads": verdicts, "labels": summary(verdicts)}
        print_json({name: json.loads(tables.as_json(table)) for name, table in parts.items()})
    else:
        shown = tables.columns_of(verdicts, "verify")
        tables.show(shown, title="Each head without what its label says it uses, and without the rest")
        typer.echo()
        tables.show(summary(verdicts), title="Share of heads whose label passed the check")
