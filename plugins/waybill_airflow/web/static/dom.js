// Elements made by code. Text only ever becomes a text node: whatever a payload or a name holds,
// it is shown as it is and never read as markup.

const SVG = "http://www.w3.org/2000/svg";

/** Make an element; `on*` are listeners, `vars` CSS variables, null and false leave a part out. */
export function h(tag, properties, ...children) {
  return filled(document.createElement(tag), properties, children);
}

/** Make an SVG element. */
export function svg(tag, properties, ...children) {
  return filled(document.createElementNS(SVG, tag), properties, children);
}

function filled(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) put(element, name, value);
  element.append(...shown(children));
  return element;
}

function put(element, name, value) {
  if (value === null || value === undefined || value === false) return;
  if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
  else if (name === "vars") {
    for (const [key, given] of Object.entries(value)) element.style.setProperty(key, given);
  } else if (name === "value") element.value = value;
  else element.setAttribute(name, value === true ? "" : String(value));
}

function shown(children) {
  return children
    .flat(Infinity)
    .filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (child instanceof Node ? child : document.createTextNode(String(child))));
}

/** Put these children in the place of what an element holds. */
export function fill(element, ...children) {
  element.replaceChildren(...shown(children));
  return element;
}

/** The same, where they differ from what it holds: a region that is read aloud is silent when nothing changed. */
export function refill(element, ...children) {
  const next = fill(element.cloneNode(false), ...children);
  if (!next.isEqualNode(element)) element.replaceChildren(...next.childNodes);
  return element;
}

const CONTROLS = "a[href], button, input, select, textarea, summary, [tabindex='0']";

/**
 * Draw within an element, and leave the keyboard where it was: in the line of the same `data-id`, at
 * the control with the same words; else at the one in the same place.
 */
export function redraw(element, draw) {
  const held = element.contains(document.activeElement) ? document.activeElement : null;
  const id = held?.closest("[data-id]")?.dataset.id;
  const around = () => (id === undefined ? element : [...element.querySelectorAll("[data-id]")].find((one) => one.dataset.id === id));
  const controls = () => [...(around()?.querySelectorAll(CONTROLS) ?? [])];
  const place = held ? controls().indexOf(held) : -1;
  draw();
  if (!held || held.isConnected) return;
  const words = wordsOf(held);
  (controls().find((one) => wordsOf(one) === words) ?? controls()[place])?.focus({ preventScroll: true });
}

function wordsOf(control) {
  return control.getAttribute("aria-label") ?? (control.name || control.textContent);
}

const ICONS = {
  back: "M15 5l-7 7 7 7",
  next: "M9 5l7 7-7 7",
  first: "M18 5l-7 7 7 7M7 5v14",
  refresh: "M20 11a8 8 0 1 0-2.3 6.3M20 4v7h-7",
  close: "M6 6l12 12M18 6L6 18",
  replay: "M4 4v6h6M4.6 10A8 8 0 1 1 4 14",
  flask: "M9 3h6M10 3v6l-5.5 9.5A1.7 1.7 0 0 0 6 21h12a1.7 1.7 0 0 0 1.5-2.5L14 9V3M7.5 15h9",
  trash: "M4 7h16M9 7V4h6v3M6 7l1 13h10l1-13M10 11v6M14 11v6",
  undo: "M9 14L4 9l5-5M4 9h10a6 6 0 0 1 0 12h-3",
  download: "M12 4v11M7 11l5 5 5-5M4 20h16",
  auto: "M13 3L5 14h6l-1 7 8-11h-6z",
  stop: "M7 7h10v10H7z",
  hold: "M9 5v14M15 5v14",
  open: "M14 4h6v6M20 4l-9 9M18 14v5a1 1 0 0 1-1 1H5a1 1 0 0 1-1-1V7a1 1 0 0 1 1-1h5",
  info: "M12 11v6M12 7.5v.01M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18z",
  check: "M5 12.5l4.5 4.5L19 7.5",
  alert: "M12 9v5M12 17.5v.01M12 3.5L2.5 20h19z",
  clock: "M12 7v5l3.5 2M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18z",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
};

/** Return a line icon of one em, hidden from screen readers. */
export function icon(name) {
  const path = svg("path", { d: ICONS[name] });
  return svg("svg", { class: "icon", viewBox: "0 0 24 24", "aria-hidden": "true" }, path);
}
