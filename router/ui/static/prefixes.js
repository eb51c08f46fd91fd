// The tree of hot prefixes: what many requests begin with, where it lives, and what it saves.

import { byId, element, setText, Table } from "./dom.js";
import { compact, count, percent, seconds } from "./format.js";

const TIERS = ["device", "host", "disk", "claimed"];
const SAYS = { device: "on the device", host: "in host memory", disk: "on disk", claimed: "assumed" };

export class Prefixes {
  constructor(actions) {
    this.table = new Table(
      byId("prefix-table"),
      [
        {
          name: "ends with key",
          head: true,
          same: (row) => row.branch + row.level,
          show: (row) => [
            element("span", { class: "branch", "aria-hidden": "true" }, row.branch),
            element("span", { class: "key-id" }, row.key),
            element("span", { class: "unseen" }, `, level ${row.level}`),
          ],
        },
        { name: "model", show: (row) => row.model },
        { name: "tokens", kind: "number", show: (row) => compact(row.tokens) },
        { name: "requests", kind: "number", show: (row) => count(row.requests) },
        { name: "found", kind: "number", show: (row) => percent(row.found, 1) },
        { name: "saves, tok/min", kind: "number", show: (row) => compact(Math.round(row.perMinute * row.saved_tokens)) },
        { name: "prefill saved", kind: "number", show: (row) => `${seconds(row.perMinute * row.saved_s)} /min` },
        { name: "lives on", kind: "wide", same: (row) => `${row.holders} ${JSON.stringify(row.where)}`, show: where },
        { name: "actions", kind: "acts", same: (row) => `${row.acts} ${row.tokens} ${row.where[0]?.[0]}`, show: (row) => (row.acts ? actions.ofPrefix(row) : []) },
      ],
      { caption: "Prefixes that many requests share, as a tree: each row's parent is the last row above it of one level less" },
    );
  }

  write(view) {
    const { found, requests, span_s } = view.prefixes;
    setText(
      byId("prefix-note"),
      found.length
        ? `Of the last ${count(requests)} requests, in ${seconds(span_s)}. Each row goes on from its parent, whose requests include its own.`
        : "No prefix is shared by the last requests yet.",
    );
    byId("prefix-table").classList.toggle("reads", !view.acts);
    const perMinute = 60 / Math.max(span_s, 60);
    this.table.write(ordered(found).map((row) => ({ ...row, perMinute, acts: view.acts })));
  }
}

function where(row) {
  if (!row.holders) return ["nowhere any more"];
  const named = row.where.map(([name, ...tokens]) => {
    const tier = tokens.indexOf(Math.max(...tokens));
    const held = tokens.map((some, at) => (some ? `${count(some)} ${SAYS[TIERS[at]]}` : "")).filter(Boolean).join(", ");
    const all = tokens.reduce((total, some) => total + some, 0);
    return element("span", { class: TIERS[tier], title: `${held} of ${count(row.tokens)} tokens` }, `${name} ${compact(all)}`);
  });
  const more = row.holders - row.where.length;
  return [element("span", { class: "where" }, ...named), ...(more > 0 ? [` and ${count(more)} more`] : [])];
}

/** Children behind their parents, with what draws the tree's branches. */
function ordered(found) {
  const children = new Map();
  found.forEach((row, at) => children.set(row.parent, [...(children.get(row.parent) ?? []), at]));
  const rows = [];
  const add = (at, level, before, last) => {
    const branch = level === 1 ? "" : `${before}${last ? "└ " : "├ "}`;
    rows.push({ ...found[at], level, branch });
    const below = children.get(at) ?? [];
    const deeper = level === 1 ? "" : `${before}${last ? "  " : "│ "}`;
    below.forEach((child, number) => add(child, level + 1, deeper, number === below.length - 1));
  };
  (children.get(null) ?? []).forEach((at) => add(at, 1, "", true));
  return rows;
}
