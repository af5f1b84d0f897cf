// The river on the page: canvases for the water, buttons for what happened, and what mouse and keys do.
//
// A picture is laid out and painted when something changed, a few milliseconds a frame, on a canvas behind the one that
// is shown; frames in between only slide it and let the light drift. So an hour of 64 segments costs a frame next to
// nothing.

import { h, put, s, set, text } from "../dom.js";
import { byteRate, clock, hex, messageRate, percent, range } from "../format.js";
import { onTheme, still, theme } from "../theme.js";
import { Flow } from "./flow.js";
import { HASHES, braid, columnAt, roundBelow, streamAt, ticks } from "./geometry.js";
import { changes, drawChanges, drawStays, roving, stays } from "./marks.js";
import { drawMouths, nobody } from "./mouths.js";
import { ink, outline, paintLane, paintStream } from "./paint.js";

const LEFT_PX = 62;
const PAINT_MS_PER_FRAME = 4;
// Answers come every second; after so long without one the river stands still.
const SILENCE_MS = 4000;
const AHEAD_MIN_MS = 2000;
const AHEAD_MIN_PX = 4;

export class RiverView {
  /** `onSelect` hears the segment that was clicked or chosen with the keys, or null. */
  constructor(model, tips, onSelect) {
    Object.assign(this, { model, tips, onSelect });
    this.span = 0;
    this.measure = 0;
    this.subscription = null;
    this.selected = null;
    this.hovered = null;
    this.scale = 0;
    this.flow = new Flow();
    this.frames = 0;
    this.build();
    this.unsubscribe = [onTheme(() => this.change())];
    this.sizes = new ResizeObserver(() => this.resize());
    this.sizes.observe(this.element);
    this.frame = this.frame.bind(this);
    this.request = requestAnimationFrame(this.frame);
  }

  build() {
    this.canvases = [
      h("canvas", { class: "water", "aria-hidden": "true" }),
      h("canvas", { class: "water", "aria-hidden": "true" }),
    ];
    this.live = h("canvas", { class: "light", "aria-hidden": "true" });
    this.grid = s("svg", { class: "grid", "aria-hidden": "true" });
    this.marks = h("div", {
      class: "marks",
      role: "toolbar",
      "aria-label": "Splits and merges, in the order of time. Arrow keys walk along them.",
    });
    this.rail = h("div", {
      class: "rail",
      role: "toolbar",
      "aria-label": "Why nothing was done, in the order of time. Arrow keys walk along it.",
    });
    this.mouths = s("svg", { class: "mouths", role: "img" });
    this.none = h("div", { class: "nobody-place", hidden: true });
    this.slider = h("div", { class: "slide" }, this.canvases, this.marks);
    this.keys = h("div", {
      class: "plot",
      tabindex: "0",
      role: "application",
      "aria-roledescription": "river of segments",
      "aria-label":
        "River of segments. Arrow up and down choose a segment, left and right follow it to its parents and children, Enter shows its numbers.",
    });
    this.keys.append(this.slider, this.live);
    this.now = h("div", { class: "now", "aria-hidden": "true" }, h("span", {}, "now"));
    this.said = h("div", { class: "unseen", "aria-live": "polite" });
    this.body = h("div", { class: "river-body" }, this.grid, this.keys, this.now, this.rail, this.mouths, this.none);
    this.element = h("div", { class: "river" }, this.body, this.said);
    roving(this.marks);
    roving(this.rail);
    this.keys.addEventListener("pointermove", (event) => this.hover(event));
    this.keys.addEventListener("pointerleave", () => this.leave());
    this.keys.addEventListener("click", (event) => this.click(event));
    this.keys.addEventListener("keydown", (event) => this.key(event));
  }

  close() {
    cancelAnimationFrame(this.request);
    this.sizes.disconnect();
    for (const end of this.unsubscribe) end();
    this.tips.hide();
  }

  // -- what is shown

  /** An answer has come. */
  taken() {
    const { now } = this.model.latest;
    this.clockOffset = now - performance.now();
    this.heard = performance.now();
    if (this.paintedVersion !== this.model.version) this.change();
    else this.drawAround();
  }

