// What a head reads and writes, in tokens: a card with examples, colored by attention.
import { make, page, percent, values } from "./format.js";

export function reading(row) {
  const card = page.reading?.[row];
  const does = values("heads", "does")?.[row];
  if (!card || !(does || Object.keys(card).length)) return "";
  const place = make("section", { className: "reading" }, make("h3", {}, "What it reads and writes"));
  if (does) place.append(make("p", { className: "does" }, does));
  const lines = make("dl", { className: "pairs" });
  const line = (name, ...parts) => lines.append(make("dt", {}, name), make("dd", {}, ...parts));
  const lifted = (entries) => entries.map(([text, lift]) => make("span", { className: "item" }, token(text), ` ${times(lift)}`));
  if (card.more?.length) line("Reads more", ...lifted(card.more));
  if (card.less?.length) line("Reads less", ...lifted(card.less));
  if (card.pairs?.length) line("From, to", ...card.pairs.map(([query, key, lift]) => make("span", { className: "item" }, token(query), " → ", token(key), ` ${times(lift)}`)), make("span", { className: "note" }, `(others gain at most ${card.missed} rows)`));
  const ends = (entries) => entries.map(([share, source, target]) => make("div", {}, `${percent(share)}: `, token(source), " → ", token(target)));
  if (card.writes?.length) line("Writes", ...ends(card.writes));
  if (card.matches?.length) line("Matches", ...ends(card.matches));
  place.append(lines);
  for (const example of card.examples ?? []) place.append(shownExample(example));
  return place;
}

function times(lift) {
  return `×${lift >= 100 ? lift.toFixed(0) : lift.toPrecision(2)}`;
}

function token(text) {
  return make("bdi", { className: "token" }, text);
}

function shownExample(example) {
  const line = make("p", { className: "example" });
  for (const [text, weight, kind] of example) {
    if (kind & 2) line.append(make("span", { className: "note" }, " … "));
    const shown = make("bdi", { className: kind & 1 ? "asks" : "key", title: `attention ${weight}` }, text);
    if (!(kind & 1) && weight > 0) shown.style.setProperty("--weight", String(Math.min(1, weight)));
    line.append(shown);
  }
  return line;
}
