// The page of one topic: its river, a segment's numbers, throughput and backlog, decisions, policy.

import { STEPS, colourOf, colourOfStep } from "./colour.js";
import { TimeChart } from "./charts.js";
import { toAdmin, toService } from "./commands.js";
import { card, command, h, keyed, put, s, set, text } from "./dom.js";
import { ago, byteRate, bytes, clock, count, messageRate, percent, range, sentence, short } from "./format.js";
import { MessagesPanel } from "./messages.js";
import { PolicyPanel } from "./policy.js";
import { glyph } from "./river/marks.js";
import { TopicModel } from "./river/model.js";
import { ink } from "./river/paint.js";
import { RiverView } from "./river/view.js";
import { SegmentPanel } from "./segment.js";
import { onTheme, theme } from "./theme.js";

// The operations on segments, as they are under way.
const DOING = { split: "splitting", merge: "merging", rebucket: "replacing" };

// 0 is as much as the topic has lived, up to an hour.
const SPANS = [
  [0, "fit"],
  [300_000, "5 min"],
  [900_000, "15 min"],
  [3600_000, "1 h"],
];

const FITTING = [60, 90, 120, 180, 240, 300, 420, 600, 900, 1200, 1800, 2700].map((seconds) => seconds * 1000);

const SEGMENT_COLUMNS = ["Segment", "Hashes", "In", "Out", "Heat", "Waiting", "Read by", "Broker"];
const SUBSCRIPTION_COLUMNS = ["Subscription", "Type", "Waiting", "Out", "Consumers"];
const PARTITION_COLUMNS = ["Partition", "Waiting", "In", "Out", "Stored", "Producers"];

export class TopicPage {
  /** `path` is tenant/namespace/name as in the address bar, still encoded. */
  constructor(path, tips) {
    this.path = path;
    this.chosenSpan = 0;
    const [tenant, namespace, local] = path.split("/").map(decodeURIComponent);
    this.model = new TopicModel(`topic://${tenant}/${namespace}/${local}`);
    this.model.rest = `/admin/v2/scalable/${path}`;
    this.local = local;
    this.namespace = `${tenant}/${namespace}`;
    document.title = `${local} · Anabranch`;
    this.river = new RiverView(this.model, tips, (id) => this.panel.show(id));
    this.panel = new SegmentPanel(this.model, (id) => this.choose(id));
    this.river.onEnter = () => this.panel.focus();
    this.river.drawn = () => this.legend();
    this.policy = new PolicyPanel(this.model);
    this.messages = new MessagesPanel(path);
    this.charts();
    this.build();
    this.stopTheme = onTheme(() => this.heatBar());
  }

  get url() {
    return `/ui/api/topics/${this.path}?${this.model.question}`;
  }

  close() {
    this.river.close();
    for (const chart of [this.throughput, this.backlog]) chart.close();
    this.stopTheme();
  }

  charts() {
    this.throughput = new TimeChart({
      title: "Throughput",
      unit: "messages per second",
      format: short,
      series: [
        { name: "in", className: "in", at: 1 },
        { name: "out", className: "out", at: 2 },
      ],
      empty: "Nothing measured yet: the first point appears within twenty seconds.",
    });
    this.backlog = new TimeChart({
      title: "Backlog",
      unit: "messages stored and not yet acknowledged, over all subscriptions",
      format: short,
      series: [{ name: "waiting", className: "waiting", at: 5 }],
      empty: "Nothing measured yet.",
    });
  }

