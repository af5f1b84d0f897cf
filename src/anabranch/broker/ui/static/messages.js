// The messages of a topic: from either end, from a time or a position, by key, as their schema has them.

import { h, put, text } from "./dom.js";
import { Refused, ask } from "./feed.js";
import { bytes, clock, count } from "./format.js";

const STARTS = [
  ["latest", "the latest"],
  ["earliest", "the earliest"],
  ["time", "from a time on"],
  ["position", "from a position on"],
];
const NOTES = {
  encrypted: "encrypted: only its readers have the key",
  null: "no value",
  unreadable: "cannot be read",
};

export class MessagesPanel {
  /** `path` is tenant/namespace/name, encoded. */
  constructor(path) {
    this.path = path;
    this.start = h(
      "select",
      { "aria-label": "Which messages", onchange: () => this.chosen() },
      STARTS.map(([value, label]) => h("option", { value }, label)),
    );
    this.time = h("input", { type: "datetime-local", step: "1", "aria-label": "Published at or after", hidden: true });
    this.position = h("input", {
      type: "text",
      placeholder: "ledger:entry",
      pattern: "[0-9]+:[0-9]+",
      "aria-label": "Position",
      hidden: true,
    });
    this.key = h("input", { type: "search", placeholder: "Any key", "aria-label": "Only messages with this key" });
    this.state = h("p", { class: "quiet", role: "status" });
    this.list = h("ol", { class: "messages" });
    this.element = h(
      "section",
      { class: "card" },
      h("h2", {}, "Messages", h("span", { class: "unit" }, "looking acknowledges nothing")),
      h(
        "form",
        {
          class: "controls browse",
          onsubmit: (event) => {
            event.preventDefault();
            this.look();
          },
        },
        this.start,
        this.time,
        this.position,
        this.key,
        h("button", { type: "submit", class: "button" }, "Show"),
      ),
      this.state,
      this.list,
    );
  }

  chosen() {
    this.time.hidden = this.start.value !== "time";
    this.position.hidden = this.start.value !== "position";
  }

  /** The question's start; null with a word about what is missing. */
  from() {
    if (this.start.value === "time") return this.time.value ? String(new Date(this.time.value).getTime()) : null;
    if (this.start.value === "position")
      return /^[0-9]+:[0-9]+$/.test(this.position.value.trim()) ? this.position.value.trim() : null;
    return this.start.value;
  }

  async look() {
    const start = this.from();
    if (start === null) {
      text(this.state, this.start.value === "time" ? "Choose a time first." : "A position is ledger:entry, as 12:5.");
      return;
    }
    text(this.state, "Reading…");
    try {
      const question = new URLSearchParams({ start, key: this.key.value });
      this.show(await ask("GET", `/ui/api/messages/${this.path}?${question}`));
    } catch (error) {
      put(this.list);
      text(this.state, error instanceof Refused ? error.message : "The broker does not answer.");
    }
  }

  show(answer) {
    const left = answer.leftOut.length ? ` Not looked at: ${answer.leftOut.join(", ")}.` : "";
    const none = this.key.value ? `No message with the key ${this.key.value} was found there.` : "No message there.";
    text(this.state, (answer.messages.length ? `${count(answer.messages.length, "message")}.` : none) + left);
    put(
      this.list,
      answer.messages.map((one) => this.message(one)),
    );
  }

  message(one) {
    const { value } = one;
    const place = one.place[2] < 0 ? one.place.slice(0, 2) : one.place;
    const properties = Object.entries(one.properties).map(([name, told]) => `${name}=${told}`);
    const part = one.part.split("/").pop();
    const about = [place.join(":"), part, `${bytes(value.bytes)}, ${value.as}`, ...properties];
    return h(
      "li",
      {},
      h(
        "div",
        { class: "message-head" },
        h("time", {}, one.publishTime ? clock(one.publishTime, true) : "–"),
        one.key === null ? null : h("strong", {}, one.key),
        h("span", { class: "quiet" }, about.join("  ·  ")),
      ),
      h("pre", {}, NOTES[value.as] && !value.text ? NOTES[value.as] : value.text),
    );
  }
}
