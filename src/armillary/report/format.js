// What the page shows, and numbers as text.
export const page = JSON.parse(document.getElementById("data").textContent);

export function shown(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "string") return value;
  if (Number.isInteger(value)) return String(value).replace("-", "\u2212");
  const size = Math.abs(value);
  const text = size >= 1000 ? value.toFixed(0) : size < 1e-3 ? value.toPrecision(2) : value.toFixed(3);
  return text.replace(/-/g, "\u2212");
}

export function percent(value) {
  return `${(100 * value).toFixed(0)}\u00a0%`.replace("-", "\u2212");
}

export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-")) element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children);
  return element;
}

export function values(table, column) {
  const entry = page.tables[table]?.columns.find((one) => one.name === column);
  return entry ? entry.values : null;
}

export function headName(row) {
  return `${values("heads", "layer")[row]}.${values("heads", "head")[row]}`;
}

let rows = null;
export function headRow(layer, head) {
  if (!rows) {
    const heads = values("heads", "head");
    rows = new Map(values("heads", "layer").map((at, i) => [`${at}.${heads[i]}`, i]));
  }
  return rows.get(`${layer}.${head}`);
}