  build() {
    this.summary = h("p", { class: "summary" });
    this.verdict = h("p", { class: "verdict" });
    this.spans = h("div", { class: "choice", role: "group", "aria-label": "How much time the river shows" });
    for (const [ms, label] of SPANS)
      this.spans.append(h("button", { type: "button", "data-span": ms, onclick: () => this.setSpan(ms) }, label));
    this.measures = h("div", { class: "choice", role: "group", "aria-label": "What the width of a stream shows" });
    ["messages", "bytes"].forEach((label, i) =>
      this.measures.append(
        h("button", { type: "button", "data-measure": i, onclick: () => this.setMeasure(i) }, label),
      ),
    );
    this.readers = h("select", {
      "aria-label": "Subscription whose consumers are shown at the mouths",
      onchange: () => this.river.show({ subscription: this.readers.value }),
    });
    this.readersLabel = h("label", { class: "readers" }, "mouths of ", this.readers);
    this.legendBar = h("div", { class: "legend", role: "note", "aria-label": "Legend" });
    this.hint = h("div", { class: "hint-card", hidden: true });
    this.river.body.append(this.hint);
    this.rows = h("tbody", { role: "rowgroup" });
    this.decided = h("ol", { class: "decisions" });
    this.decidedEmpty = h(
      "p",
      { class: "hint" },
      "Nothing decided yet. Every look at the topic, and why it did or did not change, appears here.",
    );
    this.element = h(
      "div",
      { class: "page topic" },
      h(
        "nav",
        { class: "crumbs", "aria-label": "Where you are" },
        h("a", { href: "#/" }, "Topics"),
        " / ",
        this.namespace,
      ),
      h("div", { class: "title-row" }, h("h1", {}, this.local), (this.kind = h("span", { class: "chip" }))),
      this.summary,
      this.verdict,
      (this.riverCard = h(
        "section",
        { class: "card river-card" },
        h(
          "div",
          { class: "card-head" },
          h(
            "div",
            {},
            h("h2", {}, "River of segments"),
            h(
              "p",
              { class: "lead" },
              "Each stream is a segment, the home of one range of keys. Thicker: more traffic. Warmer: closer to the limit at which it splits.",
            ),
          ),
          h("div", { class: "controls" }, this.spans, this.measures, this.readersLabel),
        ),
        this.river.element,
        this.legendBar,
      )),
      (this.lower = h("div", { class: "columns" }, this.table(), this.panel.element)),
      this.subscriptionsCard(),
      this.partitionsCard(),
      this.messages.element,
      h("div", { class: "columns even" }, this.throughput.element, this.backlog.element),
      (this.last = h(
        "div",
        { class: "columns" },
        h(
          "section",
          { class: "card" },
          h("h2", {}, "Decisions", h("span", { class: "unit" }, "of the last hour, latest first")),
          this.decidedEmpty,
          this.decided,
        ),
        this.policy.element,
      )),
    );
    this.heatBar();
  }

  table() {
    this.segmentHeads = SEGMENT_COLUMNS.map((name, i) =>
      h("th", { scope: "col", class: i > 1 && i < 6 ? "number" : "", hidden: i > 6 }, name),
    );
    return h(
      "section",
      { class: "card" },
      h("h2", {}, "Active segments", h("span", { class: "unit" }, "from the top of the river to the bottom")),
      h(
        "div",
        { class: "scroll" },
        h(
          "table",
          { class: "segments cards", role: "table" },
          h(
            "thead",
            { role: "rowgroup" },
            h("tr", { role: "row" }, this.segmentHeads),
          ),
          this.rows,
        ),
      ),
    );
  }

  subscriptionsCard() {
    this.subscribed = h("tbody", { role: "rowgroup" });
    this.subscribedCard = h(
      "section",
      { class: "card", hidden: true },
      h("h2", {}, "Subscriptions", h("span", { class: "unit" }, "and how far each is behind")),
      h(
        "div",
        { class: "scroll" },
        h(
          "table",
          { class: "subscriptions cards", role: "table" },
          h(
            "thead",
            { role: "rowgroup" },
            h(
              "tr",
              { role: "row" },
              SUBSCRIPTION_COLUMNS.map((name, i) => h("th", { scope: "col", class: i === 2 || i === 3 ? "number" : "" }, name)),
            ),
          ),
          this.subscribed,
        ),
      ),
    );
    return this.subscribedCard;
  }

  listSubscriptions(all) {
    this.subscribedCard.hidden = !all.length;
    keyed(
      this.subscribed,
      all,
      (one) => one.name,
      (one) => {
        const cells = Array.from({ length: 4 }, (_, i) => h("td", { class: i === 1 || i === 2 ? "number" : "" }));
        return { element: card(h("tr", {}, h("th", { scope: "row" }, one.name), cells), SUBSCRIPTION_COLUMNS), cells };
      },
      (row, one) => {
        const away = (consumer) => (consumer.connected ? consumer.name : `${consumer.name} (away)`);
        const readers = one.consumers.length
          ? one.consumers.map(away).join(", ")
          : one.consumerCount
            ? count(one.consumerCount, "consumer")
            : "nobody";
        const unacked = one.unacked ? `, ${short(one.unacked)} not acknowledged` : "";
        [one.kind || "–", short(one.backlog ?? 0), messageRate(one.msgRateOut ?? 0), readers + unacked].forEach(
          (value, i) => text(row.cells[i], value),
        );
      },
    );
  }

