// The page "Parked events": what is needed once, then the list, or one partition when the address
// names it.

import { read, tellOuter } from "./address.js";
import { ask, offers, readRoutes } from "./client.js";
import { Detail } from "./detail.js";
import { fill } from "./dom.js";
import { List, waiting } from "./list.js";
import { problem } from "./notices.js";
import { followTheme } from "./theme.js";

const page = document.getElementById("page");
let world = null;
let list = null;
let detail = null;

async function readWorld() {
  await readRoutes();
  const names = offers("GET", "/names") ? ask("/names") : { pipelines: [] };
  const [me, catalogue, given] = await Promise.all([ask("/me"), ask("/catalogue"), names]);
  const titles = new Map(catalogue.error_types.map((one) => [one.code, one]));
  return { me, catalogue, names: given, titles };
}

async function show() {
  tellOuter();
  detail?.leave();
  const left = detail?.id;
  detail = null;
  const { id } = read();
  if (id) {
    detail = new Detail(page, world, id);
    await detail.show();
    if (list) page.querySelector("h1")?.focus({ preventScroll: true });
  } else {
    list ??= new List(page, world);
    await list.show();
    if (left) lineOf(left)?.querySelector("a").focus();
  }
}

/** The line of a partition in the list; the keyboard goes on from there. */
function lineOf(id) {
  return [...page.querySelectorAll("tr[data-id]")].find((one) => one.dataset.id === id);
}

async function start() {
  fill(page, waiting());
  try {
    world = await readWorld();
    await show();
  } catch (error) {
    fill(page, problem(error, start));
  } finally {
    page.removeAttribute("aria-busy");
  }
}

followTheme();
addEventListener("popstate", () => world && show());
start();
