// Positions (pos) and contents (cvec) of the residual stream in principal coordinates, layer by layer.

import { Line } from "./ask.js";
import { byId, choice, element, fill } from "./dom.js";
import { card, draw, empty, name, working } from "./plots.js";
import { set, state } from "./state.js";

const SAID = { pos: "Positional vectors", cvec: "Content vectors of sampled tokens" };
let facts;
let made;
let slider;
let reading;
let kinds;
let sizes;
const line = new Line();
const answers = new Map();

export function build(given) {
  facts = given;
  made = card("spiral", "Spiral", 540);
  made.root.classList.add("spiral");
  kinds = choice("Vectors", [["pos", "positions"], ["cvec", "contents"]], state.kind, (kind) => set({ kind }));
  sizes = choice("Dimensions", [["2", "2-D"], ["3", "3-D"]], state.dims, (dims) => set({ dims }));
  reading = element("output", { for: "point" });
  slider = element("input", { type: "range", id: "point", min: 0, max: Math.max(0, facts.points - 1), step: 1, oninput: () => set({ point: Number(slider.value) }) });
  const controls = element("div", { class: "controls" }, kinds, sizes, element("label", { for: "point" }, "layer"), slider, reading);
  fill(byId("view-spiral"), controls, element("div", { class: "grid" }, made.root));
  made.root.classList.add("wide");
}

export async function show() {
  kinds.show(state.kind);
  sizes.show(state.dims);
  slider.value = state.point;
  if (facts.points) reading.textContent = `${state.point}${state.point === 0 ? " (embeddings)" : ""} of ${facts.points - 1}`;
  else return empty(made, "This atlas has no positional vectors: scan with the stream positions.");
  const key = `${state.kind} ${state.point}`;
  if (!answers.has(key)) {
    const answer = await working(line.ask("spiral", { kind: state.kind, layer: state.point }));
    if (!answer) return;
    answers.set(key, answer);
  }
  await working(paint(answers.get(key)));
}

async function paint({ data, layout }) {
  const flat = state.dims === "2";
  const traces = data.map((trace) => (flat ? inPlane(trace) : trace));
  name(made, `${SAID[state.kind]}, layer ${state.point}`, state.kind === "pos" ? "Each point is a position; principal coordinates of pos." : "Each point is a token, colored by document; principal coordinates of cvec.");
  const axes = flat ? { xaxis: { title: { text: "first" }, zeroline: false }, yaxis: { title: { text: "second" }, scaleanchor: "x", zeroline: false } } : { scene: layout.scene };
  await draw(made, traces, { ...axes, margin: { l: flat ? 50 : 0, r: 0, t: 4, b: flat ? 44 : 0 }, showlegend: false, uirevision: `${state.kind}${state.dims}` });
}

// The first two coordinates of the same points.
function inPlane({ z, ...trace }) {
  return { ...trace, type: "scatter", line: { ...trace.line, width: 1 }, marker: { ...trace.marker, size: 7 } };
}
