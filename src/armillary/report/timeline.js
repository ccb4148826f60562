// A slider over the checkpoints of a timeline: the map of heads, the loss with births, the curves of a column.
import { make, page } from "./format.js";
import { draw } from "./plots.js";

const MOST_LINES = 300; // with more heads, those whose curves move most are drawn

export function throughTime() {
  const time = page.timeline;
  if (!time) return;
  const slider = document.getElementById("time");
  const choose = document.getElementById("time-column");
  const places = ["loss", "curves"].map((name) => document.getElementById(`time-${name}`));
  draw(places[0], time.loss);
  const show = (at) => {
    slider.value = String(at);
    const words = `${time.unit} ${time.steps[at].toLocaleString("en")}`;
    document.getElementById("time-now").textContent = words;
    slider.setAttribute("aria-valuetext", words);
    document.getElementById("time-before").disabled = at === 0;
    document.getElementById("time-next").disabled = at === time.steps.length - 1;
    showMap(time, at);
    for (const place of places) if (place.layout) moveLine(place, at);
  };
  const step = (by) => show(Math.max(0, Math.min(time.steps.length - 1, Number(slider.value) + by)));
  slider.addEventListener("input", () => show(Number(slider.value)));
  document.getElementById("time-before").addEventListener("click", () => step(-1));
  document.getElementById("time-next").addEventListener("click", () => step(1));
  choose.addEventListener("change", () => showCurves(time, choose.value, Number(slider.value), show));
  places[0].on("plotly_click", ({ points }) => show(nearest(time, points[0].x)));
  if (choose.value) showCurves(time, choose.value, Number(slider.value), show);
  show(Number(slider.value));
}

function nearest(time, x) {
  return Math.max(0, Math.min(time.steps.length - 1, Math.round(x)));
}

function moveLine(place, at) {
  Plotly.relayout(place, { "shapes[0].x0": at, "shapes[0].x1": at });
  place.figure.layout.shapes[0].x0 = place.figure.layout.shapes[0].x1 = at; // for a drawing in other colors
}

function grid(values, heads) {
  return Array.from({ length: values.length / heads }, (_, row) => values.slice(row * heads, (row + 1) * heads));
}

function showMap(time, at) {
  const place = document.getElementById("time-map");
  const codes = time.codes[at];
  const sure = time.significant[at];
  const name = (code) => (code < 0 ? "" : time.names[code]);
  const changes = {
    z: grid(codes, time.heads),
    text: grid(codes.map((code, i) => (sure[i] ? name(code).slice(0, 2) : "")), time.heads),
    customdata: grid(codes.map((code, i) => `${name(code) || "no label"}${code >= 0 && !sure[i] ? ", not significant" : ""}`), time.heads),
  };
  Object.assign(time.map.data[0], changes);
  if (place.layout) Plotly.restyle(place, Object.fromEntries(Object.entries(changes).map(([key, value]) => [key, [value]])));
  else draw(place, time.map);
  const counts = new Map();
  for (const code of codes) if (code >= 0) counts.set(code, (counts.get(code) ?? 0) + 1);
  const entries = [...counts].sort((a, b) => a[0] - b[0]).map(([code, count]) => {
    const dot = make("span", { className: "dot", "aria-hidden": "true" });
    dot.style.background = page.labels[time.names[code]];
    return make("span", { className: "entry" }, dot, `${time.names[code]} ${count}`);
  });
  document.getElementById("time-legend").replaceChildren(...entries.flatMap((entry) => [entry, " "]));
}

function showCurves(time, column, at, show) {
  const place = document.getElementById("time-curves");
  const rows = time.columns[column];
  const last = time.codes.at(-1);
  const all = [...last.keys()].filter((head) => rows.some((row) => row[head] !== null));
  const range = (head) => {
    const known = rows.map((row) => row[head]).filter((value) => value !== null);
    return Math.max(...known) - Math.min(...known);
  };
  const drawnHeads = all.length <= MOST_LINES ? all : [...all].sort((a, b) => range(b) - range(a)).slice(0, MOST_LINES);
  const groups = new Map();
  for (const head of drawnHeads.sort((a, b) => last[a] - last[b] || a - b)) groups.set(last[head], [...(groups.get(last[head]) ?? []), head]);
  const figure = structuredClone(time.curves);
  figure.data = [...groups].map(([code, heads]) => ({
    type: "scatter",
    mode: "lines",
    name: code < 0 ? "no label" : time.names[code],
    line: { color: code < 0 ? "#888888" : page.labels[time.names[code]], width: 1.4 },
    x: heads.flatMap(() => [...rows.keys(), null]),
    y: heads.flatMap((head) => [...rows.map((row) => row[head]), null]),
    customdata: heads.flatMap((head) => Array(rows.length + 1).fill(`L${Math.floor(head / time.heads)}H${head % time.heads}`)),
    hovertemplate: `%{customdata}<br>${column} %{y:.4g}<extra></extra>`,
  }));
  figure.layout.yaxis.title = { text: column.replaceAll("_", " ") };
  figure.layout.shapes[0].x0 = figure.layout.shapes[0].x1 = at;
  draw(place, figure);
  place.on("plotly_click", ({ points }) => show(nearest(time, points[0].x)));
  const which = all.length > drawnHeads.length ? `The ${drawnHeads.length} of ${all.length} heads that move most` : "A line for every head";
  document.getElementById("time-caption").textContent = `${which}, colored by its label at the last checkpoint; a click on the legend hides a label.`;
}
