// Marks on the river: where segments split, merged or were replaced, and the strip of reasons why nothing was done.
//
// Every mark is a button: one Tab reaches the row, arrow keys walk along it in the order of time, and the reason is
// shown on hover and on focus alike.

import { h, keyed, s, set } from "../dom.js";
import { ago, clock, count, sentence } from "../format.js";

const MATCH_MS = 65_000;

const list = (ids) => (ids.length > 1 ? `${ids.slice(0, -1).join(", ")} and ${ids[ids.length - 1]}` : String(ids[0]));

/** Joins with the decision that made them, if one did. Pure. */
export function changes(joins, decisions) {
  return joins.map((join) => {
    const parents = join.parents.map((stream) => stream.id);
    const decision = decisions.find(
      (one) =>
        one.kind === join.kind &&
        one.segments.some((id) => parents.includes(id)) &&
        Math.abs(one.at - join.at) < MATCH_MS,
    );
    const children = join.children.map((stream) => stream.id);
    const plural = parents.length > 1 ? "Segments" : "Segment";
    const what = {
      split: () => `${plural} ${list(parents)} split into ${list(children)}`,
      merge: () => `${plural} ${list(parents)} merged into ${list(children)}`,
      rebucket: () =>
        `Segment ${parents[0]} replaced by ${children[0]}, with ${count(join.children[0].segment.buckets, "entry bucket")}`,
    }[join.kind]();
    return {
      key: `${join.kind}-${children.join("-")}`,
      kind: join.kind,
      at: join.at,
      y: join.y,
      what,
      why: decision ? sentence(decision.because) : "No decision about it is remembered, so somebody asked for it.",
      rule: decision?.rule ?? "",
    };
  });
}

const shape = (decision) => decision.because.replace(/\d[\d.,:-]*/g, "#");

/** The same answer with other figures is told once, with the latest of them. Pure. */
export function folded(decisions) {
  const found = [];
  for (const one of decisions) {
    const before = found[found.length - 1];
    const isSame =
      before &&
      one.kind === before.kind &&
      (one.kind === "stay" || one.kind === "failed") &&
      shape(one) === shape(before);
    if (isSame) Object.assign(before, { until: one.until, because: one.because, times: before.times + one.times });
    else found.push({ ...one });
  }
  return found;
}

/** Stretches of time in which nothing was done, with the reason. Pure. */
export function stays(decisions, from, to) {
  // An answer holds until there is another one.
  return decisions
    .map((one, i) => ({
      key: `${one.kind}-${one.at}`,
      kind: one.kind,
      from: one.at,
      until: decisions[i + 1]?.at ?? to,
      why: sentence(one.because),
      times: one.times,
    }))
    .filter((one) => (one.kind === "stay" || one.kind === "failed") && one.until >= from && one.from <= to);
}

const GLYPHS = {
  split: "M2 7 H6 C8.5 7 8.5 3.5 12 3.5 M6 7 C8.5 7 8.5 10.5 12 10.5",
  merge: "M12 7 H8 C5.5 7 5.5 3.5 2 3.5 M8 7 C5.5 7 5.5 10.5 2 10.5",
  rebucket: "M2 7 H12 M5.2 3.6 V10.4 M8.8 3.6 V10.4",
  // Of bundles.
  assignment: "M7 2 V9 M4 6.5 L7 9.5 L10 6.5 M3 12 H11",
  transfer: "M2 4 C7 4 6 10 11.5 10 M9 7.5 L11.5 10 L9 12.5",
  unload: "M7 9.5 V3 M4 5.5 L7 2.5 L10 5.5 M3 12 H11",
  repair: "M7 2.5 V11.5 M2.5 7 H11.5",
  removal: "M3.5 3.5 L10.5 10.5 M10.5 3.5 L3.5 10.5",
};

