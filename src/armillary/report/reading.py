"""What every head reads and writes, in tokens, as plain data for the pages: a card per head."""

from typing import TYPE_CHECKING, Any

from armillary.atlas.head import window
from armillary.atlas.texts import texts_of
from armillary.text.vocabulary import LONGEST

if TYPE_CHECKING:
    from armillary.atlas.atlas import Atlas

TOKENS, DIRECTIONS, EXAMPLES = 6, 2, 3
"""Tokens read more and less, directions, and examples on a card."""


def reading_cards(atlas: "Atlas") -> list[dict[str, Any]]:
    """For each row of the heads table: {more, less, pairs, missed, writes, matches, examples}.

    more, less: [token, lift]; pairs: [query, key, lift]; writes, matches: [share, source, target]; an example is a list
    of [text, attention, kind], kind 1 for the query and 2 for a token after a gap (3 for both).
    """
    heads = [(int(a), int(b)) for a, b in zip(atlas.heads["layer"], atlas.heads["head"], strict=True)]
    by_head: dict[tuple[int, int], dict[str, Any]] = {head: {} for head in heads}
    for row in atlas.table("tokens").to_dict("records"):
        card = by_head[int(row["layer"]), int(row["head"])]
        side = card.setdefault("more" if row["gain"] > 0 else "less", [])
        side.append([str(row["text"]), _short(row["lift"])])
    for card in by_head.values():
        card["more"], card["less"] = card.get("more", [])[:TOKENS], card.get("less", [])[::-1][:TOKENS]
    for row in atlas.table("pairs").to_dict("records"):
        card = by_head[int(row["layer"]), int(row["head"])]
        pairs = card.setdefault("pairs", [])
        if len(pairs) < TOKENS:
            pairs.append([str(row["query_text"]), str(row["key_text"]), _short(row["lift"])])
            card["missed"] = _short(row["missed"])
    for row in atlas.table("writes").to_dict("records"):
        if int(row["direction"]) < DIRECTIONS:
            entry = [_short(row["share"]), str(row["source"]), str(row["target"])]
            by_head[int(row["layer"]), int(row["head"])].setdefault(str(row["kind"]), []).append(entry)
    _add_examples(atlas, by_head)
    return [by_head[head] for head in heads]


def _add_examples(atlas: "Atlas", by_head: dict[tuple[int, int], dict[str, Any]]) -> None:
    table = atlas.table("examples")
    if table.empty:
        return
    words, tokens = texts_of(atlas), atlas.group("corpus")["tokens"].to_numpy()
    for row in table[table["rank"] < EXAMPLES].to_dict("records"):
        weights = {int(place): float(a) for place, a in (part.split(":") for part in str(row["keys"]).split())}
        shown = window(tokens[int(row["sequence"])].tolist(), int(row["query"]), weights, words)
        example = [[cut(t.text), round(t.weight, 3), t.is_query + 2 * t.after_gap] for t in shown]
        by_head[int(row["layer"]), int(row["head"])].setdefault("examples", []).append(example)


def cut(text: str) -> str:
    """A token on a page: line breaks and tabs as signs, what cannot be printed escaped, long ones cut."""
    text = text.replace("\n", "⏎").replace("\t", "⇥")
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return text if len(text) <= 2 * LONGEST else text[: 2 * LONGEST - 1] + "…"


def _short(value: Any) -> float:
    return float(f"{float(value):.3g}")
