// Elements made in script. Text is only ever set as text.

export const byId = (id) => document.getElementById(id);

// element("p", {class: "note"}, "text", other, ...)
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export function fill(place, ...children) {
  place.replaceChildren(...children.filter((child) => child !== null && child !== undefined));
  return place;
}

// A table from rows of texts; `classes` for the columns.
export function table(heads, rows, caption = "") {
  return element(
    "table",
    {},
    caption ? element("caption", {}, caption) : null,
    element("thead", {}, element("tr", {}, ...heads.map((head) => element("th", { scope: "col" }, head)))),
    element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((cell) => element("td", {}, cell))))),
  );
}

// A choice of one of several, as a row of buttons.
export function choice(label, options, current, choose) {
  const group = element("div", { class: "choice", role: "group", "aria-label": label });
  const buttons = options.map(([value, text]) =>
    element("button", { type: "button", "aria-pressed": String(value === current), "data-value": value, onclick: () => choose(value) }, text),
  );
  group.append(...buttons);
  group.show = (value) => buttons.forEach((button) => button.setAttribute("aria-pressed", String(button.dataset.value === value)));
  return group;
}

let tip = null;

// A small note beside the pointer, or none.
export function tell(event, lines) {
  tip ??= document.body.appendChild(element("div", { class: "tip", role: "status", hidden: true }));
  tip.hidden = !lines;
  if (!lines) return;
  fill(tip, ...lines.map(([name, value]) => element("div", {}, element("span", {}, name), element("b", {}, value))));
  const x = event.clientX + 14;
  const y = event.clientY + 14;
  tip.style.left = `${Math.min(x, innerWidth - tip.offsetWidth - 8)}px`;
  tip.style.top = `${Math.min(y, innerHeight - tip.offsetHeight - 8)}px`;
}