export const glyph = (kind) =>
  s("svg", { viewBox: "0 0 14 14", class: "glyph", "aria-hidden": "true" }, s("path", { d: GLYPHS[kind] }));

/** Arrow keys walk along the buttons of `row`; one of them is in the order of Tab. */
export function roving(row) {
  row.addEventListener("keydown", (event) => {
    const all = [...row.querySelectorAll("button")];
    const at = all.indexOf(document.activeElement);
    const next = {
      ArrowRight: at + 1,
      ArrowDown: at + 1,
      ArrowLeft: at - 1,
      ArrowUp: at - 1,
      Home: 0,
      End: all.length - 1,
    }[event.key];
    if (next === undefined || at < 0) return;
    event.preventDefault();
    event.stopPropagation();
    all[Math.max(0, Math.min(all.length - 1, next))]?.focus();
  });
  row.addEventListener("focusin", (event) => {
    for (const button of row.querySelectorAll("button")) button.tabIndex = button === event.target ? 0 : -1;
  });
}

/** After buttons came or went: exactly one can be reached, the latest unless another was chosen. */
function keepOneStop(row) {
  const all = [...row.querySelectorAll("button")];
  if (all.length && !all.some((button) => button.tabIndex === 0)) all[all.length - 1].tabIndex = 0;
}

function tipped(button, tips, content) {
  const show = () => tips.show(button, content());
  button.addEventListener("pointerenter", show);
  button.addEventListener("focus", show);
  button.addEventListener("pointerleave", () => document.activeElement === button || tips.hide());
  button.addEventListener("blur", () => tips.hide());
  button.addEventListener("keydown", (event) => event.key === "Escape" && tips.hide());
}

export function drawChanges(row, found, picture, tips) {
  const inside = found.filter((one) => one.at >= picture.from).sort((a, b) => a.at - b.at);
  keyed(
    row,
    inside,
    (one) => one.key,
    (one) => {
      const button = h("button", { type: "button", class: `mark ${one.kind}`, tabindex: "-1" }, glyph(one.kind));
      const made = { element: button, change: one };
      tipped(button, tips, () => [
        h("strong", {}, made.change.what),
        h("p", {}, made.change.why),
        h(
          "p",
          { class: "quiet" },
          `${clock(made.change.at, true)}${made.change.rule ? ` · because of ${made.change.rule}` : ""}`,
        ),
      ]);
      return made;
    },
    (made, one) => {
      made.change = one;
      set(made.element, "aria-label", `${clock(one.at, true)}: ${one.what}. ${one.why}`);
      made.element.style.transform = `translate(${picture.xOf(one.at).toFixed(1)}px, ${one.y.toFixed(1)}px)`;
    },
  );
  keepOneStop(row);
}

export function drawStays(row, found, picture, tips) {
  keyed(
    row,
    found,
    (one) => one.key,
    () => {
      const button = h("button", { type: "button", class: "stay", tabindex: "-1" });
      const made = { element: button };
      tipped(button, tips, () => [
        h("strong", {}, made.stay.kind === "failed" ? "Tried, and failed" : "Nothing to do"),
        h("p", {}, made.stay.why),
        h(
          "p",
          { class: "quiet" },
          `${clock(made.stay.from)}, for ${ago(made.stay.until - made.stay.from)}, looked at ${count(made.stay.times, "time")}`,
        ),
      ]);
      return made;
    },
    (made, one) => {
      made.stay = one;
      const x0 = Math.max(0, picture.xOf(one.from));
      const x1 = picture.xOf(one.until);
      made.element.classList.toggle("failed", one.kind === "failed");
      set(made.element, "aria-label", `From ${clock(one.from)}, for ${ago(one.until - one.from)}: ${one.why}`);
      made.element.style.transform = `translateX(${x0.toFixed(1)}px)`;
      made.element.style.width = `${Math.max(3, x1 - x0 - 1.5).toFixed(1)}px`;
    },
  );
  keepOneStop(row);
}
