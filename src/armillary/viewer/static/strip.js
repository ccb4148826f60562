// The text, colored by the attention of one query token, and that row's largest keys in exact numbers.

import { Line } from "./ask.js";
import { element, fill, table, tell } from "./dom.js";
import { formatted } from "./maths.js";
import { set, state } from "./state.js";

const MOST = 6;
const FOLDS = { positional: (a, b) => a !== "cvec" && b !== "cvec", content: (a, b) => a === "cvec" && b === "cvec" };

let place;
let beside;
let heading;
const line = new Line();
let drawn = { of: null, buttons: [] };

export function build() {
  heading = element("h3", {});
  place = element("div", { class: "strip", id: "strip", role: "group", "aria-label": "Tokens of the text; click to choose the query" });
  beside = element("div", { id: "row-keys" });
  place.addEventListener("mouseover", (event) => event.target.dataset?.token && tell(event, lines(Number(event.target.dataset.token))));
  place.addEventListener("mouseout", (event) => tell(event, null));
  return element("section", { class: "card", id: "card-strip" }, heading, place, beside);
}

let row = null;
let names = [];

const lines = (t) => [["token", `${t} ${names[t]}`], ["attention", row ? formatted(row.attention[t], 6) : "–"], ["logit", row ? formatted(row.logits[t], 6) : "–"]];

export const query = (answer) => (state.query < 0 ? answer.tokens.length - 1 : Math.min(state.query, answer.tokens.length - 1));

export async function show(answer) {
  const at = query(answer);
  const T = answer.tokens.length;
  names = answer.tokens;
  if (drawn.of !== answer) {
    const buttons = answer.tokens.map((token, t) =>
      element("button", { type: "button", class: answer.special[t] ? "token special" : "token", "data-token": t, tabindex: t === at ? "0" : "-1", onclick: () => set({ query: t }) }, visible(token)),
    );
    fill(place, ...buttons);
    drawn = { of: answer, buttons };
  }
  row = answer.exact ? exactRow(answer, at, T) : await line.ask("row", { text: state.text, layer: answer.layer, head: answer.head, token: at });
  if (!row) return;
  heading.textContent = "What one token attends to";
  const seen = [...row.attention.keys()].filter((t) => !Number.isNaN(row.attention[t]));
  const top = Math.max(...seen.filter((t) => t > 0).map((t) => row.attention[t]), 1e-9);
  drawn.buttons.forEach((button, t) => {
    const share = Number.isNaN(row.attention[t]) ? 0 : Math.min(1, row.attention[t] / top);
    button.style.backgroundColor = `rgba(86, 160, 215, ${(0.85 * share).toFixed(3)})`;
    button.classList.toggle("query", t === at);
    button.setAttribute("aria-pressed", String(t === at));
    button.tabIndex = t === at ? 0 : -1;
  });
  const best = seen.sort((a, b) => row.attention[b] - row.attention[a]).slice(0, MOST);
  const center = row.terms && Object.fromEntries(Object.entries(row.terms).map(([term, values]) => [term, mean(values, seen)]));
  const body = best.map((t) => [`${t} ${answer.tokens[t]}`, formatted(row.attention[t], 5), formatted(row.logits[t], 5), ...(row.terms ? folds(row.terms, center, t) : [])]);
  const heads = ["key", "attention", "logit", ...(row.terms ? ["positional", "mixed", "content"] : [])];
  fill(beside, table(heads, body, `Token ${at} “${answer.tokens[at]}”: its largest keys${row.terms ? ", and the terms that favor them (minus the row's mean)" : ""}`));
}

function exactRow(answer, at, T) {
  const cut = (values) => values.subarray(at * T, (at + 1) * T);
  return { attention: cut(answer.attention), logits: cut(answer.logits), terms: answer.terms && Object.fromEntries(Object.entries(answer.terms).map(([term, values]) => [term, cut(values)])) };
}

const mean = (values, seen) => seen.reduce((sum, t) => sum + values[t], 0) / Math.max(1, seen.length);

function folds(terms, center, t) {
  const sums = { positional: 0, mixed: 0, content: 0 };
  for (const [term, values] of Object.entries(terms)) {
    const [a, b] = term.split("_");
    const fold = term === "bias" || FOLDS.positional(a, b) ? "positional" : FOLDS.content(a, b) ? "content" : "mixed";
    sums[fold] += values[t] - center[term];
  }
  return Object.values(sums).map((value) => formatted(value, 4));
}

// Line breaks stay visible without breaking the row's colors.
const visible = (token) => token.replaceAll("\r", "").replaceAll("\n", "⏎\n").replaceAll("\t", "⇥");

export function step(by) {
  if (drawn.of) set({ query: Math.min(Math.max(query(drawn.of) + by, 0), drawn.of.tokens.length - 1) });
}
