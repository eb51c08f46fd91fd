// The last hour as lines. Each chart says its newest values in words, and any others under the pointer or the arrow keys.

import { byId, drawing, element, setText } from "./dom.js";
import { clock, count, percent, seconds } from "./format.js";

const WIDTH = 600, HEIGHT = 170, LEFT = 52, RIGHT = 8, TOP = 8, BOTTOM = 20;
const HOUR_S = 3600;

const share = (part, total) => (total ? part / total : null);

const CHARTS = [
  {
    title: "Time to first token",
    note: "of streamed responses",
    say: seconds,
    lines: [
      { name: "p50", kind: "one", of: (step) => step.ttft_s?.[0] ?? null },
      { name: "p90", kind: "two", of: (step) => step.ttft_s?.[1] ?? null },
      { name: "p99", kind: "three", of: (step) => step.ttft_s?.[2] ?? null },
    ],
  },
  {
    title: "Hit ratio",
    note: "tokens of prompts not computed again",
    say: (value) => (value === null ? "–" : percent(value, 1)),
    most: 1,
    lines: [
      { name: "really found", kind: "one", of: (step) => share(step.cached, step.checked) },
      { name: "expected", kind: "two dashed", of: (step) => share(step.expected, step.placed) },
    ],
  },
  {
    title: "Requests",
    note: "in 10 s",
    say: (value) => count(value === null ? null : Math.round(value)),
    whole: true,
    lines: [
      { name: "ended", kind: "one", of: (step) => step.requests },
      { name: "failed", kind: "three dashed", of: (step) => step.failed },
    ],
  },
];

/** The history's steps as objects. */
export function steps(history) {
  return history.steps.map((values) => Object.fromEntries(history.fields.map((field, at) => [field, values[at]])));
}

/** Of the newest steps: what the totals show; null before the first. */
export function latest(list, step_s) {
  if (!list.length) return null;
  const last = list.at(-1), recent = list.slice(-60);
  return {
    rate: last.requests / step_s,
    failed: last.failed,
    p50: last.ttft_s?.[0] ?? null,
    p99: last.ttft_s?.[2] ?? null,
    cached: recent.reduce((total, step) => total + step.cached, 0),
    checked: recent.reduce((total, step) => total + step.checked, 0),
  };
}

class Chart {
  constructor(settings) {
    this.settings = settings;
    this.list = [];
    this.at = null;
    this.values = settings.lines.map((line) => element("span", { class: `key ${line.kind}` }));
    this.when = element("span", { class: "note" });
    this.caption = element("figcaption", {}, element("strong", {}, settings.title), ...this.values, this.when);
    this.svg = drawing("svg", { class: "chart", role: "img", tabindex: "0", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none" });
    // Drawn at its real width, so that text is not stretched.
    new ResizeObserver(() => this.draw()).observe(this.svg);
    this.svg.addEventListener("pointermove", (event) => this.point(event.offsetX));
    this.svg.addEventListener("pointerleave", () => this.move(null));
    this.svg.addEventListener("blur", () => this.move(null));
    this.svg.addEventListener("keydown", (event) => this.key(event));
    byId("figures").append(element("figure", {}, this.caption, this.svg));
  }

  write(list) {
    this.list = list;
    this.at = null;
    this.draw();
  }

  draw() {
    const width = this.svg.clientWidth || WIDTH;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    const values = this.settings.lines.flatMap((line) => this.list.map(line.of)).filter((value) => value !== null);
    const most = this.settings.most ?? nice(Math.max(...values, this.settings.whole ? 4 : 0.001));
    const end = this.list.at(-1)?.at ?? Date.now() / 1000;
    this.x = (step) => width - RIGHT - ((end - step.at) / HOUR_S) * (width - LEFT - RIGHT);
    const y = (value) => HEIGHT - BOTTOM - (Math.min(value, most) / most) * (HEIGHT - TOP - BOTTOM);
    const parts = [];
    for (const part of [0, 0.5, 1]) {
      const at = y(part * most);
      parts.push(drawing("line", { x1: LEFT, x2: width - RIGHT, y1: at, y2: at }));
      parts.push(drawing("text", { x: LEFT - 6, y: at + 4, "text-anchor": "end" }, this.settings.say(part * most)));
    }
    for (const minutes of width < 400 ? [60, 30, 0] : [60, 45, 30, 15, 0]) {
      const at = width - RIGHT - (minutes / 60) * (width - LEFT - RIGHT);
      const anchor = minutes === 60 ? "start" : minutes ? "middle" : "end";
      parts.push(drawing("text", { x: at, y: HEIGHT - 5, "text-anchor": anchor }, minutes ? `−${minutes} min` : "now"));
    }
    for (const line of this.settings.lines) {
      parts.push(drawing("path", { class: line.kind, d: trace(this.list, line.of, this.x, y) }));
    }
    this.cursor = drawing("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
    this.svg.replaceChildren(...parts, this.cursor);
    this.tell();
  }

  tell() {
    const step = this.list[this.at ?? this.list.length - 1];
    const words = this.settings.lines.map((line) => `${line.name} ${step ? this.settings.say(line.of(step)) : "–"}`);
    words.forEach((text, at) => setText(this.values[at], text));
    const note = this.list.length ? this.settings.note : "from ten seconds after the router's start";
    setText(this.when, this.at === null ? note : `at ${clock(step.at)}`);
    const when = this.at === null ? "now" : `at ${clock(step.at)}`;
    this.svg.setAttribute("aria-label", `${this.settings.title} ${when}: ${words.join(", ")}. Arrow keys go back in time.`);
    this.cursor.setAttribute("visibility", this.at === null ? "hidden" : "visible");
    if (this.at !== null) {
      this.cursor.setAttribute("x1", this.x(step));
      this.cursor.setAttribute("x2", this.x(step));
    }
  }

  move(at) {
    this.at = at === null || !this.list.length ? null : Math.max(0, Math.min(this.list.length - 1, at));
    this.tell();
  }

  point(x) {
    const near = this.list.reduce((best, step, at) => {
      const far = Math.abs(this.x(step) - x);
      return far < best.far ? { at, far } : best;
    }, { at: null, far: Infinity });
    this.move(near.at);
  }

  key(event) {
    const newest = this.list.length - 1, now = this.at ?? newest;
    const to = { ArrowLeft: now - 1, ArrowRight: now + 1, PageUp: now - 30, PageDown: now + 30, Home: 0, End: newest }[event.key];
    if (event.key === "Escape") this.move(null);
    else if (to !== undefined) this.move(to);
    else return;
    event.preventDefault();
    if (this.at !== null) setText(byId("news"), this.svg.getAttribute("aria-label").replace(/ Arrow.*/, ""));
  }
}

/** A line that is broken where there is no value. */
function trace(list, of, x, y) {
  let path = "", drawing = false;
  list.forEach((step, at) => {
    const value = of(step);
    if (value === null) {
      drawing = false;
      return;
    }
    const gap = at && step.at - list[at - 1].at > 60;
    path += `${drawing && !gap ? "L" : "M"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`;
    if (!drawing) path += "h0.1"; // A single value is a dot.
    drawing = true;
  });
  return path;
}

/** The next number of one digit and zeros, of which a half is good to read. */
function nice(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 3, 4, 6, 8, 10].map((step) => step * power).find((step) => step >= value) ?? 10 * power;
}

export class Charts {
  constructor() {
    this.charts = CHARTS.map((settings) => new Chart(settings));
  }

  write(list) {
    for (const chart of this.charts) chart.write(list);
  }
}
