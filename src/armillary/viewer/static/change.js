// An intervention on the model, tried on the text: attention, entropies and next tokens before and after.

import { Line } from "./ask.js";
import { byId, element, fill, tell } from "./dom.js";
import { chosenCell, headAxes, value } from "./map.js";
import { difference, distance, joined, limit, rows, formatted } from "./maths.js";
import { SIGNED } from "./heat.js";
import { card, draw, inView, matrix, name, working } from "./plots.js";
import { set, state } from "./state.js";
import { bar, nextLayout } from "./usage.js";

const KINDS = {
  scale: "scale W_q and W_k (logits by the square)",
  cut: "cut the rank of W_q, W_k",
  randomize: "replace W_q, W_k by random weights",
  frequencies: "freeze rotary frequencies (p-RoPE)",
  remove: "remove a part of the layer's input",
};
const STARTS = {
  scale: { alpha: 2 },
  cut: { rank: 4, keep: "top" },
  randomize: { keep: "norm", seed: 0 },
  frequencies: { p: 0.5, reversed: false, base: "all" },
  remove: { part: "position" },
};
const SCOPES = { head: "this head", layer: "this layer", all: "all layers" };

let facts;
let made;
let fields;
let summary;
const line = new Line();

export function build(given) {
  facts = given;
  fields = element("div", { class: "controls", id: "change-fields" });
  summary = element("div", { id: "change-summary", role: "status", class: "note" });
  made = {
    before: card("before", "Attention before", 370),
    after: card("after", "Attention after", 370),
    moved: card("moved", "After minus before", 370),
    heads: card("entropies", "Entropy of every head: after minus before", 370),
    next: card("next-both", "Next token: before and after", 330),
  };
  made.next.root.classList.add("wide");
  fill(byId("view-change"), fields, summary, element("div", { class: "grid" }, ...Object.values(made).map(({ root }) => root)));
}

export function withdraw() {
  line.drop();
}

// Clear the figures, so that none shows an older request.
export function clear() {
  byId("view-change").lastElementChild.hidden = true;
  summary.textContent = "";
}

let sliding = null;

// A slider fires many events while it moves; only the last one counts.
function change(values) {
  clearTimeout(sliding);
  sliding = setTimeout(() => set({ change: { ...state.change, ...values } }), 120);
}

const select = (label, key, options) => {
  const input = element("select", { id: `change-${key}`, onchange: () => (key === "kind" ? set({ change: { kind: input.value, scope: state.change.scope ?? "head", ...STARTS[input.value] } }) : change({ [key]: input.value })) }, ...Object.entries(options).map(([value, text]) => element("option", { value, selected: state.change[key] === value }, text)));
  return element("label", {}, label, input);
};
const number = (label, key, least, most, step) => {
  const input = element("input", { type: "range", id: `change-${key}`, min: least, max: most, step, value: state.change[key] });
  const exact = element("input", { type: "number", "aria-label": `${label}, exact`, id: `change-${key}-exact`, min: least, max: most, step, value: state.change[key] });
  input.addEventListener("input", () => change({ [key]: Number((exact.value = input.value)) }));
  exact.addEventListener("change", () => change({ [key]: Number((exact.value = input.value = Math.min(most, Math.max(least, Number(exact.value) || 0)))) }));
  return [element("label", { for: `change-${key}` }, label), input, exact];
};

function controls() {
  const { kind } = state.change;
  const kinds = Object.fromEntries(Object.entries(KINDS).filter(([name]) => (name !== "frequencies" || facts.rotary) && (name !== "remove" || facts.constituents)));
  const scopes = kind === "remove" ? { layer: SCOPES.layer, all: SCOPES.all } : SCOPES;
  const width = facts.head_width[state.head[0]];
  const settings = {
    scale: () => number("times", "alpha", 0, 8, 0.1),
    cut: () => [...number("rank", "rank", 0, width, 1), select("keep", "keep", { top: "the largest", rest: "all but the largest" })],
    randomize: () => [select("keep its", "keep", { norm: "norm", spectrum: "singular values", shape: "shape" }), ...number("seed", "seed", 0, 99, 1)],
    frequencies: () => [...number("fraction p that rotates", "p", 0, 1, 0.05), select("which", "reversed", { false: "fastest", true: "slowest" }), facts.bases.length > 1 ? select("in layers with base", "base", { all: "any", ...Object.fromEntries(facts.bases.map((base) => [base, base])) }) : null],
    remove: () => [select("part", "part", { position: "position", content: "content" })],
  }[kind]();
  fill(fields, select("Change:", "kind", kinds), ...settings, kind === "frequencies" ? null : select("of", "scope", scopes));
}

// Focus stays in the field that is being changed.
let drawnFor = "";

