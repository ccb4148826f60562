// What a head reads and writes, in tokens: a card with examples, colored by attention.
import { element } from "./dom.js";

export function reading(card) {
  if (!card || !(card.does || card.examples)) return [];
  const lines = [];
  const line = (name, parts) => parts?.length && lines.push(element("p", { class: "reads" }, element("strong", {}, `${name}: `), ...parts));
  const lifted = (entries) => entries?.map(([text, lift]) => element("span", { class: "item" }, element("bdi", {}, text), ` ×${lift}  `));
  const ends = (entries) => entries?.map(([share, source, target]) => element("div", {}, `${(100 * share).toFixed(0)} %: `, element("bdi", {}, source), " → ", element("bdi", {}, target)));
  line("Reads more", lifted(card.more));
  line("Reads less", lifted(card.less));
  line("From, to", card.pairs?.map(([query, key, lift]) => element("span", { class: "item" }, element("bdi", {}, query), " → ", element("bdi", {}, key), ` ×${lift}  `)));
  line("Writes", ends(card.writes));
  line("Matches", ends(card.matches));
  const title = element("h3", {}, "What it reads and writes");
  return [element("section", { class: "card reading" }, title, element("p", {}, card.does), ...lines, ...(card.examples ?? []).map(example))];
}

function example(tokens) {
  const line = element("p", { class: "example" });
  for (const [text, weight, kind] of tokens) {
    if (kind & 2) line.append(" … ");
    const shown = element("bdi", { class: kind & 1 ? "asks" : "key", title: `attention ${weight}` }, text);
    if (!(kind & 1) && weight > 0) shown.style.setProperty("--weight", String(Math.min(1, weight)));
    line.append(shown);
  }
  return line;
}
