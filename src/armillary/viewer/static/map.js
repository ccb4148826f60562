// All heads, layers down, heads across, colored by a measure. A click or the arrow keys choose a head.

import { byId, element, fill, tell } from "./dom.js";
import { SIGNED } from "./heat.js";
import { formatted } from "./maths.js";
import { card, draw, working } from "./plots.js";
import { set, state } from "./state.js";

const FACTS = ["entropy", "self_mass", "prev_mass", "first_mass", "mean_distance", "positional_share", "content_share", "mixed_share", "high_freq_share", "induction_score"];

let facts;
let shown;
const rowOf = new Map();

export function build(given) {
  facts = given;
  facts.table.layer.forEach((layer, i) => rowOf.set(`${layer}.${facts.table.head[i]}`, i));
  const layers = facts.heads_in.length;
  shown = card("map", "Map of all heads", Math.max(190, Math.min(470, 30 * layers + 66), Math.min(1000, 11 * layers + 66)) /* a layer has at least 11 pixels, up to 84 layers */);
  fill(byId("map"), shown.root);
  shown.listeners = {
    plotly_click: ({ points }) => set({ head: [points[0].y, points[0].x] }),
    plotly_hover: ({ event, points }) => tell(event, hover(points[0].y, points[0].x)),
    plotly_unhover: ({ event }) => tell(event, null),
  };
  const choose = byId("color");
  fill(choose, ...facts.measures.map(({ name }) => element("option", { value: name }, name)));
  choose.addEventListener("change", () => set({ color: choose.value }));
}

// A head's value of a measure, in this atlas or the other.
export function value(measure, [layer, head] = state.head, table = facts.table) {
  return table[measure]?.[rowOf.get(`${layer}.${head}`)] ?? null;
}

function hover(layer, head) {
  const lines = [["head", `${layer}.${head}`], [state.color, formatted(value(state.color, [layer, head]))]];
  const label = value("label", [layer, head]);
  if (label && state.color !== "label") lines.push(["label", label]);
  return lines;
}

// The measure as rows of layers; null where a layer has fewer heads.
export function grid(measure, table = facts.table) {
  const width = Math.max(...facts.heads_in);
  return facts.heads_in.map((count, layer) =>
    Array.from({ length: width }, (_, head) => (head < count ? (table[measure]?.[rowOf.get(`${layer}.${head}`)] ?? null) : null)),
  );
}

export function heat(measure, z) {
  const isWord = facts.measures.find(({ name }) => name === measure)?.words;
  const base = { type: "heatmap", xgap: 1, ygap: 1, hoverinfo: "none" };
  if (isWord) {
    const words = [...new Set(z.flat().filter((word) => word !== null))].sort();
    const colors = words.map((word) => facts.colors[word] ?? "#666666");
    const scale = words.flatMap((_, i) => [[i / words.length, colors[i]], [(i + 1) / words.length, colors[i]]]);
    return {
      ...base,
      z: z.map((row) => row.map((word) => (word === null ? null : words.indexOf(word)))),
      zmin: -0.5,
      zmax: words.length - 0.5,
      colorscale: scale,
      colorbar: { thickness: 9, outlinewidth: 0, tickvals: words.map((_, i) => i), ticktext: words.map((word) => word.replaceAll("&", "&amp;").replaceAll("<", "&lt;")), tickfont: { size: 10 } },
    };
  }
  const sizes = z.flat().filter((number) => number !== null).map(Math.abs).sort((a, b) => a - b);
  const top = sizes[Math.floor(0.99 * (sizes.length - 1))] || sizes.at(-1) || 1;
  const signed = z.flat().some((number) => number < 0);
  return {
    ...base,
    z,
    ...(signed ? { zmin: -top, zmax: top, colorscale: SIGNED } : { zmin: 0, zmax: top, colorscale: "Viridis" }),
    colorbar: { thickness: 9, outlinewidth: 0, tickfont: { size: 10 } },
  };
}

export const headAxes = () => ({
  margin: { l: 40, r: 10, t: 6, b: 36 },
  xaxis: { title: { text: "head", standoff: 4 }, dtick: Math.max(1, Math.ceil(Math.max(...facts.heads_in) / 10)), showgrid: false, zeroline: false, fixedrange: true },
  yaxis: { title: { text: "layer", standoff: 4 }, dtick: Math.max(1, Math.ceil(facts.heads_in.length / 12)), showgrid: false, zeroline: false, autorange: "reversed", fixedrange: true },
});

export const chosenCell = () => {
  const [layer, head] = state.head;
  const place = { type: "rect", x0: head - 0.5, x1: head + 0.5, y0: layer - 0.5, y1: layer + 0.5 };
  return [{ ...place, line: { color: "#ffffff", width: 5 } }, { ...place, line: { color: "#d1420a", width: 2.5 } }];
};

export async function show(changed) {
  if (!changed || changed.has("color")) {
    byId("color").value = state.color;
    byId("meaning").textContent = facts.measures.find(({ name }) => name === state.color)?.means ?? "";
    await working(draw(shown, [heat(state.color, grid(state.color))], { ...headAxes(), shapes: chosenCell() }));
    shown.plot.setAttribute("aria-label", `Map of all heads colored by ${state.color}; the arrow keys choose a head`);
  } else if (changed.has("head")) {
    await working(Plotly.relayout(shown.plot, { shapes: chosenCell() }));
  }
  if (!changed || changed.has("head") || changed.has("color")) describe();
}

// More about the chosen head: a second behavior, the few keys with most attention, its check, the second label.
function besides() {
  const also = value("also");
  const second = value("second_label");
  const repeated = ["induction", "duplicate"].includes(also);
  const phrases = [
    also && `and ${also} ${repeated ? "on repeated random tokens" : "in text"}`,
    value("rests_on") && `most attention on ${value("rests_on")}`,
    value("check") && `its check ${value("check") === "undecided" ? "is undecided" : value("check")}`,
    second && `then ${second}`,
  ];
  return phrases.filter(Boolean).join("; ");
}

function describe() {
  const [layer, head] = state.head;
  const label = value("label");
  const unsure = value("significant") === 0 || value("check") === "fails";
  const chip = label && element("span", { class: "label", title: facts.measures.find(({ name }) => name === "significant")?.means }, label + (unsure ? "?" : ""));
  if (chip) {
    chip.style.background = facts.colors[label] ?? "#666666";
    chip.style.color = facts.inks[label] ?? "#ffffff";
  }
  const kinds = new Set((facts.table.layer_kind ?? []).map((kind, i) => `${kind} ${facts.table.rotary_base?.[i]}`));
  const base = value("rotary_base");
  const layerKind = kinds.size < 2 ? null : element("span", { class: "note" }, `in a ${value("layer_kind")} layer${base === null ? "" : `, rotary base ${base.toLocaleString("en")}`}`);
  fill(byId("head-name"), `Head ${layer}.${head}`, chip, element("span", { class: "note" }, besides()), layerKind);
  const names = [state.color, ...FACTS.filter((name) => name !== state.color && value(name) !== null)].slice(0, 9);
  fill(byId("facts"), ...names.flatMap((name, i) => [element("dt", {}, name), element("dd", i ? {} : { id: "chosen-value", class: "measure" }, formatted(value(name)))]));
}

// One step: down and up change the layer, right and left the head.
export function move(down, right) {
  const layer = Math.min(Math.max(state.head[0] + down, 0), facts.heads_in.length - 1);
  set({ head: [layer, Math.min(Math.max(state.head[1] + right, 0), facts.heads_in[layer] - 1)] });
}
