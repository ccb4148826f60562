// Figures, drawn when they come into view, in the colors of the page.
import { headRow, page } from "./format.js";

const dark = window.matchMedia("(prefers-color-scheme: dark)");
const drawn = new Set();
let opener = () => {};
let printing = false;

export function onHead(open) {
  opener = open;
}

function colors() {
  return dark.matches && !printing
    ? { ink: "#dcdcd6", line: "#3a3d42", faint: "#55595f" }
    : { ink: "#24272b", line: "#e4e4df", faint: "#c4c4be" };
}

export function styled(element, figure) {
  const { ink, line, faint } = colors();
  const layout = structuredClone(figure.layout);
  layout.template = page.template;
  layout.paper_bgcolor = layout.plot_bgcolor = "rgba(0,0,0,0)";
  layout.font = { ...layout.font, color: ink };
  layout.autosize = true;
  delete layout.width;
  if (printing) Object.assign(layout, { autosize: false, width: element.closest(".card") ? 318 : 990 });
  delete layout.title;
  const legendAbove = layout.legend?.yanchor === "bottom";
  const panels = layout.annotations?.some((one) => one.yref === "paper" && one.showarrow === false);
  // axes and legend reserve their own space
  layout.margin = { l: 10, r: 12, b: 10, t: panels ? (legendAbove ? 44 : 30) : 8 };
  if (legendAbove) layout.legend = { ...layout.legend, y: panels ? 1.1 : 1.02, font: { size: 11 }, entrywidth: 0 };
  if (!layout.xaxis) layout.xaxis = {};
  if (!layout.yaxis) layout.yaxis = {};
  for (const name of Object.keys(layout)) {
    if (/^[xy]axis\d*$/.test(name)) {
      layout[name] = { ...layout[name], gridcolor: line, zerolinecolor: name[0] === "x" ? line : faint, linecolor: faint, automargin: true };
    }
  }
  for (const shape of layout.shapes ?? []) if (shape.line?.color === "black") shape.line.color = ink;
  const data = figure.data.map((trace) => {
    const copy = { ...trace };
    for (const part of ["line", "marker"]) {
      if (copy[part]?.color === "black") copy[part] = { ...copy[part], color: ink };
    }
    return copy;
  });
  return { data, layout };
}

export function draw(element, figure, opens = false) {
  const { data, layout } = styled(element, figure);
  const settings = {
    responsive: true,
    displaylogo: false,
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
  };
  element.style.minHeight = `${layout.height ?? 300}px`;
  Plotly.newPlot(element, data, layout, settings); // a new plot: the margins of an earlier drawing would stay
  element.figure = figure;
  element.opens = opens;
  drawn.add(element);
  if (data.some((trace) => trace.texttemplate)) element.on("plotly_afterplot", () => fitLetters(element));
  if (!opens) return;
  element.classList.add("opens");
  element.on("plotly_click", ({ points }) => {
    const [point] = points;
    const named = typeof point.customdata === "string" ? point.customdata.split(".") : [point.y, point.x];
    const row = headRow(...named);
    if (row !== undefined) opener(row);
  });
}

// Letters in cells are shown where they fit at the current size; hovering shows the word anyway.
function fitLetters(element) {
  const { _size: size, xaxis, yaxis } = element._fullLayout;
  const cell = ([low, high], pixels) => pixels / Math.max(1, Math.abs(high - low));
  const fits = cell(yaxis.range, size.h) >= 12 && cell(xaxis.range, size.w) >= 16;
  const written = element.data.flatMap((trace, i) => (trace.text && Boolean(trace.texttemplate) !== fits ? [i] : []));
  if (written.length) Plotly.restyle(element, { texttemplate: fits ? "%{text}" : "" }, written);
}

function again() {
  for (const element of drawn) {
    if (element.isConnected && element.figure) draw(element, element.figure, element.opens);
    else drawn.delete(element);
  }
}

const waiting = new Map();
const seen = new IntersectionObserver(
  (entries) => {
    for (const { isIntersecting, target } of entries) if (isIntersecting) begin(target);
  },
  { rootMargin: "300px" },
);

export function whenSeen(element, start) {
  waiting.set(element, start);
  seen.observe(element);
}

function begin(element) {
  const start = waiting.get(element);
  waiting.delete(element);
  seen.unobserve(element);
  if (start) start();
}

export function watch() {
  for (const element of document.querySelectorAll("[data-figure]")) {
    const figure = page.figures[element.dataset.figure];
    whenSeen(element, () => draw(element, figure, figure.opens));
  }
  dark.addEventListener("change", again);
  window.addEventListener("beforeprint", () => {
    printing = true;
    for (const element of [...waiting.keys()]) begin(element);
    again();
  });
  window.addEventListener("afterprint", () => {
    printing = false;
    again();
  });
}
