// The REST API beside this page. Every answer that is no success becomes an ApiError whose message
// is the answer's `detail`: what, where, what to do.

export class ApiError extends Error {
  constructor(status, detail) {
    super(detail);
    this.name = "ApiError";
    this.status = status;
  }
}

const BASE = "api";
const OTHERWISE = {
  401: "You are signed out. Sign in to Airflow again, then reload this page.",
  403: "Your role does not allow this.",
  404: "Nothing is there any more. Go back and refresh the list.",
};

/** Return "api/partitions?stage=mapping"; parts that are null, undefined or "" are left out, lists are repeated. */
export function address(path, query = {}) {
  const each = Object.entries(query).flatMap(([name, value]) => [value].flat().map((one) => [name, one]));
  const given = each.filter(([, value]) => value !== null && value !== undefined && value !== "");
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return `${BASE}${path}${text ? `?${text}` : ""}`;
}

/** Ask, and return the answer's JSON; `exact` keeps numbers as they were written. */
export async function ask(path, { query, signal, exact = false } = {}) {
  const answer = await reach(address(path, query), { signal });
  return exact ? exactJson(await answer.text()) : answer.json();
}

/** Change something, and return the answer's JSON. */
export async function change(method, path, body) {
  const headers = { "X-Waybill": "1" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const answer = await reach(address(path), {
    method,
    headers,
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  return answer.json();
}

async function reach(url, options) {
  let answer;
  try {
    answer = await fetch(url, { credentials: "same-origin", cache: "no-store", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "Airflow's web server does not answer. Nothing was changed for certain: look again once it is back.");
  }
  if (!answer.ok) throw new ApiError(answer.status, await reason(answer));
  return answer;
}

async function reason(answer) {
  const otherwise = OTHERWISE[answer.status] ?? `The server answered ${answer.status}. Its log says more.`;
  try {
    const { detail } = await answer.json();
    if (Array.isArray(detail)) {
      return detail.map((one) => `${(one.loc ?? []).slice(1).join(".")}: ${one.msg}`).join("; ");
    }
    return typeof detail === "string" && detail ? detail : otherwise;
  } catch {
    return otherwise;
  }
}

/** A number that JavaScript cannot hold as it was written. */
export class ExactNumber {
  constructor(source) {
    this.source = source;
  }
}

/** Parse JSON; numbers that would change by it become ExactNumber, where the browser tells. */
export function exactJson(text) {
  const keep = (_key, value, context) =>
    typeof value === "number" && context?.source !== undefined && String(value) !== context.source
      ? new ExactNumber(context.source)
      : value;
  try {
    return JSON.parse(text, keep);
  } catch (error) {
    if (error instanceof RangeError) return JSON.parse(text); // nested too deeply to be walked
    throw error;
  }
}

let offered = null;

/** Read which routes this version of the server has, and what each of them takes. */
export async function readRoutes() {
  try {
    const described = await ask("/openapi.json");
    offered = new Map();
    for (const [path, methods] of Object.entries(described.paths)) {
      for (const [method, route] of Object.entries(methods)) {
        offered.set(`${method.toUpperCase()} ${shape(path)}`, namesOf(route, described));
      }
    }
  } catch (error) {
    if (error.status !== 404) throw error;
    offered = null;
  }
}

function shape(path) {
  return path.replace(/^.*?\/api(?=\/)/, "").replace(/\{[^}]*\}/g, "{}");
}

/** Return the names of a route's query parameters and of its body's fields. */
function namesOf(route, described) {
  const query = (route.parameters ?? []).map((one) => one.name);
  const schema = route.requestBody?.content?.["application/json"]?.schema ?? {};
  const refs = [schema, ...(schema.anyOf ?? [])].map((one) => one.$ref).filter(Boolean);
  const bodies = refs.map((ref) => described.components.schemas[ref.split("/").at(-1)]);
  return new Set([...query, ...[schema, ...bodies].flatMap((one) => Object.keys(one.properties ?? {}))]);
}

/** Tell whether the server has a route, such as ("POST", "/partitions/{}/replay"). */
export function offers(method, path) {
  return offered === null || offered.has(`${method} ${path}`);
}

/** Tell whether a route takes a parameter or a field of its body. */
export function takes(method, path, name) {
  return offered === null || (offered.get(`${method} ${path}`)?.has(name) ?? false);
}

/** Return the part of an object that a route takes. */
export function taken(method, path, given) {
  return Object.fromEntries(Object.entries(given).filter(([name]) => takes(method, path, name)));
}
