// The stream of decisions, the newest first.

import { byId, button, element, Table } from "./dom.js";
import { clock, count, seconds } from "./format.js";

const WORDS = {
  cost: "least cost", near_tie: "near tie", only: "only node", load_limit: "hit given up for load",
  all_full: "all full", room: "had room", blind: "blind", retry: "retried",
};

export class Decisions {
  /** `open(id)` shows the explanation. */
  constructor(open) {
    this.table = new Table(
      byId("decision-table"),
      [
        { name: "time", show: (row) => clock(row.at) },
        {
          name: "request",
          head: true,
          same: (row) => row.id,
          show: (row) => [button(row.id, () => open(row.id), { class: "link id", "aria-haspopup": "dialog" })],
        },
        { name: "node", show: (row) => row.node ?? "–" },
        { name: "tokens", kind: "number", show: (row) => count(row.tokens) },
        { name: "expected", kind: "number", show: (row) => count(row.matched) },
        { name: "found", kind: "number", show: (row) => count(row.cached) },
        { name: "first byte", kind: "number", show: (row) => seconds(row.first_byte_s) },
        { name: "in all", kind: "number", show: (row) => seconds(row.total_s) },
        {
          name: "outcome",
          same: (row) => `${row.state} ${row.status} ${row.error}`,
          show: (row) => [
            element("span", { class: row.state === "failed" ? "bad" : "", title: row.error ?? "" }, row.state === "done" ? String(row.status) : row.state),
          ],
        },
        { name: "why", kind: "wide", show: (row) => row.why.map((reason) => WORDS[reason] ?? reason).join(", ") },
      ],
      { caption: "Decisions, the newest first; a request's button opens its explanation" },
    );
  }

  write(view) {
    if (byId("pause").checked) return;
    // Clients may give several requests one id: together with the time it is a key.
    this.table.write(view.decisions.map((row) => ({ ...row, key: `${row.id} ${row.at.toFixed(1)}` })));
  }
}
