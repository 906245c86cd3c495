// Names that users gave, as the page shows them.

import { h } from "./dom.js";

/** What stands for an empty name in plain text. */
export const EMPTY = "(empty)";

/** Return a name for a cell or a heading; an empty one as muted words. */
export function named(name) {
  return name || h("span", { class: "muted" }, EMPTY);
}
