// The page: loads the atlas, switches tabs, handles keys and the link.

import { ask, Problem } from "./ask.js";
import * as changes from "./change.js";
import * as compare from "./compare.js";
import { byId, choice, element, fill } from "./dom.js";
import * as dossier from "./dossier.js";
import * as map from "./map.js";
import { forgetTheRest, theRest, working } from "./plots.js";
import * as spiral from "./spiral.js";
import { onChange, restore, set, state } from "./state.js";
import * as strip from "./strip.js";
import * as text from "./text.js";
import { enter } from "./token.js";

const TABS = { head: dossier, text, change: changes, spiral, compare };
// the parts of the state that each tab shows
const READS = {
  head: ["head"],
  text: ["head", "text", "level", "off", "query", "usage"],
  change: ["head", "text", "level", "change"],
  spiral: ["kind", "dims", "point"],
  compare: ["head", "color"],
};
const WAIT = 160;
let level;
let typing = null;
let since = null; // when the user's last action began

const exchange = async (code) => (await ask("enter", { code })).token;

async function begin() {
  await enter(exchange);
  const facts = await ask("start");
  restore(facts);
  if (!facts.measures.some(({ name }) => name === state.color)) state.color = facts.measures[0].name;
  const shape = new Set(facts.heads_in).size === 1 ? `${facts.heads_in.length} layers × ${facts.heads_in[0]} heads` : `${facts.heads_in.length} layers`;
  byId("about").textContent = [facts.model, facts.family !== facts.model && facts.family, shape, facts.length ? `scanned on ${facts.corpus}, ${facts.length} tokens` : "weights alone"].filter(Boolean).join(" · ");
  document.title = `Armillary: ${facts.model}`;
  const badge = byId("badge");
  badge.hidden = false;
  badge.textContent = facts.live ? "model loaded" : "atlas only";
  badge.classList.toggle("alone", !facts.live);
  fill(byId("missing"), ...facts.missing.map((line) => element("p", {}, line)));
  level = choice("Level", [["token", "tokens"], ["word", "words"]], state.level, (chosen) => set({ level: chosen }));
  fill(byId("level"), level);
  const box = byId("text");
  box.value = state.text;
  box.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => set({ text: box.value, query: -1 }), WAIT);
  });
  box.disabled = !facts.live;
  byId("text-form").addEventListener("submit", (event) => event.preventDefault());
  map.build(facts);
  for (const part of Object.values(TABS)) part.build(facts);
  for (const tab of Object.keys(TABS)) byId(`tab-${tab}`).addEventListener("click", () => set({ tab }));
  byId("tab-head").parentElement.addEventListener("keydown", alongTabs);
  byId("link").addEventListener("click", copyLink);
  byId("help").addEventListener("click", help);
  document.addEventListener("keydown", pressed);
  addEventListener("hashchange", () => {
    restore(facts);
    box.value = state.text;
    update(null);
  });
  for (const kind of ["keydown", "input", "click", "change"]) addEventListener(kind, (event) => (since = event.timeStamp), { capture: true });
  onChange(update);
  await update(null);
}

async function update(changed) {
  const start = since ?? performance.now();
  since = null;
  byId("problem").hidden = true;
  for (const tab of Object.keys(TABS)) {
    const chosen = tab === state.tab;
    byId(`tab-${tab}`).setAttribute("aria-selected", String(chosen));
    byId(`tab-${tab}`).tabIndex = chosen ? 0 : -1;
    byId(`view-${tab}`).hidden = !chosen;
  }
  byId("text-form").hidden = !(state.tab === "text" || state.tab === "change");
  level.show(state.level);
  const reads = !changed || changed.has("tab") || READS[state.tab].some((name) => changed.has(name));
  if (state.tab !== "text") text.withdraw();
  if (state.tab !== "change") changes.withdraw();
  if (reads) forgetTheRest();
  try {
    await working(Promise.all([map.show(changed), reads ? TABS[state.tab].show(changed) : null]));
    await painted();
    const what = changed ? [...changed].join(" ") : "start";
    performance.measure(`armillary ${what}`, { start, end: performance.now() });
    if (reads && (await working(theRest()))) performance.measure(`armillary ${what}, all of it`, { start, end: performance.now() });
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    TABS[state.tab].clear?.();
    tellProblem(error.message);
  }
}

// When the browser has put on screen what was drawn.
const painted = () => new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));

function tellProblem(message) {
  byId("problem").textContent = message;
  byId("problem").hidden = false;
}

async function copyLink() {
  const button = byId("link");
  try {
    await navigator.clipboard.writeText(location.href);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Copy it from the address bar";
  }
  setTimeout(() => (button.textContent = "Copy link"), 1600);
}

function help() {
  const keys = byId("keys");
  keys.hidden = !keys.hidden;
  byId("help").setAttribute("aria-expanded", String(!keys.hidden));
}

function alongTabs(event) {
  const names = Object.keys(TABS);
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  const next = names[(names.indexOf(state.tab) + step + names.length) % names.length];
  set({ tab: next });
  byId(`tab-${next}`).focus();
  event.preventDefault();
  event.stopPropagation();
}

const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const tab = Object.keys(TABS)[Number(event.key) - 1];
  if (STEPS[event.key]) map.move(...STEPS[event.key]);
  else if (tab) set({ tab });
  else if (event.key === "t") {
    set({ tab: state.tab === "change" ? "change" : "text" });
    byId("text").focus();
  } else if (event.key === "w") set({ level: state.level === "word" ? "token" : "word" });
  else if (event.key === "[" || event.key === "]") strip.step(event.key === "[" ? -1 : 1);
  else if (event.key === "?") help();
  else return;
  event.preventDefault();
}

// the printed address, pasted over this page's own
addEventListener("hashchange", async () => {
  if (await enter(exchange)) location.reload();
});
begin().catch((error) => tellProblem(error.message));
