// What changes something. Offered only where the router has an admin token, which it then wanted for reading, too.

import { ask } from "./api.js";
import { button, byId, setText } from "./dom.js";
import { clock } from "./format.js";

const PIN_S = 3600;

export class Actions {
  /** `done()` is called after each. */
  constructor(done) {
    this.done = done;
  }

  /** Buttons for a node. */
  ofNode({ name, state }) {
    const path = encodeURIComponent(name);
    const drain = {
      title: `Drain ${name}?`,
      text: "It gets no new requests, ends what runs, and hands its warm prefixes to other nodes.",
      yes: "Drain it",
      path: `drain/${path}`,
      method: "POST",
      said: (status) => `${name} drains: ${status.running} requests are still under way there.`,
    };
    const resume = {
      title: `Put ${name} back into service?`,
      text: "It gets new requests again.",
      yes: "Put it back",
      path: `drain/${path}`,
      method: "DELETE",
      said: () => `${name} is to get requests again.`,
    };
    const clear = {
      title: `Clear the cache of ${name}?`,
      text: "Nothing is found in any of its tiers after that, and its prompts are computed anew. Requests under way go on.",
      yes: "Clear it",
      path: `cache/${path}`,
      method: "DELETE",
      said: () => `The cache of ${name} is empty.`,
    };
    const buttons = [this.offer("Clear", `Clear the cache of ${name}`, clear)];
    if (state === "ready") buttons.unshift(this.offer("Drain", `Drain ${name}`, drain));
    if (state === "draining") buttons.unshift(this.offer("Resume", `Resume ${name}`, resume));
    return buttons;
  }

  /** Buttons for a prefix: it is pinned where most of it is. */
  ofPrefix({ key, where, tokens }) {
    if (!where.length) return [];
    const [[name]] = where;
    const pin = {
      title: `Pin this prefix on ${name}?`,
      text: `For an hour its ${tokens} tokens stay there while others can go.`,
      yes: "Pin it",
      path: `pins/${encodeURIComponent(name)}`,
      method: "POST",
      body: { key, ttl: PIN_S },
      said: (pinned) => `${name} keeps ${pinned.pages} pages until ${clock(Date.now() / 1000 + pinned.expires_in)}.`,
    };
    return [this.offer("Pin", `Pin ${key} on ${name}`, pin)];
  }

  /** A button for a pin; `after()` shows those that are left. */
  ofPin(node, { id, tokens }, after) {
    const unpin = {
      title: `Unpin this prefix on ${node}?`,
      text: `Its ${tokens} tokens may go as others do.`,
      yes: "Unpin it",
      path: `pins/${encodeURIComponent(node)}/${encodeURIComponent(id)}`,
      method: "DELETE",
      said: () => `${node} lets the prefix go as others.`,
      after,
    };
    return [this.offer("Unpin", `Unpin ${id} on ${node}`, unpin)];
  }

  offer(text, label, action) {
    return button(text, () => this.act(action), { class: "small", "aria-label": label, "aria-haspopup": "dialog" });
  }

  async act({ title, text, yes, path, method, body, said, after = this.done }) {
    if (!(await confirmed(title, text, yes))) return;
    try {
      tell(said(await ask(path, { method, body })), false);
    } catch (error) {
      tell(error.message, true);
    }
    after();
  }
}

function tell(text, wrong) {
  const where = byId(byId("detail").open ? "detail-outcome" : "outcome");
  where.classList.toggle("bad", wrong);
  setText(where, text);
}

/** Asks; the focus is on "Cancel". */
function confirmed(title, text, yes) {
  const dialog = byId("confirmation");
  setText(byId("confirmation-title"), title);
  setText(byId("confirmation-text"), text);
  setText(byId("confirmation-yes"), yes);
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}
