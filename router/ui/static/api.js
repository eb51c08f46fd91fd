// Requests to the router. The token, if one was given, is kept until the tab is closed.

const KEPT = "trunkline-admin-token";
const DEADLINE_MS = 10_000;

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const token = () => sessionStorage.getItem(KEPT);

export function keepToken(value) {
  if (value) sessionStorage.setItem(KEPT, value);
  else sessionStorage.removeItem(KEPT);
}

/** Answers with JSON, or null if there is none. Throws Refused with the router's own words, TypeError without an answer. */
export async function ask(path, { method = "GET", body } = {}) {
  const headers = {};
  if (token()) headers.authorization = `Bearer ${token()}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  const answer = await fetch(`../admin/${path}`, {
    method,
    headers,
    body: body === undefined ? undefined : JSON.stringify(body),
    cache: "no-store",
    signal: AbortSignal.timeout(DEADLINE_MS),
  });
  const text = await answer.text();
  if (answer.ok) return text ? JSON.parse(text) : null;
  let message = `${answer.status} ${answer.statusText}`;
  try {
    message = JSON.parse(text).error.message;
  } catch {
    // Not the router's: a proxy's, perhaps.
  }
  throw new Refused(answer.status, message);
}
