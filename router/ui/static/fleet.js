// The fleet at a glance: totals, what is wrong, and the nodes.

import { byId, button, element, meter, setText, Table } from "./dom.js";
import { compact, count, percent, seconds } from "./format.js";

const LATE_S = 2;
const STATES = { ready: "good", joining: "warn", draining: "warn", unready: "warn", down: "bad" };
const NAMED = 4;

const level = (node) => (node.state === "ready" ? (node.summary === "exact" && !late(node) ? "good" : "warn") : STATES[node.state]);
const late = (node) => node.report_s !== null && node.report_s > LATE_S;
const rank = { bad: 0, warn: 1, good: 2 };

function problem(node) {
  if (node.state !== "ready") return node.state;
  if (late(node)) return `no load report for over ${LATE_S} s`;
  return node.summary === "assumed" ? "no events, so what it holds is only assumed" : `summary ${node.summary}`;
}

/** Nodes with the same problem are one line: when the network goes, two hundred of them have it. */
function problems(nodes) {
  const groups = new Map();
  for (const node of nodes.filter((one) => level(one) !== "good")) {
    groups.set(problem(node), [...(groups.get(problem(node)) ?? []), node]);
  }
  return [...groups].map(([what, those]) => {
    const names = those.slice(0, NAMED).map((node) => node.name + (node.error ? ` (${node.error})` : ""));
    const more = those.length > NAMED ? ` and ${those.length - NAMED} more` : "";
    return [level(those[0]), `${what}: ${names.join(", ")}${more}`];
  }).sort(([a], [b]) => rank[a] - rank[b]);
}

const tier = (name) => ({
  name,
  kind: "number",
  sort: (node) => node.tiers[name]?.[0] ?? null,
  same: (node) => String(node.tiers[name] ?? ""),
  show: (node) => {
    const pages = node.tiers[name];
    return pages ? [`${compact(pages[0])} / ${compact(pages[1])}`, meter(pages[0] / (pages[1] || 1), name)] : ["–"];
  },
});

function stale(node) {
  if (node.heard_s === null) return node.summary;
  return `${node.summary}, ${node.heard_s < 1 ? "< 1 s" : seconds(Math.round(node.heard_s))}`;
}

export class Fleet {
  /** `open(name)` says more of a node. */
  constructor(actions, open) {
    this.nodes = [];
    this.totals = new Map();
    this.wrong = null;
    this.table = new Table(
      byId("node-table"),
      [
        {
          name: "node",
          head: true,
          sort: (node) => node.name,
          same: (node) => node.name,
          show: (node) => [button(node.name, () => open(node.name), { class: "link", "aria-haspopup": "dialog" })],
        },
        {
          name: "state",
          sort: (node) => rank[level(node)],
          same: (node) => node.state + node.error,
          show: (node) => [element("span", { class: `state ${STATES[node.state]}`, title: node.error }, node.state)],
        },
        {
          name: "summary, heard",
          sort: (node) => (node.summary === "exact" ? 0 : 100) + (node.heard_s ?? 0),
          same: stale,
          show: (node) => [element("span", { class: node.summary === "exact" ? "" : "warn" }, stale(node))],
        },
        {
          name: "load",
          kind: "number",
          sort: (node) => node.fill,
          same: (node) => `${node.running} ${node.most} ${node.fill}`,
          show: (node) => [
            `${count(node.running)}${node.most ? ` / ${count(node.most)}` : ""}`,
            meter(node.fill, node.fill > 0.9 ? "full" : "device"),
          ],
        },
        { name: "waiting", kind: "number", sort: (node) => node.waiting, show: (node) => count(node.waiting) },
        { name: "wait", kind: "number", sort: (node) => node.wait_s, show: (node) => seconds(node.wait_s) },
        tier("device"),
        tier("host"),
        tier("disk"),
        {
          name: "hit ratio",
          kind: "number",
          sort: (node) => (node.prompt_tokens ? node.cached_tokens / node.prompt_tokens : null),
          show: (node) => percent(node.cached_tokens, node.prompt_tokens),
        },
        { name: "prefill tok/s", kind: "number", sort: (node) => node.prefill_rate, show: (node) => compact(node.prefill_rate) },
        { name: "decode tok/s", kind: "number", sort: (node) => node.decode_rate, show: (node) => compact(node.decode_rate) },
        {
          name: "actions",
          kind: "acts",
          same: (node) => `${node.acts} ${node.state}`,
          show: (node) => (node.acts ? actions.ofNode(node) : []),
        },
      ],
      { caption: "Nodes with state, summary, load, pages in each tier, and hit ratio", sorted: { column: "state", down: false } },
    );
    byId("node-filter").addEventListener("input", () => this.list());
  }

