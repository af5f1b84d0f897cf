// The picture of the cluster: a bank for each broker with its load, the bundles that run along it, and what moves.

import { colourOf } from "../colour.js";
import { h, keyed, put, s, set, text } from "../dom.js";
import { bytes, clock, count, percent, short } from "../format.js";
import { ticks } from "../river/geometry.js";
import { glyph } from "../river/marks.js";
import { theme } from "../theme.js";
import { NOWHERE, drawn, grouped, placeOf } from "./streams.js";

const LABEL_PX = 276;
const GAP_PX = 10;
const AXIS_PX = 24;
const TALL_PX = 400;
const RESOURCES = {
  cpu: "processor",
  memory: "memory",
  direct_memory: "buffers",
  bandwidth_in: "network in",
  bandwidth_out: "network out",
  disk: "disk",
};
const KINDS = {
  assignment: "Assigned",
  transfer: "Transferred",
  unload: "Unloaded",
  split: "Split",
  repair: "Repaired",
  removal: "Removed",
};

export const kindOf = (move) => KINDS[move.kind] ?? move.kind;
export const shortBundle = (name) => name.split("/").at(-1).replaceAll("0x", "").replace("_", "–");

/** Marks that would lie on each other stand beside each other. */
function apart(places) {
  const isTaken = (one, i) =>
    places.some((other, j) => j < i && Math.abs(one.x - other.x) < 17 && Math.abs(one.y - other.y) < 17);
  places.forEach((one, i) => {
    for (let tries = 0; tries < 6 && isTaken(one, i); tries++) one.x -= 19;
  });
}

export class BanksView {
  constructor(model, tips, onSelect) {
    Object.assign(this, { model, tips, onSelect, span: 900_000, selected: null });
    this.banks = h("div", { class: "banks" });
    this.plot = s("svg", { class: "bank-plot", role: "img" });
    this.axis = s("g", {});
    this.lines = s("g", {});
    this.flights = s("g", {});
    this.plot.append(this.axis, this.lines, this.flights);
    this.marks = h("div", { class: "bank-marks" });
    this.dry = h("p", { class: "bank-dry hint", hidden: true }, "No topic is open: streams appear with the first client.");
    this.element = h("div", { class: "banks-body" }, this.banks, this.plot, this.marks, this.dry);
    this.sizes = new ResizeObserver(() => this.draw());
    this.sizes.observe(this.element);
  }

  close() {
    this.sizes.disconnect();
  }

  /** The brokers that there are, those that only moves remember, and a bank for bundles without an owner. */
  banksOf(bundles, from) {
    const { brokers } = this.model.latest;
    const found = brokers.map((one) => ({ ...one }));
    const known = new Set(brokers.map((one) => one.id));
    const seen = bundles.flatMap((one) => one.stays.filter((stay) => stay.until > from).map((stay) => stay.broker));
    for (const id of [...new Set(seen)].sort())
      if (id !== NOWHERE && !known.has(id)) found.push({ id, isGone: true, bundles: 0 });
    if (seen.includes(NOWHERE)) found.push({ id: NOWHERE });
    const tall = Math.max(76, Math.min(128, TALL_PX / found.length));
    let top = 0;
    for (const one of found) {
      one.top = top;
      one.height = one.id === NOWHERE ? 44 : tall;
      top += one.height + GAP_PX;
    }
    this.tall = top - GAP_PX;
    return found;
  }

  draw() {
    if (!this.model.latest) return;
    const isMoving = this.model.latest.kind === "balanced";
    const to = this.model.latest.now;
    const from = to - this.span;
    const width = Math.max(120, this.element.clientWidth - LABEL_PX - 12);
    const bundles = this.model.drawn(from);
    const banks = this.banksOf(bundles, from);
    this.picture = drawn(bundles, banks, { from, to, width });
    const xOf = (ms) => Math.max(0, Math.min(width, ((ms - from) / (to - from)) * width));
    this.element.style.height = `${this.tall + (isMoving ? AXIS_PX : 0)}px`;
    set(this.plot, "viewBox", `0 0 ${width} ${this.tall + AXIS_PX}`);
    set(this.plot, "width", width);
    set(this.plot, "height", this.tall + AXIS_PX);
    set(this.plot, "aria-label", `${count(bundles.length, "bundle")} in ${count(banks.length, "bank")}; the table below has them all`);
    this.dry.hidden = bundles.length > 0;
    this.labels(banks);
    this.streams(bundles);
    this.fly(banks, xOf, width);
    this.mark(banks, from, xOf);
    put(this.axis, isMoving ? this.times(from, to, xOf, width) : []);
  }

