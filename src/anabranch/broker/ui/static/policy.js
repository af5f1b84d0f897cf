// The policy of automatic splits and merges: what applies, who set it, and the topic's own override.

import { h, put, set, text } from "./dom.js";
import { Refused, ask } from "./feed.js";
import { byteRate, messageRate } from "./format.js";

const seconds = (value) => (value % 60 === 0 && value >= 60 ? `${value / 60} min` : `${value} s`);
const plain = (value) => String(value);

const FIELDS = [
  ["enabled", "Automatic splits and merges", "", (value) => (value ? "on" : "off")],
  ["maxSegments", "Segments at most", "segments", plain],
  ["minSegments", "Segments at least", "segments", plain],
  ["maxDagDepth", "Merges in one lineage at most", "merges", plain],
  ["splitCooldownSeconds", "Pause after a split", "seconds", seconds],
  ["mergeCooldownSeconds", "Pause after a merge", "seconds", seconds],
  ["mergeWindowSeconds", "Cold for so long before a merge", "seconds", seconds],
  ["rebucketCooldownSeconds", "Between two changes of entry buckets", "seconds", seconds],
  ["rebucketIdleWindowSeconds", "Entry buckets unneeded for so long before they are given back", "seconds", seconds],
  ["splitMsgRateInThreshold", "Split above, messages in", "msg/s", messageRate],
  ["splitBytesRateInThreshold", "Split above, bytes in", "B/s", byteRate],
  ["splitMsgRateOutThreshold", "Split above, messages out", "msg/s", messageRate],
  ["splitBytesRateOutThreshold", "Split above, bytes out", "B/s", byteRate],
  ["mergeMsgRateInThreshold", "Merge below, messages in", "msg/s", messageRate],
  ["mergeBytesRateInThreshold", "Merge below, bytes in", "B/s", byteRate],
  ["mergeMsgRateOutThreshold", "Merge below, messages out", "msg/s", messageRate],
  ["mergeBytesRateOutThreshold", "Merge below, bytes out", "B/s", byteRate],
];

export class PolicyPanel {
  constructor(model) {
    this.model = model;
    this.content = h("div", {});
    this.outcome = h("p", { class: "outcome", role: "status" });
    this.problems = h("p", { class: "outcome bad" });
    this.element = h(
      "section",
      { class: "card policy" },
      h("h2", {}, "Policy", h("span", { class: "unit" }, "when it splits and merges by itself")),
      this.problems,
      this.content,
      this.outcome,
    );
    this.isEditing = false;
  }

  update() {
    const { policy, problems, may } = this.model.latest;
    text(
      this.problems,
      problems?.length ? `Switched off, because the policy contradicts itself: ${problems.join("; ")}` : "",
    );
    if (this.isEditing) return;
    const state = JSON.stringify([policy, may]);
    if (state === this.shown) return;
    this.shown = state;
    if (!policy) {
      put(this.content, h("p", { class: "hint" }, "This topic has no policy: only scalable topics split and merge."));
      return;
    }
    const rows = FIELDS.filter(([name]) => policy[name]).map(([name, label, , format]) =>
      h(
        "tr",
        {},
        h("th", { scope: "row" }, label),
        h("td", { class: "number" }, format(policy[name].value)),
        h("td", { class: `from ${policy[name].from}` }, policy[name].from),
      ),
    );
    const change = h(
      "button",
      { type: "button", class: "button", disabled: !may?.change, onclick: () => this.edit() },
      "Change for this topic",
    );
    put(
      this.content,
      table(["Setting", "value", "set by"], rows),
      h("div", { class: "actions" }, change, may?.change ? null : h("p", { class: "quiet" }, may?.because ?? "")),
    );
  }

  edit() {
    const { policy } = this.model.latest;
    this.isEditing = true;
    text(this.outcome, "");
    this.inputs = new Map();
    const rows = FIELDS.filter(([name]) => policy[name]).map(([name, label, unit, format]) => {
      const { value, from } = policy[name];
      const own = from === "topic";
      const id = `policy-${name}`;
      const input =
        name === "enabled"
          ? h(
              "select",
              { id },
              h("option", { value: "" }, `as set for the ${own ? "namespace or broker" : from}`),
              h("option", { value: "true" }, "on"),
              h("option", { value: "false" }, "off"),
            )
          : h("input", { id, type: "number", min: "0", step: "any", placeholder: own ? "" : String(value) });
      input.value = own ? String(value) : "";
      this.inputs.set(name, input);
      return h(
        "tr",
        {},
        h("th", { scope: "row" }, h("label", { for: id }, label)),
        h("td", {}, input),
        h("td", { class: "quiet" }, unit),
      );
    });
    const form = h(
      "form",
      { novalidate: true, onsubmit: (event) => this.save(event) },
      h(
        "p",
        { class: "hint" },
        "Fill in what this topic should do differently; what is left empty comes from its namespace or the broker.",
      ),
      table(["Setting", "for this topic", ""], rows),
      h(
        "div",
        { class: "actions" },
        h("button", { type: "submit", class: "button main" }, "Save"),
        h("button", { type: "button", class: "button", onclick: () => this.done() }, "Cancel"),
        Object.values(policy).some((one) => one.from === "topic")
          ? h(
              "button",
              { type: "button", class: "button", onclick: () => this.store("DELETE") },
              "Remove everything set here",
            )
          : null,
      ),
    );
    put(this.content, form);
    this.inputs.values().next().value.focus();
  }

  async save(event) {
    event.preventDefault();
    const own = {};
    for (const [name, input] of this.inputs) {
      if (input.value === "") continue;
      own[name] = name === "enabled" ? input.value === "true" : Number(input.value);
    }
    await (Object.keys(own).length ? this.store("POST", own) : this.store("DELETE"));
  }

  async store(method, body) {
    set(this.outcome, "class", "outcome");
    try {
      await ask(method, `${this.model.rest}/autoScalePolicy`, body);
    } catch (error) {
      text(this.outcome, error instanceof Refused ? error.message : "The broker did not answer. Try again.");
      set(this.outcome, "class", "outcome bad");
      return;
    }
    text(this.outcome, "Saved. It counts from the next look on.");
    this.done();
  }

  done() {
    this.isEditing = false;
    this.shown = "";
    this.update();
    this.content.querySelector("button")?.focus();
  }
}

function table(names, rows) {
  return h(
    "table",
    {},
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        names.map((name, i) => h("th", { scope: "col", class: i === 1 ? "number" : "" }, name)),
      ),
    ),
    h("tbody", {}, rows),
  );
}
