// The dialog that says more of one thing.

import { byId, element, setText } from "./dom.js";

/** Opens it with the nodes that `load()` gives; the focus goes back where it came from when it closes. */
export async function detail(title, load) {
  const dialog = byId("detail"), body = byId("detail-body");
  setText(byId("detail-title"), title);
  setText(byId("detail-outcome"), "");
  body.replaceChildren(element("p", { role: "status" }, "Loading…"));
  if (!dialog.open) dialog.showModal();
  await fill(load);
}

/** Writes what it shows anew. */
export async function fill(load) {
  let parts;
  try {
    parts = await load();
  } catch (error) {
    parts = [element("p", { role: "alert", class: "bad" }, error.message)];
  }
  byId("detail-body").replaceChildren(...parts);
}
