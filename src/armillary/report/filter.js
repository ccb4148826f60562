// Parse a filter: words that a row must contain, and conditions such as prev_mass > 0.3; all must hold.
const tests = {
  "<": (a, b) => a < b,
  "<=": (a, b) => a <= b,
  ">": (a, b) => a > b,
  ">=": (a, b) => a >= b,
  "=": (a, b) => a === b,
  "!=": (a, b) => a !== b,
};

// Words are searched in the `shown` columns and in the names of heads.
export function parse(text, columns, shown, nameOf) {
  const named = new Map(columns.map((column) => [column.name, column]));
  const conditions = [];
  for (const raw of text.split(/,|&&|\band\b/)) {
    const term = raw.trim();
    if (!term) continue;
    const match = /^(\w+)\s*(<=|>=|!=|==|=|<|>)\s*(.+)$/.exec(term);
    if (!match) {
      if (/[<>=]/.test(term)) return { error: `\u2018${term}\u2019 is not a condition: write one as in prev_mass > 0.3` };
      const words = term.toLowerCase();
      conditions.push((row) => nameOf(row) === words || shown.some((column) => cell(column, row).includes(words)));
      continue;
    }
    const [, name, sign, right] = match;
    const column = named.get(name);
    if (!column) return { error: `there is no column \u2018${name}\u2019` };
    const test = tests[sign === "==" ? "=" : sign];
    if (column.number) {
      const number = Number(right.replace("\u2212", "-"));
      if (Number.isNaN(number)) return { error: `\u2018${right}\u2019 is not a number` };
      conditions.push((row) => column.values[row] !== null && test(column.values[row], number));
    } else {
      conditions.push((row) => column.values[row] !== null && test(column.values[row], right.trim()));
    }
  }
  return { holds: (row) => conditions.every((condition) => condition(row)) };
}

function cell(column, row) {
  return column.number ? "" : String(column.values[row] ?? "").toLowerCase();
}
