// The foot of a list in pages: how much of it is shown, and the way to other pages.

import { fill, h, icon } from "./dom.js";

const WAYS = [["first", "First page", "first"], ["before", "Previous page", "back"], ["next", "Next page", "next"]];

/** It remembers where the pages before began. `turn(after)` shows the page behind that; "" the first. */
export class Pager {
  constructor(turn, ...more) {
    this.turn = turn;
    this.before = [];
    this.words = h("span", { class: "muted shown" });
    this.buttons = new Map(WAYS.map(([way, label, name]) => [way, h("button", { type: "button", class: "button icon-only", "aria-label": label, title: label, disabled: true, onclick: () => this.go(way) }, icon(name))]));
    this.element = h("nav", { class: "pager", "aria-label": "Pages" }, this.words, more, [...this.buttons.values()]);
  }

  /** How many pages there are before the one that begins behind `after`; null: not known. */
  pagesBefore(after) {
    return after && !this.before.length ? null : this.before.length;
  }

  /** Other lines are shown: begin anew. */
  forget() {
    this.before = [];
  }

  /** Say what is shown, in words; `after` is where this page began, `next` where the next one does. */
  draw({ words, after, next }) {
    this.after = after;
    this.next = next;
    const held = [...this.buttons.values()].find((button) => button === document.activeElement);
    fill(this.words, words);
    for (const [way, enabled] of [["first", after], ["before", this.before.length], ["next", next]]) this.buttons.get(way).disabled = !enabled;
    if (held?.disabled) [...this.buttons.values()].find((button) => !button.disabled)?.focus({ preventScroll: true });
    this.element.hidden = !words && !after;
  }

  go(way) {
    if (way === "first") this.forget();
    if (way === "next") this.before.push(this.after);
    return this.turn({ first: () => "", before: () => this.before.pop(), next: () => this.next }[way]());
  }
}
