// The dossier of one head: sentences, figures, and its row of numbers with their definitions.
import { headName, headRow, make, page, percent, shown, values } from "./format.js";
import { draw } from "./plots.js";
import { question } from "./popover.js";
import { reading } from "./reading.js";

const dialog = document.getElementById("dossier");
const body = document.getElementById("dossier-body");
const title = document.getElementById("dossier-title");
const decoded = new Map();
let current = 0;
let sequence = [];

export function prepare() {
  if (!page.tables.heads) return;
  document.getElementById("dossier-close").addEventListener("click", () => dialog.close());
  document.getElementById("dossier-before").addEventListener("click", () => step(-1));
  document.getElementById("dossier-next").addEventListener("click", () => step(1));
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  dialog.addEventListener("keydown", (event) => {
    if (event.target.closest("input, select")) return;
    if (event.key === "ArrowLeft") step(-1);
    if (event.key === "ArrowRight") step(1);
  });
  dialog.addEventListener("close", () => {
    if (location.hash.startsWith("#head-")) history.replaceState(null, "", "#heads");
  });
}

function step(by) {
  const at = sequence.indexOf(current);
  openRow(sequence[(at + by + sequence.length) % sequence.length], sequence);
}

export function openHead(layer, head, order) {
  const row = headRow(layer, head);
  if (row !== undefined) openRow(row, order);
}

export function openRow(row, order = values("heads", "head").map((_, i) => i)) {
  current = row;
  sequence = order.includes(row) ? order : values("heads", "head").map((_, i) => i);
  const label = values("heads", "label")?.[row];
  title.replaceChildren(`Head ${headName(row)}`);
  if (label) {
    const unsure = values("heads", "significant")?.[row] === "no" || values("heads", "check")?.[row] === "fails";
    const chip = make("span", { className: "chip" }, label + (unsure ? "?" : ""));
    chip.style.setProperty("--chip", page.labels[label] ?? "#999999");
    title.append(" ", chip);
  }
  body.replaceChildren(...(page.kind === "comparison" ? [changes(row)] : [words(row), reading(row), panels(row), numbers(row)]));
  if (!dialog.open) dialog.showModal();
  body.scrollTop = 0;
  title.focus();
  for (const element of body.querySelectorAll("[data-panel]")) draw(element, filled(element.dataset.panel, row));
  history.replaceState(null, "", `#head-${headName(row)}`);
}

function of(name, row) {
  return values("heads", name)?.[row] ?? null;
}

function words(row) {
  const sentences = [];
  const masses = [["prev_mass", "the previous token"], ["first_mass", "the first token"], ["self_mass", "itself"]]
    .filter(([name]) => of(name, row) !== null)
    .sort((a, b) => of(b[0], row) - of(a[0], row));
  if (masses.length) sentences.push(`Gives ${listed(masses.map(([name, to]) => `${percent(of(name, row))} of its attention to ${to}`), " of its attention")}.`);
  if (of("mean_distance", row) !== null) sentences.push(`Attends ${of("mean_distance", row).toFixed(1)} tokens back on average.`);
  if (of("positional_share", row) !== null) {
    sentences.push(`Position explains ${percent(of("positional_share", row))} of its logits, content ${percent(of("content_share", row))}, the two together ${percent(of("mixed_share", row))}.`);
  }
  if (new Set(values("heads", "layer_kind") ?? []).size > 1) {
    const base = of("rotary_base", row);
    sentences.push(`Its layer ${of("layer_kind", row) === "window" ? "has a window" : "sees all tokens"}${base === null ? "" : ` and has rotary base ${base.toLocaleString("en")}`}.`);
  }
  const place = make("div", { className: "words" }, make("p", {}, sentences.join(" ") || "This atlas was made from weights alone."));
  const reasons = page.evidence[row] ?? [];
  const label = of("label", row);
  if (!label) return (place.append(make("p", {}, "This atlas has no labels: scan again to get them.")), place);
  const own = reasons.filter((one) => one[0] === label && one[1] === "rule");
  const significant = { yes: "significant against random heads of the same size", no: "not significant against random heads of the same size" }[of("significant", row)] ?? "not compared with random heads";
  const check = { fails: ", but its check failed", holds: ", and its check passed", undecided: ", and its check is undecided" }[of("check", row)] ?? "";
  const verdict = significant + check + besides(row);
  place.append(make("p", {}, make("strong", {}, `Labeled \u2018${label}\u2019`), `: ${own.length ? own.map(rule).join("; ") + "; " : ""}${verdict}. Its nearest kinds are ${of("first_label", row)} and ${of("second_label", row)}.`));
  const support = reasons.filter((one) => one[1] === "support");
  if (support.length) {
    place.append(make("p", {}, `Other lenses: ${support.map(([, , measure, value, , threshold, , holds]) => `${measure} is ${shown(value)}, ${holds ? "above" : "not above"} ${shown(threshold)}`).join("; ")}.`));
  }
  if (reasons.length) place.append(evidence(reasons));
  return place;
}

// What else the head does, and the few keys with most of its attention.
function besides(row) {
  const also = of("also", row);
  const where = ["induction", "duplicate"].includes(also) ? "on repeated random tokens" : "in text";
  return (also ? `. It is also \u2018${also}\u2019 ${where}` : "") + (of("rests_on", row) ? `. Most of its attention is on ${of("rests_on", row)}` : "");
}

