// A map of all heads, colored by the measure that is chosen.
import { make, page, values } from "./format.js";
import { draw, whenSeen } from "./plots.js";

export function headMap() {
  const place = document.getElementById("map");
  if (!place || !page.tables.heads) return;
  const choose = document.getElementById("map-measure");
  const numbers = page.tables.heads.columns.filter((column) => column.number && !["layer", "head", "kv_head"].includes(column.name));
  const words = Object.keys(page.maps).filter((name) => !name.startsWith("numbers "));
  for (const name of [...words, ...numbers.map((column) => column.name)]) choose.append(make("option", { value: name }, name.replaceAll("_", " ")));
  choose.value = page.measure || (words.includes("label") ? "label" : choose.options[0]?.value ?? "");
  choose.addEventListener("change", () => draw(place, figureOf(choose.value), true));
  if (!choose.value) return;
  place.style.minHeight = `${figureOf(choose.value).layout.height}px`; // its room from the start: nothing moves when it is drawn
  whenSeen(place, () => draw(place, figureOf(choose.value), true));
}

function figureOf(measure) {
  if (page.maps[measure]) return page.maps[measure];
  const numbers = values("heads", measure);
  const sizes = numbers.filter((value) => value !== null).map(Math.abs).sort((a, b) => a - b);
  const signed = numbers.some((value) => value < 0);
  const limit = sizes[Math.min(sizes.length - 1, Math.floor(0.99 * sizes.length))] || sizes.at(-1) || 1;
  const template = structuredClone(page.maps[signed ? "numbers signed" : "numbers positive"]);
  const [trace] = template.data;
  const layers = values("heads", "layer");
  const heads = values("heads", "head");
  const [rows, columns] = [Math.max(...layers) + 1, Math.max(...heads) + 1];
  trace.z = Array.from({ length: rows }, () => Array(columns).fill(null));
  numbers.forEach((value, i) => (trace.z[layers[i]][heads[i]] = value));
  trace.x = [...Array(columns).keys()];
  trace.y = [...Array(rows).keys()];
  trace.zmin = signed ? -limit : 0;
  trace.zmax = limit;
  trace.hovertemplate = `layer %{y}, head %{x}<br>${measure} %{z:.4g}<extra></extra>`;
  return template;
}
