// A head on a text: attention, the terms of its logits with a switch for each, frequencies, next tokens.

import { Line } from "./ask.js";
import { byId, element, fill } from "./dom.js";
import { attentionOf, averaged, centeredSum, distance, joined, limit, formatted } from "./maths.js";
import { card, empty, inView, matrix, name, working } from "./plots.js";
import { set, state } from "./state.js";
import * as strip from "./strip.js";
import * as tiles from "./tiles.js";
import * as usage from "./usage.js";

let facts;
let made;
let current = null; // the server's answer for the shown text and head
let shown = null; // the matrices as they are drawn, by token, word or cell
const line = new Line();

export function build(given) {
  facts = given;
  made = {
    attention: card("attention", "Attention", 400),
    chosen: card("chosen", "Attention of the chosen terms", 400),
    sum: card("sum", "Logits: the chosen terms added up", 400),
  };
  const switches = tiles.build(facts);
  const pieces = usage.build();
  const row = strip.build();
  const grid = element("div", { class: "grid" }, made.attention.root, made.chosen.root, switches, made.sum.root, ...pieces);
  fill(byId("view-text"), element("div", { id: "text-hint", class: "note" }), row, grid);
}

export function withdraw() {
  line.drop();
}

const chosenTerms = () => facts.terms.filter((term) => !state.off.includes(term));

// Request and draw. A change of level or terms needs no request if all numbers are already here.
export async function show(changed) {
  const same = current && current.of === JSON.stringify([state.text, state.head]);
  if (same && current.exact && changed && ![...changed].some((n) => n === "text" || n === "head" || n === "tab")) return paint();
  if (!facts.live || !state.text.trim()) return blank();
  const [layer, head] = state.head;
  const of = JSON.stringify([state.text, state.head]);
  const answer = await working(line.ask("look", { text: state.text, layer, head, level: state.level, terms: chosenTerms() }));
  if (!answer) return;
  current = answer;
  current.of = of;
  current.centered = {};
  await paint();
}

// Clear the figures, so that none shows an older request.
export function clear() {
  blank();
  byId("text-hint").textContent = "";
}

function blank() {
  current = null;
  byId("text-hint").textContent = facts.live ? "Type a text above to see this head's attention, constituents and frequencies on it." : "Texts need the model: start the viewer with --model MODEL.";
  byId("text-status").textContent = "";
  for (const child of byId("view-text").children) child.hidden = child.id !== "text-hint";
}

async function paint() {
  for (const child of byId("view-text").children) child.hidden = child.id === "text-hint";
  shown = matrices();
  byId("text-status").textContent = status();
  const { n, labels } = shown;
  const click = (i) => set({ query: shown.first[i] });
  const options = { lines: hover, click, top: shown.top };
  const cells = current.exact ? "" : ` Cells of ${current.step} ${state.level}s: the largest attention of each.`;
  name(made.attention, "Attention", `From query (down) to key (across).${cells} Click to choose the query.`);
  const jobs = [[made.attention, () => matrix(made.attention, shown.attention, n, labels, options)]];
  const off = state.off.length;
  if (current.terms) {
    const far = current.exact ? ` Mean distance from the head's own attention: ${formatted(distance(shown.tokens, shown.tokensChosen, current.tokens.length), 3)}.` : "";
    name(made.chosen, "Attention of the chosen terms", off ? `Without ${state.off.map(tiles.title).join(", ")}.${far}` : "All terms are on: the head's own attention.");
    jobs.push([made.chosen, () => matrix(made.chosen, shown.chosen, n, labels, options)]);
  } else empty(made.chosen, "");
  made.chosen.root.hidden = !current.terms;
  name(made.sum, current.terms ? "Logits: the chosen terms added up" : "Logits", `Each row minus its mean over the visible keys.${current.exact && state.level === "token" ? "" : " Means over visible pairs of tokens."}`);
  jobs.push([made.sum, () => matrix(made.sum, shown.sum, n, labels, { ...options, signed: true, top: limit(shown.sum) })]);
  jobs.push([tiles, () => tiles.show(current)], ...usage.jobs(current, shown));
  await working(Promise.all([strip.show(current), inView(jobs)]));
}

