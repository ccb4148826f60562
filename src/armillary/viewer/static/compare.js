// Two atlases side by side: the map of each, what changed between them, and the largest changes.

import { byId, element, fill, table, tell } from "./dom.js";
import { SIGNED } from "./heat.js";
import { chosenCell, grid, headAxes, heat, value } from "./map.js";
import { formatted } from "./maths.js";
import { card, draw, name, working } from "./plots.js";
import { set, state } from "./state.js";

let facts;
let made;
let here;

export function build(given) {
  facts = given;
  if (!facts.other) return fill(byId("view-compare"), element("p", { class: "note" }, "One atlas is open. To compare it with another: armillary view DIR --compare OTHER."));
  const height = Math.min(420, Math.max(220, 30 * facts.heads_in.length + 80));
  made = { a: card("compare-a", "First atlas", height), b: card("compare-b", "Second atlas", height), change: card("compare-change", "Second minus first", height) };
  for (const [which, one] of Object.entries(made)) {
    one.listeners = {
      plotly_click: ({ points }) => set({ head: [points[0].y, points[0].x] }),
      plotly_hover: ({ event, points: [{ x, y }] }) => tell(event, [["head", `${y}.${x}`], ["first", formatted(value(state.color, [y, x]), 5)], ["second", formatted(value(state.color, [y, x], facts.other.table), 5)]]),
      plotly_unhover: ({ event }) => tell(event, null),
    };
    one.which = which;
  }
  here = element("div", { class: "card", id: "compare-here" });
  const jump = (row) => element("button", { type: "button", onclick: () => set({ head: [row.layer, row.head], color: row.measure }) }, `${row.layer}.${row.head}`);
  const largest = table(["head", "measure", "first", "second", "change", "in spreads"], facts.other.changes.slice(0, 60).map((row) => [jump(row), row.measure, formatted(row.a), formatted(row.b), formatted(row.change), row.size === null ? "∞" : formatted(row.size, 3)]), "The largest changes");
  const scans = facts.other.scans.length ? element("ul", {}, ...facts.other.scans.map((text) => element("li", {}, text))) : element("p", { class: "note" }, "The two scans have the same model, text and settings.");
  fill(
    byId("view-compare"),
    element("section", { class: "card" }, element("h3", {}, `${facts.model} on ${facts.corpus}, and ${facts.other.model} on ${facts.other.corpus}`), scans),
    element("div", { class: "grid" }, made.a.root, made.b.root, made.change.root, here),
    element("div", { class: "card scroll", tabindex: "0", role: "region", "aria-label": "The largest changes" }, largest),
  );
}

export async function show() {
  if (!facts.other) return;
  const [a, b] = [grid(state.color), grid(state.color, facts.other.table)];
  const words = facts.measures.find(({ name: measure }) => measure === state.color)?.words;
  name(made.a, `First: ${state.color}`, facts.corpus);
  name(made.b, `Second: ${state.color}`, facts.other.corpus);
  name(made.change, words ? "Where they differ" : "Second minus first", state.color);
  const change = a.map((row, i) => row.map((x, j) => (x === null || b[i][j] === null ? null : words ? Number(x !== b[i][j]) : b[i][j] - x)));
  const size = Math.max(...change.flat().map(Math.abs), 0) || 1;
  const axes = { ...headAxes(), shapes: chosenCell() };
  const both = heat(state.color, [...a, ...b]); // one scale for the two
  const [first, second] = [{ ...both, z: both.z.slice(0, a.length) }, { ...both, z: both.z.slice(a.length) }];
  const map = { ...first, z: change, zmin: -size, zmax: size, colorscale: SIGNED, colorbar: { thickness: 9, outlinewidth: 0, tickfont: { size: 10 } } };
  const names = facts.measures.filter(({ words: isWord }) => !isWord).map(({ name: measure }) => measure);
  const lines = names.map((measure) => {
    const [x, y] = [value(measure), value(measure, state.head, facts.other.table)];
    return [measure, formatted(x), formatted(y), formatted(x === null || y === null ? null : y - x)];
  });
  fill(here, element("h3", {}, `Head ${state.head.join(".")} in both`), element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "The head in both atlases" }, table(["measure", "first", "second", "change"], lines)));
  await working(Promise.all([draw(made.a, [first], axes), draw(made.b, [second], axes), draw(made.change, [map], axes)]));
}
