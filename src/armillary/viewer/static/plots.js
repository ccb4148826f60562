// Figures: Plotly in a card that says what it shows and can be saved as PNG, SVG or JSON.

import { element } from "./dom.js";
import { drawHeat } from "./heat.js";
import { state } from "./state.js";

const QUIET = { displayModeBar: false, displaylogo: false, responsive: true, showTips: false, doubleClick: "reset" };
const FONT = { family: "system-ui, sans-serif", size: 11, color: "#26303c" };

let pending = 0;

// Whether requests or drawings are pending; tests and the benchmark wait for 'ready'.
export async function working(promise) {
  pending++;
  document.body.dataset.state = "working";
  try {
    return await promise;
  } finally {
    if (--pending === 0) document.body.dataset.state = "ready";
  }
}

// A card with a title, a note, a figure and the ways to save it.
export function card(id, title, height = 300) {
  const plot = element("div", { class: "plot", id: `plot-${id}`, role: "img", "aria-label": title });
  const note = element("p", { class: "note" });
  const heading = element("h3", {}, title);
  const save = element(
    "div",
    { class: "save", role: "group", "aria-label": `Save: ${title}` },
    ...["png", "svg", "json"].map((kind) =>
      element("button", { type: "button", "data-save": kind, title: `Save as ${kind.toUpperCase()}`, onclick: () => saved(made, kind) }, kind.toUpperCase()),
    ),
  );
  const root = element("section", { class: "card", id: `card-${id}` }, element("header", {}, heading, save), note, plot);
  plot.style.height = `${height}px`;
  const made = { root, plot, note, heading, id, height, drawn: false };
  return made;
}

export function name(made, title, note = "") {
  made.heading.textContent = title;
  made.plot.setAttribute("aria-label", note ? `${title}. ${note}` : title);
  made.note.textContent = note;
}

export async function draw(made, data, layout) {
  const whole = {
    font: FONT,
    margin: { l: 48, r: 12, t: 8, b: 40 },
    paper_bgcolor: "#ffffff",
    plot_bgcolor: "#ffffff",
    height: made.height,
    hoverlabel: { font: { size: 11 } },
    ...layout,
  };
  made.drawn = true;
  made.figure = () => ({ data, layout: whole });
  await Plotly.react(made.plot, data, whole, QUIET);
  if (made.listeners && !made.listening) {
    made.listening = true;
    for (const [event, listener] of Object.entries(made.listeners)) made.plot.on(event, listener);
  }
}

export function empty(made, why) {
  if (made.drawn && !made.canvas) Plotly.purge(made.plot);
  made.plot.replaceChildren();
  made.canvas = null;
  made.drawn = made.listening = false;
  made.note.textContent = why;
  made.plot.style.height = "0";
}

// A matrix, most often from query to key.
export function matrix(made, values, n, labels, options) {
  made.drawn = true;
  drawHeat(made, values, n, labels, options);
}

async function saved(made, kind) {
  if (!made.drawn) return;
  const title = `${document.title} head ${state.head.join(" ")} ${made.heading.textContent}`.replace(/[^A-Za-z0-9]+/g, "-").replace(/-+$/, "").toLowerCase();
  const { data, layout } = made.figure();
  let address;
  if (kind === "json") {
    const plain = { title: made.heading.textContent, note: made.note.textContent, of: document.title, view: state, data, layout };
    address = URL.createObjectURL(new Blob([JSON.stringify(plain, flat)], { type: "application/json" }));
  } else {
    const size = { width: made.plot.clientWidth, height: made.height, scale: kind === "png" ? 2 : 1 };
    address = await Plotly.toImage({ data, layout: { ...layout, font: FONT, paper_bgcolor: "#ffffff" } }, { format: kind, ...size });
  }
  const link = element("a", { href: address, download: `${title}.${kind}` });
  document.body.append(link);
  link.click();
  link.remove();
  if (kind === "json") setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

// Typed arrays as lists, NaN as null.
function flat(key, value) {
  return ArrayBuffer.isView(value) ? Array.from(value, (number) => (Number.isNaN(number) ? null : number)) : value;
}

// Draw what is on screen first, the rest after it is painted. A job is [card, draw].
let waiting = [];

export async function inView(jobs) {
  const near = ({ root }) => {
    const { top, bottom, height } = root.getBoundingClientRect();
    return height === 0 || (bottom > 0 && top < innerHeight);
  };
  const now = jobs.filter(([made]) => near(made));
  waiting = jobs.filter((job) => !now.includes(job));
  await Promise.all(now.map(([, job]) => job()));
}

export async function theRest() {
  const mine = waiting;
  for (const [, job] of mine) {
    await new Promise((resolve) => setTimeout(resolve));
    if (waiting !== mine) return false; // something newer is shown
    await job();
  }
  return true;
}

export function forgetTheRest() {
  waiting = [];
}