  partitionsCard() {
    this.parts = h("tbody", { role: "rowgroup" });
    this.partsCard = h(
      "section",
      { class: "card", hidden: true },
      h("h2", {}, "Partitions", h("span", { class: "unit" }, "as their brokers have them open")),
      h(
        "div",
        { class: "scroll" },
        h(
          "table",
          { class: "partitions cards", role: "table" },
          h(
            "thead",
            { role: "rowgroup" },
            h(
              "tr",
              { role: "row" },
              PARTITION_COLUMNS.map((name, i) => h("th", { scope: "col", class: i ? "number" : "" }, name)),
            ),
          ),
          this.parts,
        ),
      ),
    );
    return this.partsCard;
  }

  listPartitions(parts) {
    this.partsCard.hidden = !parts.length;
    keyed(
      this.parts,
      parts,
      (one) => one.partition,
      (one) => {
        const cells = Array.from({ length: 5 }, () => h("td", { class: "number" }));
        const name = one.partition < 0 ? "not partitioned" : String(one.partition);
        return { element: card(h("tr", {}, h("th", { scope: "row" }, name), cells), PARTITION_COLUMNS), cells };
      },
      (row, one) => {
        const isOpen = one.storage !== null;
        // What is asked for most stands first: a narrow screen shows no more.
        [
          short(one.backlog),
          isOpen ? messageRate(one.msgRateIn) : "–",
          isOpen ? messageRate(one.msgRateOut) : "–",
          isOpen ? bytes(one.storage) : "?",
          isOpen ? String(one.producers) : "–",
        ].forEach((value, i) => text(row.cells[i], value));
      },
    );
  }

  choose(id) {
    this.river.select(id);
    this.river.needsLight = true;
    this.panel.show(id);
    this.segments();
  }

  setSpan(ms) {
    this.chosenSpan = ms;
    this.river.show({ span: ms || this.fittingSpan() });
    this.pressed();
  }

  setMeasure(measure) {
    this.river.show({ measure });
    this.pressed();
  }

  pressed() {
    for (const button of this.spans.children)
      set(button, "aria-pressed", Number(button.dataset.span) === this.chosenSpan);
    for (const button of this.measures.children)
      set(button, "aria-pressed", Number(button.dataset.measure) === this.river.measure);
  }

  /** A young topic fills the picture instead of a corner of it. */
  fittingSpan() {
    const now = this.model.latest.now;
    const oldest = Math.min(...[...this.model.segments.values()].map((segment) => segment.created || 0));
    return FITTING.find((ms) => now - oldest < ms) ?? 3600_000;
  }

  take(answer) {
    if (answer.kind === "elsewhere") {
      put(
        this.element,
        h("h1", {}, this.local),
        h(
          "p",
          { class: "lead" },
          "Another broker leads this topic and knows what happens in it. ",
          h("a", { href: `${answer.url}#/topics/${this.path}` }, "Watch it there"),
        ),
      );
      return;
    }
    this.model.take(answer);
    const isScalable = answer.kind === "scalable";
    text(this.kind, answer.kind);
    this.riverCard.hidden = this.lower.hidden = this.last.hidden = !isScalable;
    this.summarize(answer);
    this.listSubscriptions(answer.subscriptions ?? []);
    this.listPartitions(answer.parts ?? []);
    if (isScalable) {
      const span = this.chosenSpan || this.fittingSpan();
      if (span !== this.river.span) this.river.show({ span });
      this.pressed();
      this.subscriptions(answer.subscriptions ?? []);
      this.river.taken();
      this.panel.update();
      this.policy.update();
      this.segments();
      this.decide();
      this.advise(answer);
    }
    const from = answer.now - (this.river.span || 3600_000);
    const shown = this.model.totals.filter((total) => total[0] >= from - 15_000);
    this.throughput.show(shown, from, answer.now);
    this.backlog.show(shown, from, answer.now);
  }

