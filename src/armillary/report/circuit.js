// The circuit view: heads by layer, lines for what feeds them; a chosen head's sources and readers, also as lists.
import { make, page } from "./format.js";
import { draw, whenSeen } from "./plots.js";

const SIDE_COLORS = ["#0072B2", "#D55E00", "#009E73"];
const WIDTHS = [[0.5, 4], [0.2, 2.2], [0, 1]];
const MOST_EDGES_LISTED = 8;

export function circuitView() {
  const place = document.getElementById("circuit");
  if (!place || !page.circuit) return;
  const { nodes, sides } = page.circuit;
  const least = document.getElementById("circuit-least");
  const choose = document.getElementById("circuit-head");
  const shown = document.getElementById("circuit-shown");
  const listed = document.getElementById("circuit-lists");
  choose.append(make("option", { value: "" }, "all heads"));
  nodes.forEach(([name, , , label], i) => {
    if (label !== "MLP" && label !== "embedding") choose.append(make("option", { value: String(i) }, label ? `${name}, ${label}` : name));
  });
  const boxes = sides.map((side) => document.getElementById(`circuit-${side}`));
  const refresh = () => {
    const chosen = choose.value === "" ? null : Number(choose.value);
    const edges = visibleEdges(Number(least.value), boxes.map((box) => box.checked), chosen);
    shown.textContent = `at least ${Math.round(100 * Number(least.value))} %: ${edges.length} edges`;
    draw(place, circuitFigure(edges, chosen));
    place.on("plotly_click", ({ points }) => {
      const at = points.find((point) => point.data.meta === "nodes");
      if (!at) return;
      const [, , , label] = nodes[at.pointNumber];
      choose.value = label === "MLP" || label === "embedding" || choose.value === String(at.pointNumber) ? "" : String(at.pointNumber);
      refresh();
    });
    listed.replaceChildren(...(chosen === null ? [] : circuitLists(chosen)));
  };
  for (const control of [least, choose, ...boxes]) control.addEventListener("input", refresh);
  place.style.minHeight = `${circuitHeight()}px`;
  whenSeen(place, refresh);
}

function visibleEdges(least, sides, chosen) {
  return page.circuit.edges.filter(
    ([from, to, side, share]) => sides[side] && Math.abs(share) >= least && (chosen === null || from === chosen || to === chosen),
  );
}

function circuitHeight() {
  return Math.min(900, 260 + 34 * Math.max(...page.circuit.nodes.map(([, layer]) => layer)));
}

function circuitFigure(edges, chosen) {
  const { nodes, sides, effect } = page.circuit;
  const data = [];
  sides.forEach((side, number) => {
    let named = false;
    for (const [i, [from, width]] of WIDTHS.entries()) {
      const until = i ? WIDTHS[i - 1][0] : Infinity;
      const own = edges.filter(([, , s, share]) => s === number && Math.abs(share) >= from && Math.abs(share) < until);
      if (!own.length) continue;
      const [x, y] = [[], []];
      for (const [a, b] of own) {
        x.push(nodes[a][2], nodes[b][2], null);
        y.push(nodes[a][1], nodes[b][1], null);
      }
      data.push({ type: "scatter", mode: "lines", x, y, name: side, legendgroup: side, showlegend: !named, hoverinfo: "skip", opacity: 0.7, line: { color: SIDE_COLORS[number], width } });
      named = true;
    }
  });
  const near = new Set(edges.flatMap(([a, b]) => [a, b]));
  const sizes = nodes.map(([, , , , value]) => (value === null ? 0 : Math.max(0, value)));
  const largest = Math.max(...sizes) || 1;
  data.push({
    type: "scatter", mode: "markers", meta: "nodes", showlegend: false,
    x: nodes.map(([, , head]) => head), y: nodes.map(([, layer]) => layer),
    text: nodes.map(([name, , , label, value]) => [name, label, value === null ? "" : `${effect.replaceAll("_", " ")} ${value}`].filter(Boolean).join("<br>")),
    hovertemplate: "%{text}<extra></extra>",
    marker: {
      size: sizes.map((size) => 8 + 14 * Math.sqrt(size / largest)),
      color: nodes.map(([, , , label]) => page.labels[label] ?? "#9aa0a6"),
      symbol: nodes.map(([, , , label]) => (label === "MLP" || label === "embedding" ? "square" : "circle")),
      opacity: nodes.map((_, i) => (chosen === null || near.has(i) || i === chosen ? 1 : 0.25)),
      line: { width: nodes.map((_, i) => (i === chosen ? 3 : 0.5)), color: "black" },
    },
  });
  return {
    data,
    layout: {
      height: circuitHeight(), hovermode: "closest", legend: { orientation: "h", y: 1.02, yanchor: "bottom" },
      xaxis: { title: { text: "head (squares at the right: MLPs)" }, zeroline: false, showgrid: false },
      yaxis: { title: { text: "layer (below: the embedding)" }, zeroline: false, dtick: 1 },
    },
  };
}

function circuitLists(chosen) {
  const { nodes, edges, sides } = page.circuit;
  const name = nodes[chosen][0];
  const parts = sides.map((side, number) => {
    const own = edges.filter(([, to, s]) => to === chosen && s === number);
    return edgeList(`The ${side} of ${name} comes from`, own.map(([from, , , share]) => [from, share]));
  });
  const read = edges.filter(([from]) => from === chosen).map(([, to, side, share]) => [to, share, sides[side]]);
  return [...parts, edgeList(`${name} feeds`, read)];
}

function edgeList(title, rows) {
  const { nodes } = page.circuit;
  const place = make("div");
  place.append(make("h3", {}, title));
  const items = make("ul");
  for (const [node, share, side] of rows.sort((a, b) => Math.abs(b[1]) - Math.abs(a[1])).slice(0, MOST_EDGES_LISTED)) {
    const [name, , , label] = nodes[node];
    const words = label && label !== "MLP" && label !== "embedding" ? ` (${label})` : "";
    items.append(make("li", {}, `${name}${words}${side ? `, ${side}` : ""}: ${(100 * share).toFixed(0)} %`));
  }
  if (!rows.length) items.append(make("li", {}, "nothing of at least 5 %"));
  place.append(items);
  return place;
}
