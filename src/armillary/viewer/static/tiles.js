// The terms of the logits as tiles, query parts down, key parts across; each tile is a switch.

import { element } from "./dom.js";
import { image, SIGNED } from "./heat.js";
import { centeredSum, limit } from "./maths.js";
import { set, state } from "./state.js";

const PARTS = ["mean", "pos", "cvec"];
const SAID = { mean: "mean", pos: "position", cvec: "content" };

let facts;
let tiles = {};
let note;
export let root;

export const title = (term) => (term === "bias" ? "position bias" : term.split("_").map((part) => SAID[part]).join("·"));

export function build(given) {
  facts = given;
  note = element("p", { class: "note" });
  const grid = element("div", { class: "tiles", role: "group", "aria-label": "Terms of the logits, query part then key part" });
  grid.append(element("span", { class: "key" }, "q \\ k"), ...PARTS.map((part) => element("span", { class: "key" }, SAID[part])));
  for (const a of PARTS) grid.append(element("span", { class: "side" }, SAID[a]), ...PARTS.map((b) => tile(`${a}_${b}`)));
  if (facts.biased) grid.append(element("span", { class: "side" }, "bias"), tile("bias"));
  const presets = element(
    "div",
    { class: "presets" },
    ...Object.entries({ "All terms": () => [], "Position only": (term) => term.includes("cvec"), "Content only": (term) => term !== "cvec_cvec", "Without position vectors": (term) => term.includes("pos") }).map(([text, drops]) =>
      element("button", { type: "button", onclick: () => set({ off: text === "All terms" ? [] : facts.terms.filter(drops) }) }, text),
    ),
  );
  root = element("section", { class: "card", id: "card-terms" }, element("h3", {}, "Constituents of the logits"), note, presets, grid);
  return root;
}

function tile(term) {
  const canvas = element("canvas", { width: 1, height: 1, "aria-hidden": "true" });
  const share = element("small", {});
  const button = element(
    "button",
    { type: "button", class: "tile", id: `term-${term}`, "aria-pressed": "true", "aria-label": `term ${title(term)}`, onclick: () => set({ off: facts.terms.filter((t) => (t === term) !== state.off.includes(t)) }) },
    canvas,
    share,
  );
  tiles[term] = { canvas, share, button };
  return button;
}

export function show(answer) {
  root.hidden = false;
  if (!answer.terms) {
    note.textContent = answer.why;
    for (const child of root.children) child.hidden = child !== note && child.tagName !== "H3";
    return;
  }
  for (const child of root.children) child.hidden = false;
  note.textContent = "Click a term to remove it from the logits; the attention is computed again. Red favors a key, blue disfavors it; below each term its share in this text, measured as in a scan.";
  const n = Math.sqrt(answer.attention.length);
  if (!answer.centered.mean_mean) for (const term of facts.terms) answer.centered[term] = answer.exact ? centeredSum([answer.terms[term]], answer.attention, n) : answer.terms[term];
  const top = Math.max(...Object.keys(tiles).map((term) => limit(answer.centered[term])));
  for (const [term, { canvas, share, button }] of Object.entries(tiles)) {
    if (button.answer !== answer) paint(canvas, answer.centered[term], n, top);
    button.answer = answer;
    share.textContent = answer.shares[term] === null ? "–" : `${(100 * answer.shares[term]).toFixed(1)} %`;
    button.setAttribute("aria-pressed", String(!state.off.includes(term)));
    button.setAttribute("aria-label", `term ${title(term)}, ${share.textContent} of the logits, ${state.off.includes(term) ? "off" : "on"}`);
  }
}

function paint(canvas, values, n, top) {
  canvas.width = canvas.height = n;
  canvas.getContext("2d").drawImage(image(values, n, n, -top, top, SIGNED), 0, 0);
}
