// Charts over time: lines with axes, units and a reading under the pointer, and sparklines for tables. SVG.

import { h, put, s, set, text } from "./dom.js";
import { clock } from "./format.js";
import { ticks } from "./river/geometry.js";

const LEFT = 58;
const BOTTOM = 22;
const TOP = 10;

const path = (points) => points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");

/** A line of the last hour for a table's cell: `values` are [ms, value]. */
export function sparkline(svg, values, from, to, { width = 120, height = 26 } = {}) {
  const most = Math.max(1e-9, ...values.map(([, value]) => value));
  const points = values.map(([at, value]) => [
    ((at - from) / (to - from)) * width,
    height - 1.5 - (value / most) * (height - 4),
  ]);
  set(svg, "viewBox", `0 0 ${width} ${height}`);
  const line = points.length > 1 ? path(points) : "";
  const first = svg.firstChild ?? svg.appendChild(s("path", { class: "spark-area" }));
  const second = first.nextSibling ?? svg.appendChild(s("path", { class: "spark-line" }));
  set(
    first,
    "d",
    line ? `${line}L${points[points.length - 1][0].toFixed(1)} ${height}L${points[0][0].toFixed(1)} ${height}Z` : "",
  );
  set(second, "d", line || `M0 ${height - 1.5}H${width}`);
}

/** 0 and two to four round numbers above it, the last not below `most`. Pure. */
export function rulings(most) {
  const power = 10 ** Math.floor(Math.log10(Math.max(1, most)));
  const step = [0.2, 0.5, 1, 2, 5].map((one) => one * power).find((one) => Math.max(1, most) / one <= 4);
  const found = [0, step];
  while (found[found.length - 1] < most || found.length < 3) found.push(found.length * step);
  return found;
}

/** One chart: `series` are { name, className, at: index of the value in a sample }. */
export class TimeChart {
  constructor({ title, unit, format, series, empty }) {
    Object.assign(this, { format, series, samples: [] });
    this.svg = s("svg", { class: "chart-plot", role: "img" });
    this.reading = h("span", { class: "reading" });
    const key =
      series.length > 1
        ? h(
            "span",
            { class: "key" },
            series.map((one) => h("span", { class: `key-${one.className}` }, one.name)),
          )
        : null;
    this.empty = h("p", { class: "chart-empty" }, empty);
    this.title = title;
    this.element = h(
      "section",
      { class: "card chart" },
      h("h2", {}, title, h("span", { class: "unit" }, unit)),
      h("div", { class: "chart-head" }, key, this.reading),
      this.svg,
      this.empty,
    );
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => this.point(null));
    this.sizes = new ResizeObserver(() => this.draw());
    this.sizes.observe(this.element);
  }

  close() {
    this.sizes.disconnect();
  }

  show(samples, from, to) {
    Object.assign(this, { samples, from, to });
    this.draw();
  }

  draw() {
    const width = this.svg.clientWidth || this.element.clientWidth - 32;
    const height = 150;
    const isEmpty = this.samples.length < 2;
    this.empty.hidden = !isEmpty;
    this.svg.style.display = isEmpty ? "none" : "";
    if (isEmpty || width < 80) return;
    const values = this.samples.flatMap((sample) => this.series.map((one) => sample[one.at]));
    const rules = rulings(Math.max(...values));
    const most = rules[rules.length - 1];
    const x = (at) => LEFT + ((at - this.from) / (this.to - this.from)) * (width - LEFT - 8);
    const y = (value) => TOP + (1 - value / most) * (height - TOP - BOTTOM);
    Object.assign(this, { x, y, width, height });
    set(this.svg, "viewBox", `0 0 ${width} ${height}`);
    set(this.svg, "height", height);
    const zone = -new Date().getTimezoneOffset() * 60_000;
    this.cross = s("line", { class: "cross", y1: TOP, y2: height - BOTTOM, visibility: "hidden" });
    put(
      this.svg,
      rules.map((value) => [
        s("line", { x1: LEFT, x2: width - 8, y1: y(value), y2: y(value), class: "gridline" }),
        s("text", { x: LEFT - 8, y: y(value) + 4, class: "tick-label", "text-anchor": "end" }, this.format(value)),
      ]),
      ticks(this.from, this.to, Math.max(2, Math.floor(width / 110)), zone)
        .filter((ms) => x(ms) > LEFT + 10 && x(ms) < width - 24)
        .map((ms) => s("text", { x: x(ms), y: height - 5, class: "tick-label", "text-anchor": "middle" }, clock(ms, ms % 60_000 !== 0))),
      this.series.map((one) => this.curve(one, y(0))),
      this.cross,
    );
    const last = this.samples[this.samples.length - 1];
    set(this.svg, "aria-label", `${this.title} over time; now ${this.said(last)}`);
    if (!this.pointed) text(this.reading, this.said(last));
  }

  curve(one, ground) {
    const points = this.samples.map((sample) => [Math.max(LEFT, this.x(sample[0])), this.y(sample[one.at])]);
    const line = path(points);
    const area = `${line}L${points[points.length - 1][0].toFixed(1)} ${ground}L${points[0][0].toFixed(1)} ${ground}Z`;
    return [
      s("path", { d: area, class: `area ${one.className}` }),
      s("path", { d: line, class: `line ${one.className}` }),
    ];
  }

  said(sample) {
    return this.series
      .map((one) => `${this.series.length > 1 ? `${one.name} ` : ""}${this.format(sample[one.at])}`)
      .join(" · ");
  }

  point(event) {
    this.pointed = Boolean(event);
    if (!this.samples.length || !this.x) return;
    if (!event) {
      set(this.cross, "visibility", "hidden");
      text(this.reading, this.said(this.samples[this.samples.length - 1]));
      return;
    }
    const at = event.clientX - this.svg.getBoundingClientRect().left;
    const sample = this.samples.reduce((best, one) =>
      Math.abs(this.x(one[0]) - at) < Math.abs(this.x(best[0]) - at) ? one : best,
    );
    set(this.cross, "visibility", "visible");
    set(this.cross, "x1", this.x(sample[0]));
    set(this.cross, "x2", this.x(sample[0]));
    text(this.reading, `${clock(sample[0], true)}: ${this.said(sample)}`);
  }
}