  show({ span = this.span, measure = this.measure, subscription = this.subscription }) {
    if (measure !== this.measure) this.scale = 0;
    Object.assign(this, { span, measure, subscription });
    this.change();
  }

  select(id) {
    this.selected = id;
    const segment = this.model.segments.get(id);
    if (segment)
      text(
        this.said,
        `${segment.isActive ? "Segment" : "Sealed segment"} ${id}, ${range(segment)}, ${this.rated(segment.rate[this.measure])}, ${percent(segment.heat)} of its limit`,
      );
  }

  change() {
    this.dirty = true;
  }

  resize() {
    const { clientWidth } = this.body;
    if (!clientWidth) return;
    const isNarrow = clientWidth < 620;
    this.right = isNarrow ? 124 : Math.min(264, Math.max(180, clientWidth * 0.21));
    this.width = Math.max(120, clientWidth - LEFT_PX - this.right);
    this.height = isNarrow ? 360 : 470;
    this.body.style.setProperty("--left", `${LEFT_PX}px`);
    this.body.style.setProperty("--right", `${this.right}px`);
    this.body.style.setProperty("--tall", `${this.height}px`);
    this.ratio = Math.min(2, devicePixelRatio || 1);
    size(this.live, this.width, this.height, this.ratio);
    set(this.mouths, "width", this.right);
    set(this.mouths, "height", this.height);
    set(this.grid, "width", clientWidth);
    set(this.grid, "height", this.height + 50);
    this.change();
  }

  /** The broker's time. It stands still when the broker does not answer: nobody knows what flows then. */
  get time() {
    return Math.min(performance.now(), this.heard + SILENCE_MS) + this.clockOffset;
  }

  get isSilent() {
    return performance.now() > this.heard + SILENCE_MS;
  }

  rated(value) {
    return this.measure === 1 || this.measure === 3 ? byteRate(value) : messageRate(value);
  }

  // -- frames

  frame(at) {
    this.request = requestAnimationFrame(this.frame);
    this.frames += 1;
    if (!this.width || this.clockOffset === undefined || !this.span) return;
    const began = performance.now();
    if (!this.job && (this.dirty || this.hasRunOut())) this.job = this.painting();
    while (this.job && performance.now() - began < PAINT_MS_PER_FRAME) if (this.job.next().done) this.job = null;
    if (this.picture) {
      const seconds = Math.min(0.1, (at - (this.before ?? at)) / 1000);
      this.slide();
      if (!still.matches || this.needsLight) this.paintLight(still.matches || this.isSilent ? 0 : seconds);
    }
    this.before = at;
    this.spent = performance.now() - began;
    this.onFrame?.(this.spent);
  }

  hasRunOut() {
    return !this.picture || this.shift() > (this.picture.width - this.width) * 0.8;
  }

  /** How far the picture has slid to the left since it was laid out, in px. */
  shift() {
    return ((this.time - this.picture.madeAt) / this.span) * this.width;
  }

  slide() {
    const shift = this.shift();
    if (Math.abs(shift - (this.slid ?? -1)) < 0.02) return;
    this.slid = shift;
    this.slider.style.transform = `translateX(${-shift.toFixed(2)}px)`;
  }

  /** Lays out and paints a new picture behind the one that is shown, giving way between streams. */
  *painting() {
    this.dirty = false;
    const version = this.model.version;
    const to = this.time;
    const ahead = Math.max(AHEAD_MIN_MS, (AHEAD_MIN_PX / this.width) * this.span);
    const width = this.width * (1 + ahead / this.span);
    const { height, measure, scale } = this;
    const picture = braid([...this.model.segments.values()], {
      from: to - this.span,
      to: to + ahead,
      width,
      height,
      measure,
      scale,
    });
    picture.madeAt = to;
    yield;
    const canvas = this.canvases[1];
    size(canvas, width, height, this.ratio);
    const context = canvas.getContext("2d");
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    const shade = theme();
    for (const stream of picture.streams.values()) paintLane(context, stream, shade);
    yield;
    for (const stream of picture.streams.values()) {
      paintStream(context, stream, shade);
      yield;
    }
    this.swap(picture, version);
  }