function listed(parts, repeated) {
  const short = parts.map((part, i) => (i ? part.replace(repeated, "") : part));
  return short.length > 1 ? `${short.slice(0, -1).join(", ")} and ${short.at(-1)}` : short[0];
}

// What the strength of each label is a share of; for all others, the focus.
const SHARES = {
  broad: "of its attention is spread evenly",
  matching: "of its logits need content",
  preference: "of its logits need content",
  content: "of its logits need content",
  induction: "of its focus there, without attention to the first token",
  duplicate: "of its focus there, without attention to the first token",
};

function rule([label, , measure, value, none, threshold, strength]) {
  const random = none === null ? "" : ` (random heads ${shown(none)}, threshold ${shown(threshold)})`;
  return `${measure} is ${shown(value)}${random}` + (strength === null ? "" : `; ${percent(strength)} ${SHARES[label] ?? "of its focus"}`);
}

function evidence(reasons) {
  const names = ["label", "measure", "value", "random heads", "threshold", "strength", "holds"];
  const lines = reasons
    .filter((one) => one[1] === "rule")
    .sort((a, b) => (b[6] ?? -1) - (a[6] ?? -1))
    .map(([label, , measure, value, none, threshold, strength, holds]) =>
      make("tr", {}, make("th", { scope: "row" }, label), make("td", {}, measure), ...[value, none, threshold, strength].map((one) => make("td", { className: "number" }, shown(one))), make("td", {}, holds ? "yes" : "no")),
    );
  const table = make("table", {}, make("thead", {}, make("tr", {}, ...names.map((name) => make("th", { scope: "col" }, name)))), make("tbody", {}, ...lines));
  return make("details", {}, make("summary", {}, "Evidence for every label"), scrolled(table, "Evidence"));
}

function scrolled(table, name) {
  return make("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": name }, table);
}

function panels(row) {
  const place = make("div", { className: "panels" });
  for (const [name, template] of Object.entries(page.panels)) {
    const title = template.layout.title?.text ?? name;
    const figure = make("figure", { className: name });
    if (holds(name, row)) figure.append(make("div", { className: "plot", role: "group", "aria-label": title, "data-panel": name }));
    else figure.append(make("p", { className: "none" }, "Not measured, or not defined for this head."));
    figure.append(make("figcaption", {}, title));
    place.append(figure);
  }
  return place;
}

function holds(panel, row) {
  return page.panels[panel].data.some((trace) => Object.values(trace.meta ?? {}).some((name) => one(name, row).some?.((value) => value !== null)));
}

function filled(panel, row) {
  const template = structuredClone(page.panels[panel]);
  for (const trace of template.data) {
    for (const [field, name] of Object.entries(trace.meta ?? {})) trace[field] = one(name, row);
  }
  return template;
}

// One head's part of an array: a number, a list, or rows; what is missing is null.
function one(name, row) {
  const { type, shape } = page.arrays[name];
  const size = shape.reduce((a, b) => a * b, 1);
  const numbers = Array.from(array(name).subarray(row * size, (row + 1) * size));
  if (type === "u1") {
    const limit = one("logits_high", row);
    const read = numbers.map((step) => (step ? limit * (((step - 1) / 254) * 2 - 1) : null));
    return Array.from({ length: shape[0] }, (_, i) => read.slice(i * shape[1], (i + 1) * shape[1]));
  }
  const read = numbers.map((value) => (Number.isFinite(value) ? value : null));
  return shape.length ? read : read[0];
}

function array(name) {
  if (!decoded.has(name)) {
    const { type, data } = page.arrays[name];
    const bytes = Uint8Array.from(atob(data), (sign) => sign.charCodeAt(0));
    decoded.set(name, type === "u1" ? bytes : new Float32Array(bytes.buffer));
  }
  return decoded.get(name);
}

function numbers(row) {
  const lines = page.tables.heads.columns
    .filter((column) => !["layer", "head"].includes(column.name) && column.values[row] !== null)
    .map((column) =>
      make("tr", {}, make("th", { scope: "row" }, column.name), make("td", { className: "number" }, shown(column.values[row])), make("td", { className: "number" }, rank(column, row)), make("td", { className: "meaning" }, column.words, question("heads", column.name))),
    );
  return numbersTable(["measure", "value", "rank among heads", "meaning"], lines, "All measures of this head");
}

function numbersTable(names, lines, caption) {
  const head = make("thead", {}, make("tr", {}, ...names.map((name) => make("th", { scope: "col" }, name))));
  return scrolled(make("table", { className: "numbers" }, make("caption", {}, caption), head, make("tbody", {}, ...lines)), caption);
}

function rank(column, row) {
  if (!column.number) return "";
  const known = column.values.filter((value) => value !== null);
  return `${known.filter((value) => value > column.values[row]).length + 1} of ${known.length}`;
}

function changes(row) {
  const lines = page.tables.heads.columns
    .filter((column) => !["layer", "head"].includes(column.name) && column.values[row] !== null)
    .map((column) =>
      make("tr", {}, make("th", { scope: "row" }, column.name), ...[page.before[column.name][row], page.after[column.name][row], column.values[row]].map((value) => make("td", { className: "number" }, shown(value))), make("td", { className: "meaning" }, column.words)),
    );
  return numbersTable(["measure", "first", "second", "change", "meaning"], lines, "Its measures in both atlases");
}