  write(view, last) {
    this.nodes = view.nodes.map((node) => ({ ...node, key: node.url, acts: view.acts }));
    this.summarise(view, last);
    this.complain(view);
    this.map();
    this.list();
    byId("node-table").classList.toggle("reads", !view.acts);
  }

  summarise(view, last) {
    const ready = view.nodes.filter((node) => node.state === "ready").length;
    const device = sum(view.nodes, (node) => node.tiers.device?.[0] ?? 0);
    const room = sum(view.nodes, (node) => node.tiers.device?.[1] ?? 0);
    this.total("nodes ready", `${count(ready)} / ${count(view.nodes.length)}`);
    this.total("under way", count(view.router.inflight), `${count(view.router.held)} held here`);
    this.total("requests", last ? `${last.rate.toFixed(1)} /s` : "–", last ? `${count(last.failed)} failed in 10 s` : "");
    this.total("first token, p50", last ? seconds(last.p50) : "–", last ? `p99 ${seconds(last.p99)}` : "");
    this.total("hit ratio", last ? percent(last.cached, last.checked) : "–", "really found, last 10 min");
    this.total("device pages", room ? percent(device, room) : "–", `${compact(device)} of ${compact(room)}`);
  }

  total(name, value, more = "") {
    let known = this.totals.get(name);
    if (!known) {
      known = { value: element("span"), more: element("small") };
      byId("totals").append(element("div", {}, element("dt", {}, name), element("dd", {}, known.value, known.more)));
      this.totals.set(name, known);
    }
    setText(known.value, value);
    setText(known.more, more);
  }

  complain(view) {
    const lines = problems(this.nodes);
    for (const text of view.router.lost) lines.unshift(["bad", `lost: ${text}`]);
    const text = JSON.stringify(lines);
    if (text !== this.said) {
      this.said = text;
      byId("problems").replaceChildren(...lines.map(([kind, line]) => element("li", { class: kind }, line)));
    }
    const wrong = this.nodes.filter((node) => level(node) !== "good").length;
    if (wrong !== this.wrong) setText(byId("news"), wrong ? `${wrong} nodes need attention` : "all nodes are well");
    document.title = wrong ? `(${wrong}) Trunkline` : "Trunkline";
    this.wrong = wrong;
  }

  map() {
    const where = byId("map");
    while (where.children.length > this.nodes.length) where.lastChild.remove();
    while (where.children.length < this.nodes.length) where.append(element("i"));
    this.nodes.forEach((node, at) => {
      const cell = where.children[at];
      cell.className = level(node);
      cell.title = `${node.name}: ${node.state}, load ${percent(node.fill, 1)}`;
      cell.style.setProperty("--fill", `${Math.min(100, 100 * node.fill).toFixed(0)}%`);
    });
  }

  list() {
    const wanted = byId("node-filter").value.trim().toLowerCase();
    const found = wanted
      ? this.nodes.filter((node) => `${node.name} ${node.url} ${node.state} ${node.summary}`.toLowerCase().includes(wanted))
      : this.nodes;
    this.table.write(found);
    setText(byId("node-count"), wanted ? `${found.length} of ${this.nodes.length} nodes` : `${this.nodes.length} nodes`);
  }
}

const sum = (rows, of) => rows.reduce((total, row) => total + of(row), 0);