  summarize(answer) {
    const total = this.model.totals[this.model.totals.length - 1];
    const consumers = (answer.subscriptions ?? []).reduce(
      (all, one) => all + (one.consumers.length || one.consumerCount),
      0,
    );
    const parts = [
      answer.kind === "scalable"
        ? count(this.model.active.length, "active segment")
        : answer.partitions > 1
          ? count(answer.partitions, "partition")
          : null,
      total ? `${messageRate(total[1])} in (${byteRate(total[3])})` : null,
      total ? `${messageRate(total[2])} out` : null,
      total ? `${short(total[5])} waiting` : null,
      count(consumers, "consumer"),
      answer.silent?.length ? `without ${answer.silent.join(", ")}, which did not answer` : null,
    ];
    text(this.summary, parts.filter(Boolean).join("  ·  "));
    if (answer.kind !== "scalable") {
      put(
        this.verdict,
        "A classic topic keeps its partitions for ever. Make it scalable, and it splits and merges by itself:",
        command(toAdmin(`anabranch topics migrate ${answer.topic}`)),
      );
      return;
    }
    const latest = this.model.decisions[this.model.decisions.length - 1];
    const operation = answer.operation
      ? `Now: ${DOING[answer.operation.kind] ?? "splitting"} ${answer.operation.parents.join(" and ")}. `
      : "";
    const words = {
      split: "Split.",
      merge: "Merged.",
      rebucket: "Replaced.",
      stay: "Stays as it is.",
      failed: "Tried to change, and failed.",
    };
    text(this.verdict, operation + (latest ? `${words[latest.kind]} ${sentence(latest.because)}` : ""));
  }

  subscriptions(all) {
    this.readersLabel.hidden = all.length < 2;
    const names = all.map((one) => one.name).join("\n");
    if (names !== this.names) {
      const chosen = this.readers.value;
      put(
        this.readers,
        all.map((one) => h("option", { value: one.name }, one.name)),
      );
      if (all.some((one) => one.name === chosen)) this.readers.value = chosen;
      this.names = names;
    }
    this.river.subscription = this.readers.value || null;
  }

  segments() {
    const { latest } = this.model;
    const chosen =
      (latest.subscriptions ?? []).find((one) => one.name === this.river.subscription) ?? latest.subscriptions?.[0];
    const readers = new Map();
    for (const consumer of chosen?.consumers ?? [])
      for (const id of consumer.segments) readers.set(id, [...(readers.get(id) ?? []), consumer.name]);
    const shared =
      chosen && !chosen.consumers.length && chosen.consumerCount
        ? `${count(chosen.consumerCount, "consumer")}, shared`
        : "nobody";
    // Which broker serves a segment is told where there are several.
    const { owners } = latest;
    this.segmentHeads[7].hidden = !owners;
    keyed(
      this.rows,
      this.model.active,
      (segment) => segment.id,
      (segment) => {
        const cells = Array.from({ length: 7 }, (_, i) => h("td", { class: i > 0 && i < 5 ? "number" : "" }));
        const open = h(
          "button",
          { type: "button", class: "link", onclick: () => this.choose(segment.id) },
          String(segment.id),
        );
        const swatch = h("span", { class: "swatch" });
        const element = card(h("tr", {}, h("th", { scope: "row" }, swatch, open), cells), SEGMENT_COLUMNS);
        return { element, cells, swatch };
      },
      (row, segment) => {
        const waiting = Object.values(latest.segments?.[segment.id]?.backlog ?? {}).reduce(
          (most, one) => Math.max(most, one),
          0,
        );
        const values = [
          range(segment),
          messageRate(segment.rate[0]),
          messageRate(segment.rate[2]),
          percent(segment.heat),
          short(waiting),
          readers.get(segment.id)?.join(", ") ?? shared,
          owners?.[segment.id] ?? "–",
        ];
        values.forEach((value, i) => text(row.cells[i], value));
        row.cells[6].hidden = !owners;
        row.swatch.style.background = colourOf(segment.heat, theme());
        set(row.element, "aria-selected", segment.id === this.river.selected ? "true" : null);
      },
    );
  }

