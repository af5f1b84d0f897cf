// One bundle's story: where it is and why, what happened to it, and what was decided about it.

import { h, keyed, put, set, text } from "../dom.js";
import { Refused, ask } from "../feed.js";
import { ago, byteRate, clock, count, messageRate, percent } from "../format.js";
import { glyph } from "../river/marks.js";
import { kindOf, shortBundle } from "./banks.js";

const AGAIN_MS = 4000;

export class StoryPanel {
  constructor(model) {
    Object.assign(this, { model, name: null, story: null, askedMs: 0 });
    this.heading = h("h2", { tabindex: "-1" }, "Bundle");
    this.hint = h("p", { class: "hint" }, "Click a stream, a mark or a bundle of the table to see where it is and why.");
    this.fault = h("p", { class: "outcome bad", role: "status" });
    this.facts = h("dl", { class: "facts" });
    this.events = h("ol", { class: "decisions" });
    this.element = h(
      "section",
      { class: "card story", "aria-label": "The story of one bundle" },
      this.heading,
      this.hint,
      this.facts,
      this.fault,
      this.events,
    );
  }

  show(name) {
    Object.assign(this, { name, story: null, askedMs: 0 });
    text(this.fault, "");
    put(this.facts);
    keyed(this.events, [], null, null, null);
    this.update();
    this.heading.focus({ preventScroll: true });
  }

  update() {
    this.hint.hidden = Boolean(this.name);
    if (!this.name) return;
    const [tenant, namespace, range] = this.name.split("/");
    put(this.heading, range, h("span", { class: "unit" }, `${tenant}/${namespace}`));
    this.figures();
    if (Date.now() - this.askedMs >= AGAIN_MS) this.ask(this.name);
  }

  async ask(name) {
    this.askedMs = Date.now();
    const ended = this.ended(name);
    if (ended) {
      // The REST knows bundles that there are: what became of this one stands in its moves.
      this.story = ended;
      this.figures();
      this.tell(ended);
      return;
    }
    try {
      const story = await ask("GET", `/admin/v2/namespaces/${name}/explain`);
      if (name !== this.name) return;
      this.story = story;
      text(this.fault, "");
      this.figures();
      this.tell(story);
    } catch (error) {
      if (name !== this.name) return;
      text(this.fault, error instanceof Refused ? error.message : "The broker did not answer.");
    }
  }

  /** The story of a bundle that was split or removed, as far as the page has seen it; null for any other. */
  ended(name) {
    const moves = this.model.moves.filter((move) => move.bundle === name);
    const last = moves.at(-1);
    if (last?.state !== "deleted") return null;
    const parts = last.children?.map(shortBundle).join(" and ");
    return { state: parts ? `split into ${parts}` : "removed", reason: last.reason, since: last.endedMs, moves };
  }

  figures() {
    const { story } = this;
    const now = this.model.bundles.get(this.name);
    // The REST names brokers as admin clients do; the page names them as they name each other.
    const ids = new Map(this.model.latest.brokers.map((one) => [one.webId, one.id]));
    const named = (broker) => ids.get(broker) ?? broker;
    const at = story ? named(story.owner) : now?.owner;
    const since = story?.since ?? now?.since;
    const facts = [
      ["State", `${story?.state ?? now?.state ?? "unknown"}${since ? `, for ${ago(this.model.latest.now - since)}` : ""}`],
      story?.source || story?.destination ? ["On its way", `${named(story.source) ?? "–"} → ${named(story.destination) ?? "no broker"}`] : null,
      ["Broker", at ?? (story?.lost ? `none: ${story.lost} is gone` : "none")],
      story ? ["Because", story.reason || "no reason is known"] : null,
      now?.in === undefined ? ["Traffic", "none"] : ["Traffic", `${messageRate(now.in)} in, ${messageRate(now.out)} out, ${byteRate(now.bytes)}`],
      now?.topics ? ["Open", `${count(now.topics, "topic")}, ${count(now.sessions, "producer or consumer", "producers and consumers")}`] : null,
      now?.heat && this.model.latest.kind === "balanced" ? ["Split limit", `${percent(now.heat)} of it`] : null,
      story?.safeMode ? ["Safe mode", story.safeMode] : null,
      story?.silent?.length ? ["Not heard", story.silent.map(named).join(", ")] : null,
    ].filter(Boolean);
    put(
      this.facts,
      facts.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
    );
  }

  /** Moves and decisions together, the latest first; decisions about all bundles last, as the present verdict. */
  tell(story) {
    const moves = (story.moves ?? []).map((move) => ({
      key: `move/${move.version}/${move.beganMs}`,
      at: move.beganMs,
      kind: move.kind,
      what: move.kind === "part" ? "Made by a split." : `${kindOf(move)}${move.to && move.kind !== "split" ? ` to ${move.to}` : ""}.`,
      why: `${move.reason}${move.endedMs === null ? " (under way)" : move.state === "overtaken" ? " (overtaken by the next)" : ""}`,
    }));
    const decided = [...(story.decisions ?? []), ...(story.general ?? []).slice(-3)].map((one) => ({
      key: `decision/${one.by}/${one.act}/${one.subject ?? ""}/${one.atMs}`,
      at: one.untilMs,
      kind: one.isDone ? one.act : "stay",
      what: one.isDone ? "Decided." : one.subject === this.name ? "Not moved." : "The shedder.",
      why: `${one.because}${one.times > 1 ? ` (${one.times} looks since ${clock(one.atMs, true)})` : ""}`,
    }));
    keyed(
      this.events,
      [...moves, ...decided].sort((a, b) => b.at - a.at || (a.key < b.key ? 1 : -1)),
      (one) => one.key,
      (one) => {
        const [when, what, why] = [h("time", {}), h("strong", {}), h("span", {})];
        const sign = one.kind === "stay" || one.kind === "part" || one.kind === "shed" ? h("span", { class: "dot" }) : glyph(one.kind);
        return { element: h("li", {}, when, sign, h("div", {}, what, " ", why)), when, what, why };
      },
      (row, one) => {
        text(row.when, clock(one.at, true));
        text(row.what, one.what);
        text(row.why, one.why);
        set(row.element, "class", one.kind === "stay" ? "left" : null);
      },
    );
  }
}
