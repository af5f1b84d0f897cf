// What the page knows of the cluster: the latest answer, and the moves of the last hour.

import { NOWHERE, keyOf, staysOf } from "./streams.js";

const HOUR = 3600_000;
// More streams than this cannot be told apart.
const DRAWN_MAX = 120;

const rateOf = (bundle) => (bundle?.in ?? 0) + (bundle?.out ?? 0);

export class ClusterModel {
  constructor() {
    this.latest = null;
    this.since = 0;
    this.known = new Map();
    this.moves = [];
    this.bundles = new Map();
  }

  take(answer) {
    this.latest = answer;
    this.since = answer.now;
    for (const move of answer.moves) this.known.set(keyOf(move), move);
    for (const [key, move] of this.known) if ((move.endedMs ?? answer.now) < answer.now - HOUR) this.known.delete(key);
    this.moves = [...this.known.values()].sort((a, b) => a.beganMs - b.beganMs || a.version - b.version);
    this.bundles = new Map(answer.bundles.map((one) => [one.name, one]));
  }

  /** Moves that people look for; the parts of a split are told with it. */
  get told() {
    return this.moves.filter((move) => move.kind !== "part");
  }

  get inFlight() {
    return this.latest.bundles.filter((one) => one.state === "assigning" || one.state === "splitting");
  }

  /**
   * The bundles to draw: with topics or traffic, on their way, or moved in the time that is shown. A broker that
   * goes leaves many idle ones behind, which would hide the others.
   */
  drawn(from) {
    const brief = (this.latest.now - from) / 100;
    const byBundle = new Map();
    for (const move of this.moves) byBundle.set(move.bundle, [...(byBundle.get(move.bundle) ?? []), move]);
    const names = new Set(this.latest.bundles.filter((one) => one.topics || rateOf(one)).map((one) => one.name));
    for (const one of this.inFlight) names.add(one.name);
    for (const move of this.moves)
      if (move.kind !== "assignment" && move.kind !== "repair" && (move.endedMs ?? Infinity) > from) names.add(move.bundle);
    const parents = new Map(this.moves.filter((move) => move.parent).map((move) => [move.bundle, move.parent]));
    const found = [...names].map((name) => {
      const now = this.bundles.get(name);
      const parts = this.moves.find((move) => move.bundle === name && move.children)?.children ?? [];
      return {
        name,
        rate: now ? rateOf(now) : parts.reduce((sum, one) => sum + rateOf(this.bundles.get(one)), 0),
        stays: staysOf(now && now.state !== "deleted" ? this.holder(now) : undefined, byBundle.get(name) ?? [], brief),
        parent: parents.get(name) ?? null,
        heat: now?.heat ?? 0,
      };
    });
    const most = found.sort((a, b) => b.rate - a.rate || (a.name < b.name ? -1 : 1)).slice(0, DRAWN_MAX);
    return most.sort((a, b) => (a.name < b.name ? -1 : 1));
  }

  /** The broker in whose bank a bundle is drawn: while it moves, or after its broker went, the one that had it last. */
  holder(bundle) {
    return bundle.owner ?? bundle.lost ?? bundle.source ?? NOWHERE;
  }
}
