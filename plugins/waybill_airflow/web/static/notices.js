// What the page says in passing, and errors where something should have been.

import { h, icon } from "./dom.js";

const SHOWN_MS = 8_000;

/** Show a sentence for some seconds; `kind` is success, error or info. */
export function notice(words, kind = "success") {
  const box = document.getElementById("notices");
  const close = () => shown.remove();
  const shown = h(
    "div", { class: `notice ${kind}`, role: kind === "error" ? "alert" : null },
    icon(kind === "error" ? "alert" : "check"), h("span", {}, words),
    h("button", { type: "button", class: "button icon-only quiet", "aria-label": "Close", onclick: close }, icon("close")),
  );
  box.append(shown);
  if (kind !== "error") setTimeout(close, SHOWN_MS);
}

/** Return a box that says what went wrong; `again` makes it offer another try. */
export function problem(error, again) {
  const retry = again && h("button", { type: "button", class: "button", onclick: again }, icon("refresh"), "Try again");
  return h("div", { class: "problem", role: "alert" }, icon("alert"), h("div", {}, h("p", {}, error.message), retry));
}
