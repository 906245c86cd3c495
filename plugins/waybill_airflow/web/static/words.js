// Numbers, sizes and times as people read them. All times are UTC, like in the tracker.

const WHOLE = new Intl.NumberFormat("en-US");
const UNITS = ["bytes", "kB", "MB", "GB", "TB", "PB"];
const SPANS = [["year", 31_557_600], ["month", 2_629_800], ["day", 86_400], ["hour", 3_600], ["minute", 60]];
const AGO = new Intl.RelativeTimeFormat("en", { numeric: "always" });

/** 1234 → "1,234". */
export function count(number) {
  return WHOLE.format(number ?? 0);
}

/** (1, "event") → "1 event"; (2, "event") → "2 events". */
export function many(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}

/** Bytes → "1.2 MB", in thousands. */
export function size(bytes) {
  let value = bytes ?? 0;
  let unit = 0;
  while (value >= 999.5 && unit < UNITS.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit && value < 9.95 ? value.toFixed(1) : Math.round(value)} ${UNITS[unit]}`;
}

/** RFC 3339 → "2026-11-21 00:00:01"; what is no time is shown as it is. */
export function time(text, { seconds = true } = {}) {
  if (!text) return "–";
  const at = new Date(text);
  if (Number.isNaN(at.getTime())) return String(text);
  return at.toISOString().slice(0, seconds ? 19 : 16).replace("T", " ");
}

/** RFC 3339 → "3 hours ago". */
export function ago(text, now = Date.now()) {
  const seconds = (new Date(text).getTime() - now) / 1000;
  if (Number.isNaN(seconds)) return "";
  if (Math.abs(seconds) < 60) return "just now";
  const [unit, length] = SPANS.find(([, s]) => Math.abs(seconds) >= s);
  return AGO.format(Math.trunc(seconds / length), unit);
}

/** Seconds → "42 s", "3 min 5 s", "2 h 10 min". */
export function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
}

/** Share of a whole → "98.5 %"; never "100 %" or "0 %" when that is not exactly so. */
export function percent(part, whole) {
  if (!whole) return "–";
  const share = (100 * part) / whole;
  if (part !== whole && share > 99.9) return "> 99.9 %";
  if (part !== 0 && share < 0.1) return "< 0.1 %";
  return `${share.toFixed(1).replace(/\.0$/, "")} %`;
}

/** Text of a datetime field, meant as UTC → RFC 3339; "" → null. */
export function fromField(text) {
  return text ? `${text.length === 16 ? `${text}:00` : text}Z` : null;
}

/** RFC 3339 → text of a datetime field, in UTC. */
export function toField(text) {
  const at = new Date(text ?? "");
  return Number.isNaN(at.getTime()) ? "" : at.toISOString().slice(0, 16);
}

/** "null_value" → "null value"; "" → "". */
export function plain(code) {
  return String(code).replaceAll("_", " ");
}
