// The page's life: asks the router every two seconds, for the hour every ten, and for nothing while nobody looks.

import { Actions } from "./actions.js";
import { ask, keepToken, Refused, token } from "./api.js";
import { Charts, latest, steps } from "./charts.js";
import { Decisions } from "./decisions.js";
import { byId, setText } from "./dom.js";
import { explain } from "./explain.js";
import { Fleet } from "./fleet.js";
import { clock } from "./format.js";
import { inspect } from "./node.js";
import { Prefixes } from "./prefixes.js";

const LIVE_MS = 2000, HISTORY_MS = 10_000, BEHIND_MS = 15_000;

const actions = new Actions(look);
const fleet = new Fleet(actions, (name) => open("node", name));
const charts = new Charts();
const prefixes = new Prefixes(actions);
const decisions = new Decisions((id) => open("request", id));
let timer = 0, asking = false, historyAt = -Infinity, last = null, heardAt = 0;

/** Looks now, and again later. */
async function look() {
  clearTimeout(timer);
  if (asking) return;
  asking = true;
  let wait = LIVE_MS;
  try {
    const due = performance.now() >= historyAt + HISTORY_MS;
    const [view, history] = await Promise.all([ask("live"), due ? ask("history") : null]);
    if (history) {
      const list = steps(history);
      historyAt = performance.now();
      last = latest(list, history.step_s);
      charts.write(list);
    }
    write(view);
  } catch (error) {
    wait = error instanceof Refused && [401, 403].includes(error.status) ? refused(error) : lost(error);
  }
  asking = false;
  if (wait && !document.hidden) timer = setTimeout(look, wait);
}

function write(view) {
  const first = !heardAt;
  heardAt = performance.now();
  fleet.write(view, last);
  prefixes.write(view);
  decisions.write(view);
  say(`As of ${clock(view.at)}${view.acts ? "" : ", read-only"}`, false);
  byId("access").hidden = !view.acts && !token();
  setText(byId("access"), token() ? "Forget the token" : "Admin token…");
  if (first) opened();
}

/** No token or the wrong one. Nothing is asked again until there is another. */
function refused(error) {
  say("Not connected", true);
  byId("access").hidden = false;
  setText(byId("access"), "Admin token…");
  if (error.status === 401) login(token() ? "The router does not accept this token." : "");
  else setText(byId("connection"), error.message);
  keepToken(null);
  return 0;
}

function lost(error) {
  const since = heardAt ? ` for ${Math.round((performance.now() - heardAt) / 1000)} s` : "";
  say(`The router does not answer${since}: ${error.message}`, true);
  return heardAt && performance.now() < heardAt + BEHIND_MS ? LIVE_MS : 2 * LIVE_MS;
}

function say(text, wrong) {
  const where = byId("connection");
  // What is heard every two seconds is not said every two seconds.
  where.setAttribute("aria-live", wrong ? "polite" : "off");
  setText(where, text);
  where.classList.toggle("lost", wrong);
}

function login(error) {
  setText(byId("login-error"), error);
  if (!byId("login").open) byId("login").showModal();
  byId("token").focus();
}

byId("access").addEventListener("click", () => {
  if (!token()) return login("");
  keepToken(null);
  historyAt = -Infinity;
  return look();
});
byId("login-cancel").addEventListener("click", () => byId("login").close());
byId("login-form").addEventListener("submit", () => {
  keepToken(byId("token").value);
  byId("token").value = "";
  historyAt = -Infinity;
  look();
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) look();
});

// What a dialog says has an address, to be sent to somebody.
function open(kind, name) {
  location.hash = `${kind}=${encodeURIComponent(name)}`;
}
function opened() {
  const [, kind, encoded] = /^#(request|node)=(.+)/.exec(location.hash) ?? [];
  const name = kind && decoded(encoded);
  if (kind === "request") explain(name);
  else if (kind === "node") inspect(name, () => fleet.nodes.find((node) => node.name === name), actions);
  else if (byId("detail").open) byId("detail").close();
}
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text; // Typed by hand.
  }
}
byId("detail").addEventListener("close", () => {
  if (/^#(request|node)=/.test(location.hash)) history.replaceState(null, "", location.pathname);
});
addEventListener("hashchange", opened);

look();