  decide() {
    const shown = [...this.model.decisions].reverse().slice(0, 60);
    this.decidedEmpty.hidden = shown.length > 0;
    keyed(
      this.decided,
      shown,
      (one) => `${one.at}-${one.kind}`,
      (one) => {
        const when = h("time", {});
        const what = h("strong", {});
        const why = h("span", {});
        return {
          element: h(
            "li",
            { class: one.kind },
            when,
            one.kind in DOING ? glyph(one.kind) : h("span", { class: "dot" }),
            h("div", {}, what, " ", why),
          ),
          when,
          what,
          why,
        };
      },
      (row, one) => {
        const lasted = one.until - one.at;
        text(row.when, clock(one.at, true));
        text(
          row.what,
          {
            stay: "Stayed.",
            failed: "Failed.",
            split: `Split ${one.segments.join(" and ")}.`,
            merge: `Merged ${one.segments.join(" and ")}.`,
            rebucket: `Replaced ${one.segments.join(" and ")}.`,
          }[one.kind],
        );
        text(row.why, `${sentence(one.because)}${one.kind === "stay" && lasted > 1500 ? ` (for ${ago(lasted)})` : ""}`);
      },
    );
  }

  /** What to type when nothing flows. */
  advise(answer) {
    const flowed = [...this.model.segments.values()].some((segment) => segment.rates.some((rates) => rates[0] > 0));
    const isQuiet =
      !flowed && answer.now - Math.min(...this.model.active.map((segment) => segment.created || 0)) > 3000;
    this.hint.hidden = !isQuiet;
    if (isQuiet && !this.hint.hasChildNodes()) {
      put(
        this.hint,
        h("h3", {}, "Nothing flows yet"),
        h("p", {}, "A dry bed: the topic is there, and no message came in the last hour. Send some:"),
        command(toService(`anabranch produce ${this.model.name} -m hello --key customer-7 -n 1000`, answer.serviceUrl)),
      );
    }
  }

  // -- legend

  heatBar() {
    const stops = Array.from({ length: 9 }, (_, i) => colourOfStep(Math.round((i / 8) * STEPS), theme()));
    this.bar = h("div", { class: "heat-bar", style: { background: `linear-gradient(90deg, ${stops.join(", ")})` } });
    this.legendBar.style.setProperty("--hottest", colourOfStep(STEPS, theme()));
    this.legendBar.style.setProperty("--over", ink(theme()).over);
    this.widthSample = s("svg", { class: "width-sample", width: 44, height: 30, "aria-hidden": "true" });
    this.widthText = h("span", {});
    put(
      this.legendBar,
      h(
        "div",
        { class: "legend-item" },
        h("span", { class: "legend-name" }, "Heat"),
        h(
          "div",
          { class: "heat" },
          this.bar,
          h("div", { class: "heat-ticks" }, h("span", {}, "idle"), h("span", {}, "50 %"), h("span", {}, "split limit")),
        ),
        h("span", { class: "over-sample", "aria-hidden": "true" }),
        h("span", {}, "dashed: over it"),
      ),
      h(
        "div",
        { class: "legend-item" },
        h("span", { class: "legend-name" }, "Width"),
        this.widthSample,
        this.widthText,
      ),
      h(
        "div",
        { class: "legend-item" },
        h("span", { class: "mark split still" }, glyph("split")),
        "split",
        h("span", { class: "mark merge still" }, glyph("merge")),
        "merge",
        h("span", { class: "mark rebucket still" }, glyph("rebucket")),
        "other entry buckets; hover or focus for the reason",
      ),
      h(
        "div",
        { class: "legend-item" },
        h("span", { class: "stay-sample" }),
        "looked, and left as it is",
        h("span", { class: "stay-sample failed" }),
        "tried, and failed",
      ),
    );
    this.legend();
  }

  legend() {
    const sample = this.river.sample;
    text(this.widthText, sample ? `${this.river.rated(sample.rate)}` : "no traffic in this time");
    const px = sample ? sample.px : 2;
    put(
      this.widthSample,
      s("rect", {
        x: 0,
        y: 15 - px / 2,
        width: 44,
        height: px,
        rx: Math.min(3, px / 2),
        fill: colourOf(0.35, theme()),
      }),
    );
  }
}
