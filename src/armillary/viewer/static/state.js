// What is shown. The state is in this tab and in the address after '#', so that a link restores it.

const START = {
  head: [0, 0],
  color: "entropy",
  tab: "head",
  text: "",
  level: "token",
  off: [],
  query: -1,
  usage: "share",
  kind: "pos",
  dims: "3",
  point: 0,
  change: { kind: "scale", scope: "head", alpha: 2 },
};

export const state = structuredClone(START);
const listeners = [];

export function onChange(listener) {
  listeners.push(listener);
}

// Change some of the state; listeners get the names that changed.
export function set(changes) {
  const names = Object.keys(changes).filter((name) => JSON.stringify(state[name]) !== JSON.stringify(changes[name]));
  if (!names.length) return;
  Object.assign(state, changes);
  history.replaceState(null, "", location.pathname + "#" + written());
  for (const listener of listeners) listener(new Set(names));
}

export function written() {
  const fields = new URLSearchParams();
  for (const [name, value] of Object.entries(state)) {
    const text = JSON.stringify(value);
    if (text !== JSON.stringify(START[name])) fields.set(name, text);
  }
  return fields.toString();
}

// The state in the address; invalid values keep their defaults.
export function restore(facts) {
  const fields = new URLSearchParams(location.hash.slice(1));
  const restored = structuredClone(START);
  for (const [name, text] of fields) {
    let value;
    try {
      value = JSON.parse(text);
    } catch {
      continue;
    }
    if (Object.hasOwn(fits, name) && fits[name](value, facts)) restored[name] = value;
  }
  Object.assign(state, restored);
  return state;
}

const whole = (value, most) => Number.isInteger(value) && value >= 0 && value < most;
const fits = {
  head: (v, facts) => Array.isArray(v) && v.length === 2 && whole(v[0], facts.heads_in.length) && whole(v[1], facts.heads_in[v[0]]),
  color: (v, facts) => facts.measures.some((measure) => measure.name === v),
  tab: (v) => ["head", "text", "spiral", "change", "compare"].includes(v),
  text: (v) => typeof v === "string",
  level: (v) => ["token", "word"].includes(v),
  off: (v, facts) => Array.isArray(v) && v.every((term) => facts.terms.includes(term)),
  query: (v) => v === -1 || whole(v, 1e6),
  usage: (v) => ["share", "q", "k"].includes(v),
  kind: (v) => ["pos", "cvec"].includes(v),
  dims: (v) => ["2", "3"].includes(v),
  point: (v, facts) => whole(v, facts.points),
  change: (v) => v !== null && typeof v === "object" && ["scale", "cut", "randomize", "frequencies", "remove"].includes(v.kind),
};
