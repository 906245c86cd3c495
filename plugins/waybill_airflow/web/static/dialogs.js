// Dialogs drawn by the page: Airflow's frame lets no confirm() and no window of its own.

import { fill, h, icon } from "./dom.js";
import { problem } from "./notices.js";
import { fromField, many } from "./words.js";

/**
 * Open a form and wait for its end.
 * `fields` are made by the functions below. `send` gets the values and may throw: the dialog then
 * stays open and shows why. Resolves with what `send` returned, or null when it was closed.
 */
export function openForm({ title, intro, fields: given, action, danger = false, send }) {
  const fields = given.filter(Boolean);
  return new Promise((resolve) => {
    let result = null;
    const wrong = h("div", {});
    const submit = h("button", { type: "submit", class: `button ${danger ? "danger" : "solid"}` }, action);
    const close = () => dialog.close();
    const form = h(
      "form", { onsubmit: (event) => { event.preventDefault(); run(); } },
      h("header", {}, h("h2", { id: "dialog-title" }, title), h("button", { type: "button", class: "button icon-only quiet", "aria-label": "Close", onclick: close }, icon("close"))),
      h("div", { class: "dialog-body" }, [intro].flat().filter(Boolean).map((words) => (words instanceof Node ? words : h("p", {}, words))), fields.map((one) => one.element), wrong),
      h("footer", {}, h("button", { type: "button", class: "button", onclick: close }, "Cancel"), submit),
    );
    const ended = () => { dialog.remove(); resolve(result); };
    const dialog = h("dialog", { class: "dialog", "aria-labelledby": "dialog-title", onclose: ended }, form);

    async function run() {
      submit.disabled = true;
      fill(wrong);
      try {
        result = await send(valuesOf(fields));
        close();
      } catch (error) {
        fill(wrong, problem(error));
      } finally {
        submit.disabled = false;
      }
    }

    document.body.append(dialog);
    dialog.showModal();
    dialog.querySelector(".dialog-body input, .dialog-body select, .dialog-body textarea")?.focus();
  });
}

function valuesOf(fields) {
  return Object.assign({}, ...fields.map((one) => one.values()));
}

function labelled(label, input, note) {
  input.id = `field-${input.name}`;
  if (note) input.setAttribute("aria-describedby", `note-${input.name}`);
  return h("div", { class: "field" }, h("label", { class: "label", for: input.id }, label), input, note && h("span", { class: "note", id: `note-${input.name}` }, note));
}

/** A line of text; required unless said otherwise. */
export function textField(name, label, { note, required = true, placeholder = "" } = {}) {
  const input = h("input", { type: "text", name, required, placeholder, maxlength: "500", autocomplete: "off" });
  return { element: labelled(label, input, note), values: () => ({ [name]: input.value.trim() }) };
}

/** A whole number, or null when empty. */
export function numberField(name, label, { note, placeholder = "", value = "" } = {}) {
  const input = h("input", { type: "number", name, min: "1", step: "1", value, placeholder, inputmode: "numeric" });
  return {
    element: labelled(label, input, note),
    values: () => ({ [name]: input.value === "" ? null : Number(input.value) }),
  };
}

/** Two fields side by side. */
export function pairOf(one, other) {
  return { element: h("div", { class: "pair" }, one.element, other.element), values: () => ({ ...one.values(), ...other.values() }) };
}

/** A switch. */
export function tick(name, label, { note, checked = false } = {}) {
  const input = h("input", { type: "checkbox", name, checked });
  const words = h("span", {}, label, note && h("span", { class: "note" }, note));
  return { element: h("label", { class: "tick" }, input, words), values: () => ({ [name]: input.checked }) };
}

/** One of several; `options` are [value, text, note]. */
export function oneOf(name, label, options, chosen) {
  const inputs = options.map(([value]) => h("input", { type: "radio", name, value, checked: value === chosen }));
  const rows = options.map(([, text, note], index) => h("label", { class: "tick" }, inputs[index], h("span", {}, text, note && h("span", { class: "note" }, note))));
  return {
    element: h("fieldset", { class: "radios" }, h("legend", { class: "label" }, label), rows),
    values: () => ({ [name]: inputs.find((input) => input.checked)?.value ?? null }),
  };
}

/** A window: since and until, null when open; with `byParked`, on event time or on the time of parking. */
export function windowField({ byParked = false } = {}) {
  const from = h("input", { type: "datetime-local", name: "since", max: "9999-12-31T23:59" });
  const to = h("input", { type: "datetime-local", name: "until", max: "9999-12-31T23:59" });
  const clock = h("select", { name: "clock" }, h("option", { value: "" }, "event time"), h("option", { value: "parked_" }, "parked time"));
  const which = labelled("Window on", clock);
  which.classList.add("across");
  const edges = [labelled("From (UTC)", from, "Empty: from the first"), labelled("To (UTC)", to, "Empty: to the last")];
  return {
    element: h("div", { class: "pair" }, byParked && which, edges),
    values: () => ({ [`${clock.value}since`]: fromField(from.value), [`${clock.value}until`]: fromField(to.value) }),
  };
}

/** Which kind of error: one fingerprint, or all (null). */
export function fingerprintField(groups, chosen) {
  const single = (groups ?? []).filter((group) => group.fingerprint);
  if (!single.length) return { element: h("span", { hidden: true }), values: () => ({ fingerprint: null }) };
  const options = single.map((group) => h("option", { value: group.fingerprint, selected: group.fingerprint === chosen }, `${group.message.slice(0, 90) || "(no message)"} · ${many(group.events, "event")}`));
  const select = h("select", { name: "fingerprint" }, h("option", { value: "" }, "all kinds"), options);
  return { element: labelled("Kind of error", select), values: () => ({ fingerprint: select.value || null }) };
}
