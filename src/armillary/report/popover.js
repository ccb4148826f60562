// The definition of a column, shown beside its '?' button.
import { make } from "./format.js";

export function explain(button, table, name) {
  const note = document.getElementById("meaning");
  const entry = document.getElementById(`def-${table}-${name}`);
  const words = entry ? [...entry.querySelector("dd").childNodes].map((node) => node.cloneNode(true)) : ["No definition."];
  const link = make("a", { href: `#def-${table}-${name}` }, "All definitions");
  link.addEventListener("click", () => {
    note.hidePopover();
    document.getElementById("dossier").close();
    goTo(`def-${table}-${name}`);
  });
  note.replaceChildren(make("strong", {}, name), make("p", {}, ...words), link);
  // a modal dialog makes the rest of the page inert: the note must be inside it to be used
  const home = button.closest("dialog") ?? document.body;
  if (note.parentElement !== home) home.append(note);
  note.showPopover();
  const at = button.getBoundingClientRect();
  const width = Math.min(340, window.innerWidth - 24);
  note.style.width = `${width}px`;
  note.style.left = `${Math.max(12, Math.min(at.left - 20, window.innerWidth - width - 12))}px`;
  const below = at.bottom + 6;
  note.style.top = `${below + note.offsetHeight > window.innerHeight ? Math.max(8, at.top - note.offsetHeight - 6) : below}px`;
}

export function question(table, name) {
  const button = make("button", { type: "button", className: "ask", "aria-label": `What ${name} means` }, "?");
  button.addEventListener("click", (event) => {
    event.stopPropagation();
    explain(button, table, name);
  });
  return button;
}

export function goTo(id) {
  const target = document.getElementById(id);
  const closed = target?.closest("details");
  if (closed) closed.open = true;
  target?.scrollIntoView({ block: "center" });
}
