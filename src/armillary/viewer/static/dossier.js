// A head's dossier: evidence for its label, and the report's figures filled with the head's arrays.

import { reading } from "./reading.js";
import { Line } from "./ask.js";
import { byId, element, fill, table } from "./dom.js";
import { value } from "./map.js";
import { rows, formatted } from "./maths.js";
import { card, draw, empty, inView, matrix, name, working } from "./plots.js";
import { set, state } from "./state.js";

const TITLES = {
  patterns: "Where it attends",
  constituents: "Constituents of its logits (query · key)",
  lags: "Logits by distance: mean and standard deviation",
  logits: "Mean logits, each row minus its mean",
  frequencies: "Rotary frequencies",
  spectrum: "Singular values of its weights",
  rho: "Which keys propagate a signal",
};
const HEIGHTS = { logits: 320, frequencies: 250 };

let facts;
const cards = {};
const line = new Line();
let evidence;
let tokens;
let numbers;
let circuit;

export function build(given) {
  facts = given;
  evidence = element("div", {});
  tokens = element("div", {});
  circuit = element("div", { id: "circuit" });
  numbers = element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "All measures of the head" });
  const grid = element("div", { class: "grid" });
  for (const panel of Object.keys(facts.figures)) {
    cards[panel] = card(panel, TITLES[panel] ?? panel, HEIGHTS[panel] ?? 270);
    if (panel === "frequencies") cards[panel].root.classList.add("wide");
    grid.append(cards[panel].root);
  }
  fill(byId("view-head"), tokens, evidence, circuit, grid, element("details", {}, element("summary", {}, "All measures of this head"), numbers));
}

export async function show() {
  const [layer, head] = state.head;
  const answer = await working(line.ask("head", { layer, head }));
  if (!answer) return;
  fill(tokens, ...reading(answer.reading));
  tellEvidence(answer.evidence);
  tellCircuit(answer.circuit);
  const measures = facts.measures.map(({ name: measure, means }) => [element("span", { title: means }, measure), formatted(value(measure), 6)]);
  fill(numbers, table(["measure", "value"], measures));
  await working(inView(Object.keys(cards).map((panel) => [cards[panel], () => paint(panel, answer.arrays)])));
}

function tellEvidence(rowsOf) {
  if (!rowsOf.length) return fill(evidence);
  const lines = rowsOf.map((row) => [row.label, row.measure, formatted(row.value), formatted(row.null), formatted(row.threshold), formatted(row.strength, 3), row.holds ? "holds" : "–"]);
  const made = table(["label", "measure", "this head", "random heads", "threshold", "explains", ""], lines);
  const note = "A label holds where it explains more than half of the head's focus (matching, preference and content: of its logits). Lines without such a share are other measures that support or contradict the label; they do not decide it.";
  made.classList.add("evidence");
  fill(evidence, element("section", { class: "card" }, element("h3", {}, "Evidence for the label"), element("p", { class: "note" }, note), made));
}

// What wrote the head's query, key and value, and what it feeds; heads are buttons that open them.
function tellCircuit({ query, key, value: output, feeds }) {
  if (!query) return fill(circuit);
  const [layer, head] = state.head;
  const lists = [["Its query comes from", query], ["Its key comes from", key], ["Its value comes from", output], [`L${layer}H${head} feeds`, feeds]];
  const made = lists.map(([title, rowsOf]) => {
    const items = rowsOf.map(([name, share, side]) => element("li", {}, opener(name), `${side ? `, ${side}` : ""}: ${formatted(100 * share, 2)} %`));
    return element("div", {}, element("h4", {}, title), items.length ? element("ul", {}, ...items) : element("p", { class: "note" }, "nothing of at least 2 %"));
  });
  const note = "Shares of what wrote this head's input; those of each side add to 1, small ones are not listed.";
  fill(circuit, element("section", { class: "card" }, element("h3", {}, "What feeds this head, and what it feeds"), element("p", { class: "note" }, note), element("div", { class: "circuit" }, ...made)));
}

function opener(named) {
  const at = /^L(\d+)H(\d+)$/.exec(named);
  return at ? element("button", { type: "button", onclick: () => set({ head: [Number(at[1]), Number(at[2])] }) }, named) : element("span", {}, named);
}

async function paint(panel, arrays) {
  const template = facts.figures[panel];
  let known = false;
  const data = template.data.map((trace) => {
    const filled = { ...trace };
    for (const [field, array] of Object.entries(trace.meta ?? {})) {
      const values = arrays[array];
      if (!values) continue;
      known ||= values.some((number) => !Number.isNaN(number));
      filled[field] = values.shape.length === 0 ? values[0] : values.shape.length === 2 ? rows(values, values.shape[0], values.shape[1]) : values;
    }
    return filled;
  });
  const made = cards[panel];
  if (!known) return empty(made, "The atlas does not have these numbers for this head.");
  name(made, TITLES[panel] ?? panel);
  made.plot.style.height = `${made.height}px`;
  if (panel === "logits") return paintLogits(made, arrays);
  const { title, width, height, margin, ...layout } = template.layout;
  const legend = layout.showlegend ? { legend: { orientation: "h", y: panel === "frequencies" ? 1.13 : 1.02, yanchor: "bottom", x: panel === "frequencies" ? 0.42 : 0 } } : {};
  const wide = panel === "patterns" || panel === "constituents" ? 118 : 52;
  await draw(made, data, { ...layout, ...legend, margin: { l: wide, r: 14, t: panel === "frequencies" ? 46 : layout.showlegend ? 34 : 8, b: 42 } });
}

function paintLogits(made, { logits, logits_high: high }) {
  const n = logits.shape[0];
  const places = Array.from({ length: n }, (_, i) => String(Math.round((i * facts.length) / n)));
  const lines = (i, j) => [["query, key", `${places[i]}, ${places[j]}`], ["mean logit minus the row's mean", formatted(logits[i * n + j], 5)]];
  matrix(made, logits, n, places, { signed: true, top: high[0], lines });
}
