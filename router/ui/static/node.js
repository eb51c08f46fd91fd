// One node: where it is, what it serves, and the prefixes that are pinned there.

import { ask } from "./api.js";
import { detail, fill } from "./detail.js";
import { element, facts } from "./dom.js";
import { count, seconds } from "./format.js";

/** `find()` gives the node as the fleet has it, or nothing if there is none of that name. */
export function inspect(name, find, actions) {
  const load = async () => {
    const node = find();
    if (!node) throw new Error(`no node is named '${name}'`);
    const { pins } = await ask(`pins/${encodeURIComponent(name)}`).catch((error) => ({ pins: error }));
    return told(node, pins, (pin) => (node.acts ? actions.ofPin(name, pin, () => fill(load)) : []));
  };
  return detail(`Node ${name}`, load);
}

function told(node, pins, buttons) {
  return [
    facts([
      ["address", node.url],
      ["state", node.state + (node.error ? `: ${node.error}` : "")],
      ["models", node.models ? node.models.join(", ") || "not known yet" : "any"],
    ]),
    element("h3", {}, "Pinned prefixes"),
    pins instanceof Error
      ? element("p", { role: "alert", class: "bad" }, pins.message)
      : pins.length ? table(pins, buttons) : element("p", { class: "note" }, "None."),
  ];
}

function table(pins, buttons) {
  const heads = ["pin", "tokens", "pages there", "ends in", ""].map((name, at) =>
    element("th", { scope: "col", class: at && at < 4 ? "number" : "" }, name),
  );
  const rows = pins.map((pin) =>
    element(
      "tr",
      {},
      element("th", { scope: "row", class: "key-id" }, pin.id),
      element("td", { class: "number" }, count(pin.tokens)),
      element("td", { class: "number" }, `${count(pin.held)} / ${count(pin.pages)}`),
      element("td", { class: "number" }, ends(pin)),
      element("td", { class: "acts" }, ...buttons(pin)),
    ),
  );
  const body = element("table", {}, element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...rows));
  return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Pinned prefixes" }, body);
}

const ends = ({ expires_in, lasting }) => (expires_in === null ? "never" : seconds(expires_in)) + (lasting ? "" : ", or a restart");