  labels(banks) {
    keyed(
      this.banks,
      banks,
      (bank) => bank.id,
      () => {
        const [name, chips, load, note] = [h("strong", {}), h("span", { class: "chips" }), h("div", {}), h("div", {})];
        const fill = h("span", { class: "bar-fill" });
        const limit = h("span", { class: "bar-limit" });
        const bar = h("span", { class: "bar" }, fill, limit);
        load.className = "bank-load";
        note.className = "bank-note";
        const label = h("div", { class: "bank-label" }, h("div", { class: "bank-name" }, name, chips), load, bar, note);
        return { element: h("div", { class: "bank" }, label), name, chips, load, bar, fill, limit, note, label };
      },
      (row, bank) => this.label(row, bank),
    );
  }

  label(row, bank) {
    row.element.style.top = `${bank.top}px`;
    row.element.style.height = `${bank.height}px`;
    set(row.element, "class", `bank${bank.isGone || bank.isSilent ? " silent" : ""}${bank.id === NOWHERE ? " nowhere" : ""}`);
    set(row.name, "title", bank.id);
    text(row.name, bank.id === NOWHERE ? "No owner" : bank.id);
    const told = [
      bank.id && bank.id === this.model.latest.leader ? "leader" : null,
      bank.isThis ? "this" : null,
      bank.isDraining ? "about to end" : null,
      bank.isGone ? "gone" : bank.isSilent ? "does not answer" : null,
    ].filter(Boolean);
    keyed(
      row.chips,
      told,
      (one) => one,
      (one) => ({ element: h("span", { class: `chip ${one === "leader" ? "leader" : ""}` }, one) }),
      () => {},
    );
    const { load } = bank;
    row.bar.hidden = !load;
    if (load) {
      row.fill.style.width = `${Math.min(100, load.load * 100)}%`;
      row.fill.style.background = colourOf(load.load / (load.limit || 1), theme());
      row.limit.style.left = `${load.limit * 100}%`;
      const others = Object.entries(RESOURCES).map(([key, name]) => `${name} ${percent(load.shares[key])}`);
      set(row.label, "title", `Load ${percent(load.load)} on average, now ${percent(load.now)}: ${others.join(", ")}`);
    }
    const first = load ? `load ${percent(load.load)}, by ${RESOURCES[load.of]}` : "";
    const rates = bank.in === undefined ? "" : `${short(bank.in)} in, ${short(bank.out)} out msg/s`;
    text(row.load, first || rates);
    const bundles = bank.id === NOWHERE ? "until a client asks for them" : count(bank.bundles ?? 0, "bundle");
    const rest = bank.topics === undefined ? [] : [count(bank.topics, "topic"), bytes(bank.memory)];
    text(row.note, [bundles, ...(first && rates ? [rates] : rest)].join(" · "));
  }

  streams(bundles) {
    const { streams } = this.picture;
    const isChosen = (one) => one.name === this.selected;
    keyed(
      this.lines,
      // The chosen one is drawn last, over the others.
      [...bundles.filter((one) => !isChosen(one)), ...bundles.filter(isChosen)],
      (one) => one.name,
      (one) => {
        // A rim in the colour of the ground tells streams apart where they cross.
        const rim = s("path", { class: "rim" });
        const line = s("path", { class: "stream" });
        const element = s("g", { "data-bundle": one.name }, rim, line);
        element.addEventListener("click", () => this.onSelect(one.name));
        element.addEventListener("pointermove", (event) => this.hover(event, one.name));
        element.addEventListener("pointerleave", () => this.tips.hide());
        return { element, rim, line };
      },
      (row, one) => {
        const { d, width } = streams.get(one.name);
        for (const [path, more] of [
          [row.rim, 3],
          [row.line, 0],
        ]) {
          set(path, "d", d);
          set(path, "stroke-width", (width + more).toFixed(1));
        }
        set(row.line, "stroke", colourOf(one.heat, theme()));
        set(row.element, "class", this.selected && !isChosen(one) ? "other" : null);
      },
    );
  }

