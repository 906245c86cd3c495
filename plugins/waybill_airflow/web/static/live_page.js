// A page that asks for its numbers again and again, while somebody looks at it.

import { fill, h } from "./dom.js";
import { problem } from "./notices.js";
import { followTheme } from "./theme.js";

/**
 * Begin a page: `prepare` once, then `show`, which is to call what this returns: it asks for the
 * numbers, now and every `againMs`. `load` gets the signal that ends its questions, and a function
 * that tells whether nobody has asked since: a stale answer is to be dropped. `failed` shows an
 * error. `show` is called again when the address changes.
 */
export function live(page, { againMs, prepare, show, load, failed }) {
  let isReady = false;
  let asked = null;
  let timer = 0;

  async function again() {
    clearTimeout(timer);
    asked?.abort();
    const own = new AbortController();
    const isCurrent = () => asked === own;
    asked = own;
    try {
      await load(own.signal, isCurrent);
    } catch (error) {
      if (error.name !== "AbortError") failed(error, again);
    } finally {
      if (isCurrent()) {
        page.removeAttribute("aria-busy");
        timer = setTimeout(() => (document.hidden ? null : again()), againMs);
      }
    }
  }

  async function start() {
    try {
      await prepare();
      isReady = true;
      await show();
    } catch (error) {
      fill(page, problem(error, start));
      page.removeAttribute("aria-busy");
    }
  }

  followTheme();
  addEventListener("popstate", () => isReady && show());
  document.addEventListener("visibilitychange", () => !document.hidden && isReady && again());
  start();
  return again;
}

/** Return the choice of a time range; `choose` goes to another one, and the choice keeps the focus. */
export function spanChoice(page, spans, chosen, choose) {
  const focus = (span) => page.querySelector(`[value="${span}"]`)?.focus();
  return h("fieldset", { class: "spans" }, h("legend", { class: "sr-only" }, "Time range"), spans.map(([span, words]) =>
    h("label", {}, h("input", { type: "radio", name: "span", value: span, checked: span === chosen, onchange: () => choose(span).then(() => focus(span)) }), h("span", {}, words))));
}
