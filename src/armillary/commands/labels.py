"""What each head does, in a word, and whether that is so: labels, verify-heads."""

import json
from typing import Annotated

import typer

from armillary.commands.options import AsCsv, AsJson, Folder, TrustRemoteCode, print_json


def labels(folder: Folder, as_json: AsJson = False) -> None:
    """Print how many heads do what and in which layers, what else they do, and how far the lenses agree."""
    from armillary import tables
    from armillary.atlas import open_atlas
    from armillary.lenses.labels import agreement_table, evidence_table, label_counts, more_facts

    atlas = open_atlas(folder)
    counts, agreement = label_counts(atlas), agreement_table(atlas)
    if as_json:
        found = {
            "labels": counts,
            "more": more_facts(atlas),
            "agreement": agreement,
            "evidence": evidence_table(atlas),
        }
        print_json({name: json.loads(tables.as_json(table)) for name, table in found.items()})
        return
    tables.show(counts, title="What the heads do; 'sure' are those that no random head of their size resembles")
    more = more_facts(atlas)
    if not more.empty:
        typer.echo()
        tables.show(more, title="Heads that do more than their label says, rest on few keys, or fail their check")
    typer.echo()
    tables.show(agreement, title="Where lenses should tell the same story: rank correlations over heads")


def verify_heads(
    folder: Folder,
    model: Annotated[str | None, typer.Option(help="The model, if it is not where the scan found it.")] = None,
    heads: Annotated[int, typer.Option(help="How many heads; labels take turns, significant heads first.", min=1)] = 24,
    blocks: Annotated[int, typer.Option(help="Blocks of the atlas's text to run for every head.", min=1)] = 8,
    as_json: AsJson = False,
    as_csv: AsCsv = False,
    trust_remote_code: TrustRemoteCode = False,
) -> None:
    """Take from each head what its label says it uses, then everything else: which moves its attention and the loss?"""
    from armillary import tables
    from armillary.atlas import open_atlas
    from armillary.errors import ArmillaryError
    from armillary.head_checks import check_heads, sampled_heads, summary
    from armillary.models import load_for
    from armillary.terminal import progress
    from armillary.verdicts import keep_verdicts

    atlas = open_atlas(folder)
    chosen = sampled_heads(atlas, heads)
    if chosen.empty:
        raise ArmillaryError("no head of this atlas has a label that can be checked: all are broad or mixed")
    loaded = load_for(atlas.attrs["model"], model or atlas.attrs["model"]["name"], trust_remote_code=trust_remote_code)
    found = check_heads(loaded, atlas, chosen, blocks=blocks, track=progress)
    try:
        keep_verdicts(atlas, found)
    except ArmillaryError as error:  # a folder that may only be read: what was found is told all the same
        typer.echo(f"armillary: the verdicts are not kept for labels, report and viewer: {error}", err=True)
    if as_csv:
        typer.echo(found.to_csv(index=False), nl=False)
    elif as_json:
        parts = {"heads": found, "labels": summary(found)}
        print_json({name: json.loads(tables.as_json(table)) for name, table in parts.items()})
    else:
        shown = tables.columns_of(found, "verify", None, None)
        tables.show(shown, title="Without what a head uses, and without the rest")
        typer.echo()
        tables.show(summary(found), title="Share of heads for which it is as the label says")