  hover(event, name) {
    const now = this.model.bundles.get(name);
    const rates = now?.in === undefined ? "no open topics" : `${short(now.in)} in, ${short(now.out)} out msg/s, ${count(now.topics, "topic")}`;
    this.tips.showAt(event.clientX, event.clientY, [
      h("strong", {}, name),
      h("p", {}, now ? `${now.state}${now.owner ? ` at ${now.owner}` : ""}: ${rates}` : "it was split, or is gone"),
      h("p", { class: "quiet" }, "Click for its story"),
    ]);
  }

  /** What is under way: from where the bundle is to where it goes. */
  fly(banks, xOf, width) {
    const byId = new Map(banks.map((bank) => [bank.id, bank]));
    const under = this.model.inFlight.filter((one) => one.state === "assigning");
    keyed(
      this.flights,
      under,
      (one) => one.name,
      () => ({ element: s("path", { class: "flight" }) }),
      (row, one) => {
        const ys = this.picture.streams.get(one.name)?.ys ?? [];
        const bank = byId.get(one.destination ?? NOWHERE);
        const y = bank ? bank.top + bank.height / 2 : this.tall + 8;
        const start = ys.at(-1) ?? -4;
        const x = Math.min(xOf(one.since), width - 60);
        set(row.element, "d", `M${x} ${start}C${(x + width) / 2} ${start} ${(x + width) / 2} ${y} ${width} ${y}`);
      },
    );
  }

  mark(banks, from, xOf) {
    const recent = this.model.told.filter((one) => one.kind !== "assignment" && (one.endedMs ?? Infinity) > from);
    const shown = grouped(recent)
      .map((run) => ({ ...run, place: this.place(run.moves, banks, xOf) }))
      .filter(({ place }) => place)
      .slice(0, 150);
    apart(shown.map(({ place }) => place));
    keyed(
      this.marks,
      shown,
      ({ key }) => key,
      ({ moves }) => {
        const element = h("button", { type: "button", class: `mark ${moves[0].kind}` }, glyph(moves[0].kind));
        const row = { element, moves };
        const tell = () => this.tips.show(element, this.tip(row.moves));
        element.addEventListener("pointerenter", tell);
        element.addEventListener("focus", tell);
        element.addEventListener("pointerleave", () => this.tips.hide());
        element.addEventListener("blur", () => this.tips.hide());
        element.addEventListener("click", () => this.onSelect(row.moves[0].bundle));
        return row;
      },
      (row, { moves, place }) => {
        row.moves = moves;
        row.element.style.transform = `translate(${place.x.toFixed(1)}px, ${place.y.toFixed(1)}px)`;
        const at = clock(moves[0].beganMs, true);
        set(row.element, "aria-label", `${this.named(moves)} at ${at}: ${moves[0].reason}`);
      },
    );
  }

  /** Amid the streams of these moves; those of idle bundles are not drawn, and marked where they came from. */
  place(moves, banks, xOf) {
    const found = moves.map((move) => placeOf(move, this.picture, xOf)).filter(Boolean);
    const mean = (key) => found.reduce((sum, one) => sum + one[key], 0) / found.length;
    if (found.length) return { x: mean("x"), y: mean("y") };
    const bank = banks.find((one) => one.id === (moves[0].from ?? moves[0].to));
    return bank ? { x: xOf(moves[0].beganMs), y: bank.top + bank.height / 2 } : null;
  }

  named(moves) {
    const what = moves.length > 1 ? count(moves.length, "bundle") : shortBundle(moves[0].bundle);
    return `${kindOf(moves[0])} ${what}`;
  }

  tip(moves) {
    const [move] = moves;
    const to = [...new Set(moves.map((one) => one.to).filter(Boolean))].join(", ");
    return [
      h("strong", {}, this.named(moves)),
      h("p", {}, `${[move.from, to].filter(Boolean).join(" → ")} at ${clock(move.beganMs, true)}`),
      h("p", { class: "quiet" }, move.reason),
    ];
  }

  times(from, to, xOf, width) {
    const zone = -new Date().getTimezoneOffset() * 60_000;
    return ticks(from, to, Math.max(2, Math.floor(width / 110)), zone)
      .filter((ms) => xOf(ms) > 20 && xOf(ms) < width - 60)
      .map((ms) => [
        s("line", { x1: xOf(ms), x2: xOf(ms), y1: 0, y2: this.tall, class: "gridline" }),
        s("text", { x: xOf(ms), y: this.tall + 18, class: "tick-label", "text-anchor": "middle" }, clock(ms)),
      ])
      .concat([s("text", { x: width, y: this.tall + 18, class: "tick-label now-label", "text-anchor": "end" }, "now")]);
  }
}