export async function show(changed) {
  const key = JSON.stringify([state.change.kind, state.head[0]]);
  if (drawnFor !== key || !changed || changed.has("tab")) controls();
  drawnFor = key;
  const [layer, head] = state.head;
  const body = byId("view-change").lastElementChild;
  body.hidden = !facts.live || !state.text.trim();
  if (!facts.live) return (summary.textContent = "Interventions need the model: start the viewer with --model MODEL.");
  if (!state.text.trim()) return (summary.textContent = "Type a text above to try the change on.");
  const asked = { ...state.change, reversed: undefined };
  if (state.change.kind === "frequencies") asked.reversed = String(state.change.reversed) === "true";
  if (state.change.kind === "remove" && asked.scope === "head") asked.scope = "layer";
  const answer = await working(line.ask("change", { text: state.text, layer, head, level: state.level, change: asked }));
  if (answer) await working(paint(answer));
}

async function paint(answer) {
  const T = answer.tokens.length;
  const cells = answer.exact ? "all numbers exact" : `cells of ${answer.step} ${state.level}s: the largest attention of each`;
  byId("text-status").textContent = `${T} tokens, ${answer.words.length} words · ${cells}`;
  const word = answer.exact && state.level === "word";
  const labels = !answer.exact ? answer.starts.map((t) => answer.labels[t]) : word ? answer.word_labels : answer.labels;
  const names = !answer.exact ? answer.starts.map((t) => `${t} ${answer.tokens[t]}`) : (word ? answer.words : answer.tokens).map((text, i) => `${i} ${text}`);
  const n = labels.length;
  const [before, after] = [answer.before, answer.after].map(({ attention }) => (word ? joined(attention, T, answer.of_token, n) : attention));
  const moved = difference(after, before);
  const top = limit(before, n, new Set([0]));
  const lines = (i, j) => [["query", names[i]], ["key", names[j]], ["before", formatted(before[i * n + j], 6)], ["after", formatted(after[i * n + j], 6)]];
  const [layer, head] = state.head;
  const width = answer.before.heads.shape[1];
  const of = ({ heads }) => heads[layer * width + head];
  const far = distance(before, after, n);
  tellSummary(answer, of(answer.before), of(answer.after), far);
  name(made.before, "Attention before", `Head ${layer}.${head} without the change.`);
  name(made.after, "Attention after", `Mean total variation distance of the rows from before: ${formatted(far, 3)} (0: the same, 1: no key in common).`);
  name(made.moved, "After minus before", "Red: more attention than before.");
  name(made.heads, "Entropy of every head: after minus before", "Nats, mean over rows; includes the effect on the layers above. Click to choose a head.");
  const entropies = difference(answer.after.heads, answer.before.heads);
  made.heads.listeners = { plotly_click: ({ points }) => set({ head: [points[0].y, points[0].x] }), plotly_hover: ({ event, points: [{ x, y }] }) => tell(event, [["head", `${y}.${x}`], ["before", formatted(made.heads.was[y * width + x], 6)], ["after", formatted(made.heads.is[y * width + x], 6)]]), plotly_unhover: ({ event }) => tell(event, null) };
  Object.assign(made.heads, { was: answer.before.heads, is: answer.after.heads });
  const size = limit(entropies);
  const map = { type: "heatmap", z: rows(entropies, entropies.length / width, width), zmin: -size, zmax: size, colorscale: SIGNED, xgap: 1, ygap: 1, hoverinfo: "none", colorbar: { thickness: 8, outlinewidth: 0, tickfont: { size: 9 } } };
  made.next.root.hidden = !answer.next;
  const layout = answer.next && { ...nextLayout(answer.next), barmode: "group", showlegend: true, legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 }, margin: { l: 104, r: 14, t: 28, b: 36 } };
  name(made.next, "Next token: before and after", "The most probable tokens before or after.");
  await inView([
    [made.before, () => matrix(made.before, before, n, labels, { top, lines })],
    [made.after, () => matrix(made.after, after, n, labels, { top, lines })],
    [made.moved, () => matrix(made.moved, moved, n, labels, { signed: true, top: limit(moved), lines })],
    [made.heads, () => draw(made.heads, [map], { ...headAxes(), shapes: chosenCell() })],
    ...(answer.next ? [[made.next, () => draw(made.next, [bar(answer.next, 0, "#9fb3c8", "before"), bar(answer.next, 1, "#c2571a", "after")], layout)]] : []),
  ]);
}

// Other heads share the same keys, so a change of this head alone leaves W_k unchanged.
function sharesKeys([layer, head]) {
  const { layer: layers, kv_head: keys } = facts.table;
  const own = value("kv_head", [layer, head]);
  return own !== null && keys.filter((key, i) => layers[i] === layer && key === own).length > 1;
}

function tellSummary(answer, before, after, far) {
  const weights = ["scale", "cut", "randomize"].includes(state.change.kind) && state.change.scope === "head";
  const parts = [...(weights && sharesKeys(state.head) ? ["Other heads share this head's keys, so only W_q is changed"] : []), `Entropy of this head: ${formatted(before)} → ${formatted(after)} nats`, `attention changed by ${formatted(far, 3)}`];
  if (answer.before.loss !== null) parts.push(`loss per token: ${formatted(answer.before.loss)} → ${formatted(answer.after.loss)} nats`);
  summary.textContent = `${parts.join(" · ")}. The model is restored.`;
}