  swap(picture, version) {
    const [shown, fresh] = this.canvases;
    // What only moved on is exchanged; a new shape fades in over the old one.
    const isNewShape =
      this.picture &&
      !still.matches &&
      (picture.scale !== this.picture.scale || picture.joins.length !== this.picture.joins.length);
    fresh.style.zIndex = "1";
    shown.style.zIndex = "0";
    fresh.getAnimations().forEach((animation) => animation.cancel());
    if (isNewShape && this.paintedSpan === this.span)
      fresh.animate([{ opacity: 0 }, { opacity: 1 }], { duration: 450, easing: "ease-out" });
    fresh.style.visibility = "visible";
    if (!isNewShape) shown.style.visibility = "hidden";
    this.canvases = [fresh, shown];
    this.picture = picture;
    this.scale = picture.scale;
    this.paintedVersion = version;
    this.paintedSpan = this.span;
    this.slid = -1;
    this.slide();
    this.flow.follow(picture);
    this.needsLight = true;
    this.drawGrid();
    this.drawAround();
  }

  paintLight(seconds) {
    this.needsLight = false;
    const context = this.live.getContext("2d");
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    context.translate(-this.shift(), 0);
    if (seconds > 0) this.flow.paint(context, seconds, ink(theme()).streak);
    for (const [id, weight] of [
      [this.hovered, 1.25],
      [this.selected, 2],
    ]) {
      const stream = this.picture.streams.get(id);
      if (!stream) continue;
      outline(context, stream);
      context.globalAlpha = 1;
      context.lineWidth = weight;
      context.strokeStyle = ink(theme()).mark;
      context.stroke();
    }
  }

  // -- around the water

  drawGrid() {
    const { picture, height, width } = this;
    const y = (hash) => picture.yOf(hash);
    const lines = [0, 0.25, 0.5, 0.75, 1].map((share) => Math.round(share * HASHES));
    const rows = [];
    let lastY = -100;
    for (const hash of lines) {
      const at = y(hash);
      const isEnd = hash === HASHES;
      if (at - lastY < 13 && !isEnd) continue;
      lastY = at;
      rows.push(s("line", { x1: LEFT_PX - 5, x2: LEFT_PX, y1: at, y2: at, class: "tick" }));
      rows.push(
        s(
          "text",
          { x: LEFT_PX - 8, y: Math.max(9, Math.min(height - 1, at + 4)), class: "tick-label", "text-anchor": "end" },
          hex(isEnd ? HASHES - 1 : hash),
        ),
      );
    }
    const zone = -new Date().getTimezoneOffset() * 60_000;
    const shift = this.shift();
    const times = ticks(picture.from, picture.madeAt, Math.max(3, Math.floor(width / 110)), zone).map((ms) => {
      const x = LEFT_PX + picture.xOf(ms) - shift;
      if (x < LEFT_PX + 14 || x > LEFT_PX + width - 48) return null;
      return [
        s("line", { x1: x, x2: x, y1: 0, y2: height, class: "gridline" }),
        s(
          "text",
          { x, y: height + 16, class: "tick-label", "text-anchor": "middle" },
          clock(ms, this.span < 900_000 && ms % 60_000 !== 0),
        ),
      ];
    });
    put(
      this.grid,
      times,
      rows,
      s(
        "text",
        { class: "axis-name", transform: `translate(12 ${height / 2}) rotate(-90)`, "text-anchor": "middle" },
        "hash of the key",
      ),
    );
  }

