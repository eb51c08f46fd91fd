// Why a request went where it went: the explanation of one decision, as `trunkline explain` tells it.

import { ask } from "./api.js";
import { detail } from "./detail.js";
import { element, facts } from "./dom.js";
import { clock, count, percent, seconds } from "./format.js";

const BEST = 10;
const TIERS = ["device", "host", "disk", "claimed", "pulled"];

export function explain(id) {
  return detail(`Request ${id}`, async () => told(await ask(`decisions/${encodeURIComponent(id)}`)));
}

function told(view) {
  const reported = view.outcome.reported ?? {};
  const served = view.candidates.find((one) => one.node === view.node);
  const { state, status, error } = view.outcome;
  return [
    element("p", {}, `${count(view.prompt_tokens)} prompt tokens for ${view.model}, decided at ${clock(Date.parse(view.at) / 1000)}.`),
    element("ul", {}, ...view.why.map((why) => element("li", {}, why.text))),
    element("h3", {}, "Candidates"),
    candidates(view),
    element("h3", {}, "What happened"),
    facts([
      ["request", `${state}${status ? `, status ${status}` : ""}${error ? `: ${error}` : ""}`],
      ["sent", `${seconds(view.outcome.queued_s ?? 0)} after the decision`],
      ["first byte, end", `${seconds(view.outcome.first_byte_s)}, ${seconds(view.outcome.total_s)}`],
      ["cached tokens", `${count(reported.cached_tokens ?? null)}, ${count(view.matched_tokens)} expected`],
      ["prompt tokens", `${count(reported.prompt_tokens ?? null)}, ${count(view.prompt_tokens)} estimated`],
      ["queue", `${seconds(reported.queue_s)}, ${seconds(served?.wait_s)} expected`],
      ["prefill", `${seconds(reported.prefill_s)}, ${seconds(served?.prefill_s)} expected`],
    ]),
  ];
}

function candidates(view) {
  const every = view.candidates;
  const holders = [...every].sort((a, b) => b.matched_tokens - a.matched_tokens).slice(0, 3);
  const shown = every.filter((one, at) => at < BEST || (holders.includes(one) && one.matched_tokens));
  const tiers = TIERS.filter((tier) => shown.some((one) => one.tiers[tier]));
  const heads = ["", "node", "cost", "work", "wait", "drag", "load", "report age", ...tiers.map((tier) => `${tier} tokens`)];
  const rows = shown.map((one) => {
    const cells = [
      seconds(one.cost_s),
      seconds(one.work_s),
      seconds(one.wait_s),
      seconds(one.drag_s),
      percent(one.load, 1),
      seconds(one.report_age_s),
      ...tiers.map((tier) => count(one.tiers[tier])),
    ].map((text) => element("td", { class: "number" }, text));
    if (one.full) cells[4].classList.add("bad");
    const chosen = one.node === view.node;
    const known = one.summary === "known" ? "" : ` (${one.summary})`;
    return element(
      "tr",
      { class: chosen ? "chosen" : "" },
      element("td", {}, chosen ? "chosen" : String(every.indexOf(one) + 1)),
      element("th", { scope: "row" }, one.node + known),
      ...cells,
    );
  });
  const head = element("tr", {}, ...heads.map((name, at) => element("th", { scope: "col", class: at > 1 ? "number" : "" }, name)));
  const table = element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows));
  const more = every.length - shown.length;
  return element(
    "div",
    {},
    element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Candidates" }, table),
    element("p", { class: "note" }, `${more ? `${more} more candidates. ` : ""}Cost is work plus ${view.weight.toFixed(2)} times wait and drag.`),
  );
}
