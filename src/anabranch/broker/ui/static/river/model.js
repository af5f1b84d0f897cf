// What the page knows of one topic: segments, their samples, totals and decisions of the last hour.
//
// The broker sends everything once and then only what is new; `take` folds an answer in. No drawing here.

import { folded } from "./marks.js";

export const KEPT_MS = 3600_000;
export const RATES = ["msgRateIn", "bytesRateIn", "msgRateOut", "bytesRateOut"];

/** The rates of a sample as shares of their limits; the largest is the heat. */
export function heatOf(rates, limits) {
  let heat = 0;
  for (let i = 0; i < RATES.length; i++) if (limits[i] > 0) heat = Math.max(heat, rates[i] / limits[i]);
  return heat;
}

class Segment {
  constructor(known) {
    this.update(known);
    this.times = [];
    this.rates = [];
    this.heats = [];
  }

  update({ id, start, end, created, sealed, parents, children, buckets, classic, gone }) {
    Object.assign(this, { id, start, end, created, sealed, parents, children, buckets, classic, gone });
  }

  get isActive() {
    return !this.sealed;
  }

  add(at, rates, limits, window) {
    const last = this.times.length - 1;
    if (last >= 0 && at <= this.times[last]) return;
    this.times.push(at);
    this.rates.push(rates);
    this.heats.push(this.heatAt(this.times.length - 1, limits, window));
  }

  /** Over the time that ends with that sample, as the broker's own decisions are, or as much of it as there is. */
  heatAt(index, limits, window) {
    const sums = [0, 0, 0, 0];
    let count = 0;
    for (let i = index; i >= 0 && this.times[i] > this.times[index] - window; i--, count++) {
      for (let j = 0; j < 4; j++) sums[j] += this.rates[i][j];
    }
    return heatOf(
      sums.map((sum) => sum / count),
      limits,
    );
  }

  forget(before) {
    let gone = 0;
    while (gone < this.times.length - 1 && this.times[gone + 1] < before) gone++;
    if (gone > 32) {
      this.times.splice(0, gone);
      this.rates.splice(0, gone);
      this.heats.splice(0, gone);
    }
  }

  get rate() {
    return this.rates[this.rates.length - 1] ?? [0, 0, 0, 0];
  }

  get heat() {
    return this.heats[this.heats.length - 1] ?? 0;
  }
}

export class TopicModel {
  constructor(name) {
    this.name = name;
    this.segments = new Map();
    this.totals = [];
    this.decisions = [];
    this.limits = [0, 0, 0, 0];
    this.layout = "";
    this.latest = null;
    this.sampled = 0;
    this.version = 0;
  }

  /** What to ask next, so that only what is new comes back. */
  get question() {
    return `since=${this.sampled}&layout=${encodeURIComponent(this.layout)}`;
  }

  take(answer) {
    this.latest = answer;
    const limits = answer.limits ? RATES.map((name) => answer.limits.split[name]) : [0, 0, 0, 0];
    if (limits.some((limit, i) => limit !== this.limits[i])) {
      this.limits = limits;
      for (const segment of this.segments.values()) {
        segment.heats = segment.times.map((_, i) => segment.heatAt(i, limits, answer.windowMs));
      }
      this.version++;
    }
    if (answer.layout) this.takeLayout(answer.layout);
    for (const [id, samples] of Object.entries(answer.samples ?? {})) {
      const segment = this.segments.get(Number(id));
      for (const [at, ...rates] of samples) {
        segment?.add(at, rates, limits, answer.windowMs);
        this.sampled = Math.max(this.sampled, at);
      }
      this.version++;
    }
    for (const total of answer.totals ?? []) {
      if (!this.totals.length || total[0] > this.totals[this.totals.length - 1][0]) this.totals.push(total);
      this.sampled = Math.max(this.sampled, total[0]);
    }
    if (answer.decisions) this.decisions = folded(answer.decisions);
    this.forget(answer.now - KEPT_MS);
  }

  takeLayout({ id, segments }) {
    this.layout = id;
    const named = new Set(segments.map((segment) => segment.id));
    for (const known of this.segments.keys()) if (!named.has(known)) this.segments.delete(known);
    for (const found of segments) {
      const known = this.segments.get(found.id);
      if (known) known.update(found);
      else this.segments.set(found.id, new Segment(found));
    }
    this.version++;
  }

  forget(before) {
    for (const segment of this.segments.values()) segment.forget(before);
    while (this.totals.length && this.totals[0][0] < before) this.totals.shift();
  }

  get active() {
    return [...this.segments.values()].filter((segment) => segment.isActive).sort((a, b) => a.start - b.start);
  }

  neighbours(segment) {
    const active = this.active;
    const at = active.indexOf(segment);
    return at < 0 ? [] : [active[at - 1], active[at + 1]].filter(Boolean);
  }
}