  drawAround() {
    if (!this.picture) return;
    const { picture, model, tips } = this;
    const subscriptions = model.latest.subscriptions ?? [];
    const chosen = subscriptions.find((one) => one.name === this.subscription) ?? subscriptions[0] ?? null;
    drawMouths(this.mouths, {
      picture,
      subscription: chosen,
      figures: model.latest.segments,
      theme: theme(),
      width: this.right,
      height: this.height,
    });
    const isRead = chosen && (chosen.consumers.length || chosen.consumerCount);
    this.none.hidden = Boolean(isRead);
    const told = chosen ? `${chosen.name} ${chosen.backlog}` : "";
    if (!isRead && (told !== this.told || !this.none.hasChildNodes())) {
      this.told = told;
      put(this.none, nobody(model.name, chosen));
    }
    set(
      this.mouths,
      "aria-label",
      isRead
        ? `Subscription ${chosen.name}: ${chosen.consumers.length || chosen.consumerCount} consumers`
        : chosen
          ? "No consumer is connected"
          : "Nobody reads this topic",
    );
    drawChanges(this.marks, changes(picture.joins, model.decisions), picture, tips);
    this.marks.classList.toggle("dense", picture.joins.length > 24);
    drawStays(this.rail, stays(model.decisions, picture.from, picture.madeAt), picture, tips);
    this.drawn?.(picture);
  }

  /** For the legend: a rate that is easily drawn, and how wide it is. */
  get sample() {
    if (!this.picture?.scale) return null;
    let widest = 0;
    for (const { half } of this.picture.streams.values()) for (const one of half) widest = Math.max(widest, one);
    const rate = roundBelow(Math.min(26, 2 * widest) / this.picture.scale);
    return { rate, px: Math.max(2, rate * this.picture.scale) };
  }

  // -- mouse and keys

  place(event) {
    const box = this.keys.getBoundingClientRect();
    return [event.clientX - box.left + this.shift(), event.clientY - box.top];
  }

  hover(event) {
    if (!this.picture || event.target.closest("button")) return this.leave();
    const [x, y] = this.place(event);
    const stream = streamAt(this.picture, x, y);
    this.needsLight = true;
    this.hovered = stream?.id ?? null;
    if (!stream) return this.tips.hide();
    const i = columnAt(stream, x);
    const at = this.picture.from + (x / this.picture.width) * (this.picture.to - this.picture.from);
    this.tips.showAt(event.clientX, event.clientY, [
      h("strong", {}, `Segment ${stream.id}`),
      h("p", {}, `${this.rated(stream.rate[i])} · ${percent(stream.heat[i])} of its split limit`),
      h(
        "p",
        { class: "quiet" },
        `${clock(at, true)} · hashes ${range(stream.segment)}${stream.isActive ? "" : " · sealed"}`,
      ),
    ]);
  }

  leave() {
    if (this.hovered !== null) this.tips.hide();
    this.hovered = null;
    this.needsLight = true;
  }

  click(event) {
    if (!this.picture || event.target.closest("button")) return;
    const stream = streamAt(this.picture, ...this.place(event));
    this.choose(stream?.id ?? null);
  }

  choose(id) {
    this.select(id);
    this.needsLight = true;
    this.onSelect(id);
  }

  key(event) {
    if (event.target !== this.keys || !this.picture) return;
    const active = this.model.active;
    const segment = this.model.segments.get(this.selected);
    const at = active.indexOf(segment);
    const relatives = (ids) =>
      ids.map((id) => this.model.segments.get(id)).find((one) => one && this.picture.streams.has(one.id));
    const next = {
      ArrowDown: () => (segment && at < 0 ? relatives(segment.children) : active[Math.min(active.length - 1, at + 1)]),
      ArrowUp: () =>
        segment && at < 0 ? relatives(segment.children) : active[Math.max(0, at < 0 ? active.length - 1 : at - 1)],
      ArrowLeft: () => (segment ? (relatives(segment.parents) ?? segment) : active[0]),
      ArrowRight: () => (segment ? (relatives(segment.children) ?? segment) : active[0]),
      Home: () => active[0],
      End: () => active[active.length - 1],
      Enter: () => segment ?? active[0],
      Escape: () => null,
    }[event.key];
    if (!next) return;
    event.preventDefault();
    this.choose(next()?.id ?? null);
    if (event.key === "Enter") this.onEnter?.();
  }
}

function size(canvas, width, height, ratio) {
  const [w, t] = [Math.ceil(width * ratio), Math.ceil(height * ratio)];
  if (canvas.width !== w || canvas.height !== t) {
    canvas.width = w;
    canvas.height = t;
    canvas.style.width = `${w / ratio}px`;
    canvas.style.height = `${t / ratio}px`;
  }
}
