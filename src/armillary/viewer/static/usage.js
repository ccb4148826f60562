// The rotary frequencies that a head uses in a text, token by token, and the most probable next tokens.

import { choice } from "./dom.js";
import { limit, formatted } from "./maths.js";
import { card, draw, matrix, name } from "./plots.js";
import { set, state } from "./state.js";

const KINDS = { share: "share of the row's logits", q: "norm of q", k: "norm of k" };
let by;
let whole;
let next;
let picker;

export function build() {
  by = card("usage", "Frequencies, token by token", 400);
  whole = card("frequency-share", "Frequencies in this text", 240);
  next = card("next", "Most probable next tokens", 240);
  picker = choice("What the map shows", Object.entries(KINDS), state.usage, (usage) => set({ usage }));
  by.root.insertBefore(picker, by.plot);
  by.root.classList.add("wide");
  return [by.root, whole.root, next.root];
}

export function jobs(answer, shown) {
  picker.show(state.usage);
  by.root.hidden = whole.root.hidden = !answer.frequencies;
  next.root.hidden = !answer.next;
  const use = answer.frequencies;
  return [
    ...(use ? [[by, () => showRows(answer, shown, use)], [whole, () => showShares(use)]] : []),
    ...(answer.next ? [[next, () => showNext(answer)]] : []),
  ];
}

function showRows(answer, shown, use) {
  const F = use.radians.length;
  const { values, n } = rowsOf(answer, shown, use, F);
  const names = use.radians.map((_, f) => String(f));
  const signed = state.usage === "share";
  const says = { share: "Share of each query's logits by frequency; with channels that do not rotate, a column adds to 1.", q: "Norm of the query's chunk at each frequency.", k: "Norm of the key's chunk at each frequency." };
  name(by, "Frequencies, token by token", `${says[state.usage]} Fastest at the top.`);
  // frequencies downwards would waste the width: tokens go across
  const turned = new Float32Array(values.length);
  for (let i = 0; i < n; i++) for (let f = 0; f < F; f++) turned[f * n + i] = values[i * F + f];
  by.height = Math.min(430, 130 + 16 * F);
  const lines = (f, i) => [["token", shown.names[i]], ["frequency", `${f} (${formatted(use.radians[f], 3)} radians per token)`], [KINDS[state.usage], formatted(turned[f * n + i], 6)]];
  matrix(by, turned, F, { x: shown.labels, y: names }, { m: n, signed, top: limit(turned), lines, titles: ["", "frequency"], square: false });
}

function showShares(use) {
  const F = use.radians.length;
  name(whole, "Frequencies in this text", "Share of the logits of the whole text by frequency; with channels that do not rotate, they add to 1.");
  const bars = { type: "bar", x: use.radians.map((_, f) => f), y: use.share, marker: { color: "#2b6ca8" }, hovertemplate: "frequency %{x}: %{y:.5f}<extra></extra>" };
  return draw(whole, [bars], { xaxis: { title: { text: "frequency, fastest first" }, dtick: Math.ceil(F / 16) }, yaxis: { title: { text: "share" }, zeroline: true } });
}

function rowsOf(answer, shown, use, F) {
  const T = use.squares.length;
  const join = answer.exact && state.level === "word";
  const of = join ? answer.of_token : [...Array(T).keys()];
  const n = join ? answer.words.length : T;
  const values = new Float32Array(n * F);
  const weights = new Float32Array(n);
  const source = state.usage === "share" ? use.products : use[state.usage];
  for (let t = 0; t < T; t++) {
    weights[of[t]] += state.usage === "share" ? use.squares[t] : 1;
    for (let f = 0; f < F; f++) values[of[t] * F + f] += source[t * F + f];
  }
  for (let i = 0; i < n; i++) for (let f = 0; f < F; f++) values[i * F + f] = weights[i] > 0 ? values[i * F + f] / weights[i] : NaN;
  return { values, n };
}

function showNext(answer) {
  name(next, "Most probable next tokens", "The model's prediction after the text.");
  return draw(next, [bar(answer.next, 0, "#2b6ca8", "probability")], nextLayout(answer.next));
}

export const bar = (tokens, which, color, title) => ({
  type: "bar",
  orientation: "h",
  name: title,
  x: tokens.map(({ p }) => p[which]),
  y: tokens.map((_, i) => i),
  marker: { color },
  hovertemplate: `%{x:.5f}<extra>${title}</extra>`,
});

export const nextLayout = (tokens) => ({
  margin: { l: 104, r: 14, t: 8, b: 36 },
  xaxis: { title: { text: "probability" }, rangemode: "tozero" },
  yaxis: { tickvals: tokens.map((_, i) => i), ticktext: tokens.map(({ label }) => label), autorange: "reversed", tickfont: { size: 10 } },
});
