// One segment's numbers, and what can be done to it.

import { colourOf } from "./colour.js";
import { h, put, set, text } from "./dom.js";
import { Refused, ask } from "./feed.js";
import { ago, byteRate, bytes, clock, count, messageRate, messages, percent, range } from "./format.js";
import { theme } from "./theme.js";

const NAMES = ["Messages in", "Bytes in", "Messages out", "Bytes out"];
const FORMATS = [messageRate, byteRate, messageRate, byteRate];

export class SegmentPanel {
  constructor(model, onSelect) {
    Object.assign(this, { model, onSelect, id: null });
    this.heading = h("h2", { tabindex: "-1" }, "Segment");
    this.content = h("div", {});
    this.element = h(
      "section",
      { class: "card segment-panel", "aria-label": "Numbers of one segment" },
      this.heading,
      this.content,
    );
    this.outcome = h("p", { class: "outcome", role: "status" });
    this.show(null);
  }

  focus() {
    this.heading.focus();
  }

  show(id) {
    if (id !== this.id) text(this.outcome, "");
    this.id = id;
    this.isBuilt = null;
    this.update();
  }

  /** Rebuilt only when the segment or its state changed; otherwise its numbers are written over. */
  update() {
    const segment = this.model.segments.get(this.id);
    if (!segment) {
      text(this.heading, "Segment");
      put(
        this.content,
        h(
          "p",
          { class: "hint" },
          "Click a stream, or focus the river and press the arrow keys, to see a segment's numbers here.",
        ),
      );
      this.isBuilt = null;
      return;
    }
    const state = `${segment.id}/${segment.sealed}/${this.model.layout}/${this.model.latest.may?.change}`;
    if (this.isBuilt !== state) {
      this.build(segment);
      this.isBuilt = state;
    }
    this.figures(segment);
  }

  build(segment) {
    text(this.heading, `Segment ${segment.id}`);
    this.facts = h("dl", { class: "facts" });
    this.bars = NAMES.map((name, i) => {
      const bar = h("span", { class: "bar-fill" });
      const value = h("td", { class: "number" });
      const share = h("td", { class: "number quiet" });
      return {
        bar,
        value,
        share,
        row: h(
          "tr",
          {},
          h("th", { scope: "row" }, name),
          value,
          h("td", { class: "bar-cell" }, h("span", { class: "bar" }, bar)),
          share,
        ),
        i,
      };
    });
    const table = h(
      "table",
      { class: "rates" },
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          h("th", { scope: "col" }, "Rate"),
          h("th", { scope: "col", class: "number" }, segment.isActive ? "now" : "at its end"),
          h("th", { scope: "col" }, "against its split limit"),
          h("th", { scope: "col" }),
        ),
      ),
      h(
        "tbody",
        {},
        this.bars.map((bar) => bar.row),
      ),
    );
    put(this.content, this.facts, table, segment.isActive ? this.actions(segment) : null, this.outcome);
  }

  actions(segment) {
    const { may } = this.model.latest;
    const made = [this.action("Split in two", `split/${segment.id}`, `Split segment ${segment.id}?`)];
    for (const other of this.model.neighbours(segment)) {
      made.push(
        this.action(
          `Merge with ${other.id}`,
          `merge/${segment.id}/${other.id}`,
          `Merge segments ${segment.id} and ${other.id}?`,
        ),
      );
    }
    for (const button of made) button.disabled = !may?.change;
    return h("div", { class: "actions" }, made, may?.change ? null : h("p", { class: "quiet" }, may?.because ?? ""));
  }

  /** The first press asks, the second does it: no dialog, nothing by accident. */
  action(label, path, question) {
    const button = h("button", { type: "button", class: "button" }, label);
    let asked = null;
    const calm = () => {
      clearTimeout(asked);
      asked = null;
      button.classList.remove("asks");
      text(button, label);
    };
    button.addEventListener("blur", calm);
    button.addEventListener("keydown", (event) => event.key === "Escape" && calm());
    button.addEventListener("click", async () => {
      if (!asked) {
        asked = setTimeout(calm, 6000);
        button.classList.add("asks");
        text(button, `${question} Press again`);
        return;
      }
      calm();
      await this.perform(path, label, button);
    });
    return button;
  }

  async perform(path, label, button) {
    button.disabled = true;
    text(this.outcome, `${label} …`);
    set(this.outcome, "class", "outcome");
    try {
      await ask("POST", `${this.model.rest}/${path}`);
      text(this.outcome, `${label}: done. The river shows it.`);
    } catch (error) {
      text(
        this.outcome,
        error instanceof Refused
          ? error.message
          : "The broker did not answer; look at the river to see whether it was done.",
      );
      set(this.outcome, "class", "outcome bad");
    }
    button.disabled = !this.model.latest.may?.change;
  }

  figures(segment) {
    const now = this.model.latest.now;
    const figures = this.model.latest.segments?.[segment.id];
    const waiting = Object.values(figures?.backlog ?? {}).reduce((most, one) => Math.max(most, one), 0);
    const share = (segment.end - segment.start + 1) / 65536;
    const facts = [
      [
        "State",
        segment.sealed ? `sealed ${ago(now - segment.sealed)} ago, at ${clock(segment.sealed, true)}` : "active",
      ],
      ["Hashes", `${range(segment)}, ${percent(share)} of all keys`],
      // As in the table; the rates below are those of the latest sample.
      segment.isActive
        ? ["Heat", `${percent(segment.heat)}, averaged over ${ago(this.model.latest.windowMs)} as for decisions`]
        : null,
      ["Age", segment.created ? `${ago(now - segment.created)}, since ${clock(segment.created, true)}` : "–"],
      ["Came from", segment.parents.length ? this.links(segment.parents) : "the beginning"],
      segment.children.length ? ["Became", this.links(segment.children)] : null,
      segment.buckets > 1 ? ["Entry buckets", `${segment.buckets}: so many consumers can share it`] : null,
      figures ? ["Stored", bytes(figures.storage)] : null,
      figures ? ["Waiting", messages(waiting)] : null,
      figures && segment.isActive ? ["Producers", count(figures.producers, "producer")] : null,
      figures?.keysOutside ? ["Stray keys", `${messages(figures.keysOutside)} with a key of another range`] : null,
      this.model.latest.owners?.[segment.id] ? ["Broker", this.model.latest.owners[segment.id]] : null,
      !figures && !segment.gone ? ["Owner", "does not answer"] : null,
    ].filter(Boolean);
    put(
      this.facts,
      facts.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
    );
    const rates = segment.rate;
    for (const { bar, value, share: shown, i } of this.bars) {
      const limit = this.model.limits[i];
      const heat = limit ? rates[i] / limit : 0;
      text(value, FORMATS[i](rates[i]));
      text(shown, limit ? `${percent(heat)} of ${FORMATS[i](limit)}` : "");
      bar.style.width = `${Math.min(100, heat * 100)}%`;
      bar.style.background = colourOf(heat, theme());
    }
  }

  links(ids) {
    return ids.map((id, i) => [
      i ? ", " : "",
      this.model.segments.has(id)
        ? h("button", { type: "button", class: "link", onclick: () => this.onSelect(id) }, String(id))
        : String(id),
    ]);
  }
}
