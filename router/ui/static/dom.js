// Elements and tables. Text goes in as text: nothing here takes markup, so a name with markup in it stays a name.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

/** An element; `attributes` are strings, `children` nodes or text. */
export function element(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

export function drawing(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(made, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

export function setText(where, text) {
  if (where.textContent !== text) where.textContent = text;
}

/** A button and what it does. */
export function button(text, action, attributes = {}) {
  const made = element("button", { type: "button", ...attributes }, text);
  made.addEventListener("click", action);
  return made;
}

/** Names and values. */
export function facts(pairs) {
  return element("dl", { class: "facts" }, ...pairs.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
}

/** A bar that is filled to a share. */
export function meter(share, kind = "device") {
  const inside = element("i");
  inside.style.width = `${Math.min(100, Math.max(0, 100 * share)).toFixed(0)}%`;
  return element("span", { class: `meter ${kind}`, "aria-hidden": "true" }, inside);
}

/**
 * A table whose rows are kept while their keys last, and written only where they changed.
 *
 * A column has `name`, `show(row)` that gives text or nodes, and, as it needs them: `head` (its cell is the row's
 * header), `kind` (classes), `sort(row)` that gives what the column sorts by, `same(row)` that gives what the nodes of
 * `show` depend on.
 */
export class Table {
  constructor(where, columns, { caption, sorted = null }) {
    this.columns = columns;
    this.body = where.tBodies[0];
    this.kept = new Map();
    this.rows = [];
    this.by = sorted;
    where.classList.add("cards");
    // Said again, since rows that are laid out as cards are no table rows to every browser.
    where.setAttribute("role", "table");
    for (const group of [where.tHead, this.body]) group.setAttribute("role", "rowgroup");
    where.prepend(element("caption", { class: "unseen" }, caption));
    this.heads = columns.map((column) => {
      const head = element("th", { scope: "col", role: "columnheader", class: column.kind ?? "" });
      head.append(column.sort ? button(column.name, () => this.sort(column)) : column.name);
      return head;
    });
    where.tHead.append(element("tr", { role: "row" }, ...this.heads));
    this.tell();
  }

  sort(column) {
    const again = this.by?.column === column.name;
    this.by = { column: column.name, down: again ? !this.by.down : column.kind?.includes("number") ?? false };
    this.tell();
    this.write(this.rows);
  }

  tell() {
    this.columns.forEach((column, at) => {
      if (!column.sort) return;
      const order = this.by?.column !== column.name ? "none" : this.by.down ? "descending" : "ascending";
      this.heads[at].setAttribute("aria-sort", order);
    });
  }

  /** `rows` have a `key` each. */
  write(rows) {
    this.rows = rows;
    const by = this.by && this.columns.find((column) => column.name === this.by.column);
    if (by) {
      const way = this.by.down ? -1 : 1;
      rows = [...rows].sort((a, b) => way * compare(by.sort(a), by.sort(b)));
    }
    const before = this.kept;
    this.kept = new Map();
    rows.forEach((row, at) => {
      const known = before.get(row.key) ?? this.made();
      before.delete(row.key);
      this.kept.set(row.key, known);
      this.columns.forEach((column, place) => this.fill(known, column, place, row));
      if (this.body.children[at] !== known.line) this.body.insertBefore(known.line, this.body.children[at] ?? null);
    });
    for (const { line } of before.values()) line.remove();
  }

  made() {
    const cells = this.columns.map((column) => {
      const cell = column.head
        ? element("th", { scope: "row", role: "rowheader" })
        : element("td", { role: "cell", "data-name": column.name });
      cell.className = column.kind ?? "";
      return cell;
    });
    return { line: element("tr", { role: "row" }, ...cells), cells, was: [] };
  }

  fill(known, column, place, row) {
    const shown = column.same ? null : column.show(row);
    const now = column.same ? column.same(row) : shown;
    if (known.was[place] === now) return;
    known.was[place] = now;
    const parts = [column.same ? column.show(row) : shown].flat();
    known.cells[place].replaceChildren(...parts);
    known.cells[place].classList.toggle("empty", parts.length === 0 || parts[0] === "–");
  }
}

function compare(a, b) {
  if (a === b) return 0;
  if (a === null || a === undefined) return 1;
  if (b === null || b === undefined) return -1;
  return typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b;
}
