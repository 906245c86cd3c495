// When events were parked, as 24 bars.

import { svg } from "./dom.js";
import { count, duration, many, time } from "./words.js";

const WIDTH = 4;
const HEIGHT = 24;

/** Return the bars of a timeline {since, until, step_s, parked: [numbers]}. */
export function sparkline(timeline) {
  const numbers = timeline.parked;
  const most = Math.max(...numbers, 1);
  const total = numbers.reduce((sum, number) => sum + number, 0);
  const words =
    `${many(total, "event")} parked from ${time(timeline.since)} to ${time(timeline.until)} UTC, ` +
    `at most ${count(Math.max(...numbers, 0))} in ${duration(timeline.step_s)}`;
  const bars = numbers.map((number, index) => bar(number, index, most));
  const box = `0 0 ${numbers.length * WIDTH} ${HEIGHT}`;
  return svg("svg", { class: "sparkline", viewBox: box, preserveAspectRatio: "none", role: "img", "aria-label": words }, svg("title", {}, words), bars);
}

function bar(number, index, most) {
  const height = number ? Math.max(2, (HEIGHT * number) / most) : 1;
  const box = { x: index * WIDTH, y: HEIGHT - height, width: WIDTH - 1, height };
  return svg("rect", { ...box, class: number ? "bar" : "bar none", rx: number ? 0.8 : 0 });
}
