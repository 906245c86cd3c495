// What the page shows is in the address behind the `#`, so that a view can be kept and shared.
// Inside Airflow the address bar is the outer page's: it is told, without loading anything anew.

export const FILTERS = ["pipeline", "event_name", "stage", "error_type"];
export const DEFAULTS = {
  pipeline: "", event_name: "", stage: "", error_type: "",
  clock: "event", since: "", until: "", held: "true",
  sort: "last_parked_at", descending: "true", limit: "50", after: "",
  id: "", fingerprint: "",
};

/** Return the view of the address: every name of DEFAULTS with its text. */
export function read() {
  const given = new URLSearchParams(location.hash.slice(1));
  const view = { ...DEFAULTS };
  for (const name of Object.keys(DEFAULTS)) if (given.has(name)) view[name] = given.get(name);
  return view;
}

/** Return the text behind the `#` of a view; what is as by default is left out. */
export function hashOf(view) {
  const given = Object.entries(view).filter(([name, value]) => name in DEFAULTS && value !== DEFAULTS[name]);
  return `#${new URLSearchParams(given).toString()}`;
}

/** Put a view into the address; `push` lets the browser's Back return to the one before. */
export function write(view, { push = false } = {}) {
  const hash = hashOf(view);
  if (hash !== location.hash) {
    const url = location.pathname + location.search + (hash === "#" ? "" : hash);
    if (push) history.pushState(null, "", url);
    else history.replaceState(null, "", url);
  }
  tellOuter();
}

/** Write this page's address into that of the Airflow page around it. */
export function tellOuter() {
  const around = outerWindow();
  if (!around) return;
  const page = /^(.*\/plugin\/[^/]+)/.exec(around.location.pathname);
  if (!page) return;
  const own = location.pathname.slice(prefix(around).length) + location.search + location.hash;
  around.history.replaceState(around.history.state, "", `${page[1]}/${own.replace(/^\//, "")}`);
}

/** Show a page of Airflow, such as "dags/replay/runs/x", by the outer page's own router. */
export function openInAirflow(path) {
  const around = outerWindow();
  if (!around) {
    location.assign(`../${path}`);
    return;
  }
  around.history.pushState({}, "", `${prefix(around)}/${path}`);
  route(around);
}

/**
 * Where Airflow shows this page as a view that it had before, go to the one that it has now, with what
 * stands behind the `#`: a view in no menu is given none of it. Returns whether it went.
 */
export function leaveOldView(old, now) {
  const around = outerWindow();
  if (!around) return false;
  const own = around.location.pathname.slice(prefix(around).length);
  if (!own.startsWith(`/plugin/${old}/`) && own !== `/plugin/${old}`) return false;
  around.history.replaceState({}, "", `${prefix(around)}/plugin/${now}${around.location.hash}`);
  route(around);
  return true;
}

/** Have the outer page's router look at its address. */
function route(around) {
  around.dispatchEvent(new PopStateEvent("popstate", { state: {} }));
}

function prefix(around) {
  return new URL(around.document.baseURI).pathname.replace(/\/$/, "");
}

function outerWindow() {
  try {
    return parent === window || !parent.document ? null : parent;
  } catch {
    return null; // a frame of another site
  }
}
