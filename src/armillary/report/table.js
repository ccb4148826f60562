// Tables that sort by any column, choose columns, filter rows, and open heads.
import { make, page, shown } from "./format.js";
import { parse } from "./filter.js";
import { question } from "./popover.js";

const AT_FIRST = 100; // rows shown until 'show all'

// Whether a column's numbers all lie between 0 and 1, so that a bar can show them.
function isShare({ number, values }) {
  const known = values.filter((value) => value !== null);
  return number && known.every((value) => value >= 0 && value <= 1) && known.some((value) => value % 1);
}

export class Grid {
  constructor(place, open) {
    this.name = place.dataset.table;
    this.given = page.tables[this.name];
    this.columns = new Map(this.given.columns.map((column) => [column.name, column]));
    this.open = this.columns.has("head") && page.tables.heads ? open : null;
    this.order = this.given.columns[0].values.map((_, i) => i);
    this.rows = this.order;
    this.sorted = { name: null, down: false };
    this.limit = AT_FIRST;
    this.set = Object.keys(this.given.sets)[0] ?? null;
    this.build(place);
    this.show();
  }

  build(place) {
    const controls = make("div", { className: "controls" });
    if (this.given.filters) controls.append(...this.filterControls());
    if (Object.keys(this.given.sets).length > 1) {
      const choose = make("select", {});
      for (const name of Object.keys(this.given.sets)) choose.append(make("option", { value: name }, name));
      choose.addEventListener("change", () => {
        this.set = choose.value;
        this.show();
      });
      controls.append(make("label", {}, "Columns ", choose));
    }
    this.count = make("p", { className: "count", role: "status" });
    this.head = make("tr");
    this.body = make("tbody");
    const caption = make("caption", {}, this.given.caption);
    this.table = make("table", {}, caption, make("thead", {}, this.head), this.body);
    this.more = make("button", { type: "button", className: "more" });
    this.more.addEventListener("click", () => this.showAll());
    const scroll = make("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": this.given.caption });
    scroll.append(this.table);
    place.append(controls, this.count, scroll, this.more);
    this.body.addEventListener("click", (event) => {
      const row = event.target.closest("tr")?.dataset.row;
      if (this.open && row !== undefined) this.open(this.headOf(Number(row)), [this, Number(row)]);
    });
  }

  filterControls() {
    const controls = [];
    this.chosen = {};
    for (const name of ["label", "layer"]) {
      const column = this.columns.get(name);
      if (!column) continue;
      const words = [...new Set(column.values)].filter((value) => value !== null);
      if (words.length < 2) continue;
      const choose = make("select", {}, make("option", { value: "" }, "all"));
      for (const word of words.sort((a, b) => (a < b ? -1 : 1))) choose.append(make("option", { value: word }, String(word)));
      choose.addEventListener("change", () => {
        this.chosen[name] = choose.value;
        this.filter();
      });
      controls.push(make("label", {}, `${name[0].toUpperCase()}${name.slice(1)} `, choose));
    }
    this.input = make("input", { type: "search", size: 30, placeholder: this.columns.has("prev_mass") ? "prev_mass > 0.3 and layer < 3" : "size > 1", spellcheck: false });
    this.input.addEventListener("input", () => this.filter());
    controls.push(make("label", { className: "wide" }, "Filter ", this.input));
    return controls;
  }

  headOf(row) {
    return [this.columns.get("layer").values[row], this.columns.get("head").values[row]];
  }

  names() {
    const first = ["layer", "head"].filter((name) => this.columns.has(name));
    const rest = this.set ? this.given.sets[this.set] : [...this.columns.keys()];
    return [...new Set([...(this.open ? ["head"] : first), ...rest])].filter((name) => !(this.open && name === "layer"));
  }

  filter() {
    const parsed = this.input ? parse(this.input.value, this.given.columns, this.names().map((name) => this.columns.get(name)), (row) => (this.open ? this.headOf(row).join(".") : "")) : { holds: () => true };
    this.problem = parsed.error ?? "";
    if (this.input) this.input.setAttribute("aria-invalid", String(Boolean(parsed.error)));
    if (!parsed.error) {
      const wanted = Object.entries(this.chosen ?? {}).filter(([, value]) => value !== "");
      this.rows = this.order.filter(
        (row) => wanted.every(([name, value]) => String(this.columns.get(name).values[row]) === value) && parsed.holds(row),
      );
    }
    this.fill();
  }

  sort(name) {
    const { values, number } = this.columns.get(name);
    const down = this.sorted.name === name ? !this.sorted.down : number && name !== "head" && name !== "layer";
    this.sorted = { name, down };
    const heads = this.open && name === "head" ? this.columns.get("layer").values.map((layer, i) => layer * 1e6 + values[i]) : values;
    const sign = down ? -1 : 1;
    this.order = [...this.order].sort((a, b) => {
      const [left, right] = [heads[a], heads[b]];
      if (left === null || right === null) return (left === null) - (right === null); // what is missing comes last
      return left < right ? -sign : left > right ? sign : a - b;
    });
    this.filter();
    this.headers();
  }

  headers() {
    const focused = this.head.contains(document.activeElement) ? document.activeElement.dataset.sort : null;
    this.head.replaceChildren(
      ...this.names().map((name) => {
        const { words, number } = this.columns.get(name);
        const mine = this.sorted.name === name;
        const button = make("button", { type: "button", className: "sort", title: words, "data-sort": name }, name.replaceAll("_", " "));
        button.append(make("span", { className: "arrow", "aria-hidden": "true" }, mine ? (this.sorted.down ? " ↓" : " ↑") : ""));
        button.addEventListener("click", () => this.sort(name));
        const cell = make("th", { scope: "col", className: number && !(this.open && name === "head") ? "number" : "" }, make("div", {}, button, question(this.given.meaning, name)));
        cell.setAttribute("aria-sort", mine ? (this.sorted.down ? "descending" : "ascending") : "none");
        return cell;
      }),
    );
    if (focused) this.head.querySelector(`[data-sort="${focused}"]`)?.focus();
  }

  show() {
    this.headers();
    this.filter();
  }

  showAll() {
    this.limit = Infinity;
    this.fill();
  }

  fill() {
    const names = this.names();
    const columns = names.map((name) => this.columns.get(name));
    const bars = columns.map((column) => (column.bar ??= isShare(column)));
    const rows = this.rows.slice(0, this.limit).map((row) => {
      const line = make("tr", { "data-row": row });
      columns.forEach((column, i) => line.append(this.cell(column, row, bars[i])));
      return line;
    });
    this.body.replaceChildren(...rows);
    const all = this.order.length;
    const what = this.name === "heads" ? "heads" : "rows";
    this.count.textContent = this.problem || (this.given.filters ? `${this.rows.length} of ${all} ${what}` : "");
    this.count.classList.toggle("problem", Boolean(this.problem));
    this.more.hidden = this.rows.length <= this.limit;
    this.more.textContent = `Show all ${this.rows.length} rows`;
  }

  cell(column, row, bar) {
    const value = column.values[row];
    if (column.name === "head" && this.open) {
      const name = this.headOf(row).join(".");
      return make("th", { scope: "row" }, make("button", { type: "button", className: "head", title: `Open the dossier of head ${name}` }, name));
    }
    const cell = make("td", { className: column.number ? (bar ? "number bar" : "number") : "" });
    if (column.number) {
      cell.textContent = shown(value);
      if (bar && value !== null) cell.style.setProperty("--part", value);
    } else if (value !== null && page.labels[value] && ["label", "before", "after"].includes(column.name)) {
      const dot = make("span", { className: "dot", "aria-hidden": "true" });
      dot.style.background = page.labels[value];
      cell.append(dot, value);
    } else {
      cell.textContent = value ?? "";
    }
    return cell;
  }
}