// What is drawn: by token, joined to words, or the server's cells.
function matrices() {
  const T = current.tokens.length;
  const terms = current.terms;
  const chosen = chosenTerms();
  const all = !terms || chosen.length === facts.terms.length;
  if (!current.exact) {
    const n = current.starts.length;
    const sum = terms ? added(chosen.map((term) => terms[term]), n * n) : current.logits;
    const sinks = new Set([0]);
    return { n, first: current.starts, labels: current.starts.map((t) => `${current.labels[t]}${current.step > 1 ? "…" : ""}`), names: current.starts.map((t) => `${t} ${current.tokens[t]}`), attention: current.attention, chosen: current.chosen ?? current.attention, sum, top: limit(current.attention, n, sinks) };
  }
  const tokens = current.attention;
  const tokensChosen = all ? tokens : attentionOf(terms, chosen, tokens, T, current.softcap, current.sink);
  const tokensSum = terms ? centeredSum(chosen.map((term) => terms[term]), tokens, T) : centeredSum([current.logits], tokens, T);
  const word = state.level === "word";
  const count = current.words.length;
  const join = (values) => (word ? joined(values, T, current.of_token, count) : values);
  const first = word ? current.words.map((_, w) => current.of_token.indexOf(w)) : current.tokens.map((_, t) => t);
  const names = word ? current.words : current.tokens;
  const attention = join(tokens);
  const sinks = new Set(first.flatMap((t, i) => (t === 0 || current.special[t] ? [i] : [])));
  return {
    n: names.length,
    first,
    labels: word ? current.word_labels : current.labels,
    names: names.map((text, i) => `${i} ${text}`),
    attention,
    chosen: all ? attention : join(tokensChosen),
    sum: word ? averaged(tokensSum, T, current.of_token, count) : tokensSum,
    top: limit(attention, names.length, sinks),
    tokens,
    tokensChosen,
  };
}

function added(parts, size) {
  const sum = new Float32Array(size);
  for (const part of parts) for (let i = 0; i < size; i++) sum[i] += part[i];
  return parts.length ? sum : sum.map((_, i) => (Number.isNaN(current.attention[i]) ? NaN : 0));
}

function status() {
  const parts = [`${current.tokens.length} tokens, ${current.words.length} words`, `entropy ${formatted(current.entropy_mean)} nats`];
  if (current.loss !== null) parts.push(`loss ${formatted(current.loss)} nats per token`);
  if (current.made_for !== null && current.tokens.length > current.made_for) {
    parts.push(`longer than the model's context length of ${current.made_for} tokens`);
  }
  parts.push(current.exact ? "all numbers exact" : `cells of ${current.step} ${state.level}s; click for exact numbers`);
  return parts.join(" · ");
}

// Exact numbers of a cell: attention, and at token level the logit and every term.
function hover(i, j) {
  const { n, names } = shown;
  if (!(i >= 0 && j >= 0 && i < n && j < n)) return null;
  const place = i * n + j;
  const lines = [["query", names[i]], ["key", names[j]]];
  if (Number.isNaN(shown.attention[place])) return [...lines, ["", "not visible"]];
  lines.push([current.exact ? "attention" : "largest attention", formatted(shown.attention[place], 6)]);
  if (state.off.length && current.terms) lines.push(["of the chosen terms", formatted(shown.chosen[place], 6)]);
  if (current.exact && state.level === "token") {
    lines.push(["logit", formatted(current.logits[place], 6)]);
    for (const term of current.terms ? facts.terms : []) if (term !== "bias" || facts.biased) lines.push([tiles.title(term), formatted(current.terms[term][place], 5)]);
  } else lines.push(["logits, centered", formatted(shown.sum[place], 5)]);
  return lines;
}

