// The first page: what the broker does, and every topic at a glance.

import { TimeChart, sparkline } from "./charts.js";
import { colourOf } from "./colour.js";
import { toAdmin, toService } from "./commands.js";
import { card, command, h, keyed, put, s, set, text } from "./dom.js";
import { ago, byteRate, bytes, count, messageRate, percent, short, shortName } from "./format.js";
import { theme } from "./theme.js";

const HOUR = 3600_000;

const COLUMNS = [
  { name: "Topic", key: "name" },
  { name: "Last hour", key: null, hint: "messages in" },
  { name: "Cross-section", key: "segmentCount", hint: "segments by heat" },
  { name: "In", key: "msgRateIn", number: true, hint: "msg/s" },
  { name: "Out", key: "msgRateOut", number: true, hint: "msg/s" },
  { name: "Heat", key: "heat", number: true, hint: "hottest segment, of its limit" },
  { name: "Waiting", key: "backlog", number: true, hint: "messages" },
  { name: "Consumers", key: "consumers", number: true },
];

// The cells after the pictures.
const FIGURES = COLUMNS.slice(3);

const BROKER_COLUMNS = [
  "Broker",
  "Clients connect to",
  "Up for",
  "Connections",
  "Memory",
  "Event loop is late by",
  "Topics open",
  "In, msg/s",
  "Out, msg/s",
  "Disk",
];
// A broker that is alone has these columns; the others compare brokers with each other.
const ALONE = 6;
const DISK = 9;
const isShown = (column, several) => column < ALONE || column === DISK || several;
const used = (disk) =>
  !disk
    ? "–"
    : disk.capacityBytes
      ? `${bytes(disk.usedBytes)} of ${bytes(disk.capacityBytes)}`
      : bytes(disk.usedBytes);
const KINDS = {
  disk: "Disk full",
  connections: "Connections paused",
  quota: "Backlog quota",
  "hidden write": "Hidden write",
  unacknowledged: "Not acknowledged",
  dispatch: "Dispatch stopped",
  buckets: "Entry buckets",
};

const UNOPENED = "Nobody has opened this topic since the broker started: what waits in it is not known yet.";
const waiting = (topic) => (topic.backlog === null ? "?" : short(topic.backlog));

export const topicHref = (topic) => {
  const [, , tenant, namespace, ...rest] = topic.split("/");
  return `#/topics/${tenant}/${namespace}/${encodeURIComponent(rest.join("/"))}`;
};

export class OverviewPage {
  constructor() {
    document.title = "Topics · Anabranch";
    this.since = 0;
    this.totals = [];
    this.sparks = new Map();
    this.sort = { key: "msgRateIn", down: true };
    this.filter = "";
    this.build();
  }

  get url() {
    return `/ui/api/overview?since=${this.since}&q=${encodeURIComponent(this.filter)}`;
  }

  close() {
    for (const chart of [this.throughput, this.backlog]) chart.close();
  }

  build() {
    this.throughput = new TimeChart({
      title: "Throughput",
      unit: "messages per second, all topics",
      format: short,
      series: [
        { name: "in", className: "in", at: 1 },
        { name: "out", className: "out", at: 2 },
      ],
      empty: "Nothing measured yet: the first points appear within twenty seconds.",
    });
    this.backlog = new TimeChart({
      title: "Backlog",
      unit: "messages stored and not yet acknowledged",
      format: short,
      series: [{ name: "waiting", className: "waiting", at: 5 }],
      empty: "Nothing measured yet.",
    });
    this.figures = h("div", { class: "figures" });
    this.search = h("input", {
      type: "search",
      placeholder: "Filter by name",
      "aria-label": "Filter topics by name",
      oninput: () => this.filtered(),
    });
    // Narrow windows show rows as cards, which takes the meaning of a table from its elements: roles give it back.
    this.rows = h("tbody", { role: "rowgroup" });
    this.heads = COLUMNS.map((column) => this.head(column));
    this.table = h(
      "div",
      { class: "scroll tall" },
      h(
        "table",
        { class: "topics", role: "table" },
        h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, this.heads)),
        this.rows,
      ),
    );
    this.more = h("p", { class: "quiet" });
    this.empty = h("div", { class: "empty", hidden: true });
    this.brokers = h("tbody", { role: "rowgroup" });
    this.brokerHeads = BROKER_COLUMNS.map((name, i) =>
      h("th", { scope: "col", class: i > 1 ? "number" : "", hidden: !isShown(i, false) }, name),
    );
    this.troubles = h("ul", { class: "troubles" });
    this.moreTroubles = h("p", { class: "quiet" });
    this.troublesCard = h(
      "section",
      { class: "card troubled", role: "status", "aria-label": "Held back", hidden: true },
      h("h2", {}, "Held back"),
      this.troubles,
      this.moreTroubles,
    );
    this.brokersCard = h(
      "section",
      { class: "card" },
      h("h2", {}, "Brokers"),
      h(
        "div",
        { class: "scroll" },
        h(
          "table",
          { class: "cards", role: "table" },
          h(
            "thead",
            { role: "rowgroup" },
            h("tr", { role: "row" }, this.brokerHeads),
          ),
          this.brokers,
        ),
      ),
    );
    this.element = h(
      "div",
      { class: "page overview" },
      h("h1", {}, "Topics"),
      h(
        "p",
        { class: "lead" },
        "Topics that scale themselves: a topic is a river of segments that split when they run hot and merge when they run cold. Open one to watch it.",
      ),
      this.troublesCard,
      this.figures,
      h(
        "section",
        { class: "card" },
        h("div", { class: "card-head" }, h("h2", {}, "All topics"), this.search),
        this.table,
        this.more,
        this.empty,
      ),
      h("div", { class: "columns even" }, this.throughput.element, this.backlog.element),
      this.brokersCard,
    );
  }

  head(column) {
    const label = [column.name, column.hint ? h("span", { class: "unit" }, column.hint) : null];
    if (!column.key) return h("th", { scope: "col", role: "columnheader" }, h("span", { class: "th" }, label));
    const button = h("button", { type: "button", class: "th" }, label);
    button.addEventListener("click", () => {
      this.sort = { key: column.key, down: this.sort.key === column.key ? !this.sort.down : column.key !== "name" };
      this.list();
    });
    return h("th", { scope: "col", role: "columnheader", class: column.number ? "number" : "" }, button);
  }

  filtered() {
    this.filter = this.search.value.trim().toLowerCase();
    this.list();
    this.onQuestion?.();
  }

  take(answer) {
    this.answer = answer;
    for (const total of answer.totals ?? [])
      if (!this.totals.length || total[0] > this.totals[this.totals.length - 1][0]) this.totals.push(total);
    while (this.totals.length && this.totals[0][0] < answer.now - HOUR) this.totals.shift();
    for (const topic of answer.topics) {
      const spark = this.sparks.get(topic.name) ?? this.sparks.set(topic.name, []).get(topic.name);
      for (const point of topic.spark) if (!spark.length || point[0] > spark[spark.length - 1][0]) spark.push(point);
      while (spark.length && spark[0][0] < answer.now - HOUR) spark.shift();
    }
    this.since = Math.max(this.since, ...(answer.totals ?? []).map((total) => total[0]));
    this.list();
    this.sums(answer);
    const from = Math.max(answer.now - HOUR, Math.min(this.totals[0]?.[0] ?? 0, answer.now - 300_000));
    this.throughput.show(this.totals, from, answer.now);
    this.backlog.show(this.totals, from, answer.now);
    this.listBrokers(answer);
    this.listTroubles(answer);
  }

  listTroubles(answer) {
    const troubles = answer.troubles ?? [];
    this.troublesCard.hidden = !troubles.length;
    keyed(
      this.troubles,
      troubles,
      (one) => `${one.kind} ${one.topic} ${one.subscription}`,
      (one) => {
        const because = h("span", {});
        const about = one.topic.startsWith("topic://") || one.topic.startsWith("persistent://");
        const name = about ? h("a", { href: topicHref(one.topic.replace(/-partition-\d+$/, "")) }, one.topic) : one.topic;
        const element = h(
          "li",
          {},
          h("strong", {}, KINDS[one.kind] ?? one.kind),
          " ",
          name,
          one.subscription ? ` · ${one.subscription}` : "",
          h("div", {}, because),
        );
        return { element, because };
      },
      (row, one) => text(row.because, one.because),
    );
    text(this.moreTroubles, answer.moreTroubles ? `and ${answer.moreTroubles} more` : "");
  }

  sums(answer) {
    const total = this.totals[this.totals.length - 1] ?? [0, 0, 0, 0, 0, 0];
    const tiles = [
      [count(answer.topicCount, "topic"), `${count(answer.segmentCount, "segment")} open, with sealed ones`],
      [messageRate(total[1]), `in, ${byteRate(total[3])}`],
      [messageRate(total[2]), `out, ${byteRate(total[4])}`],
      [short(total[5]), "messages waiting"],
    ];
    keyed(
      this.figures,
      tiles.map((tile, i) => ({ tile, i })),
      ({ i }) => i,
      () => {
        const value = h("strong", {});
        const note = h("span", {});
        return { element: h("div", { class: "figure" }, value, note), value, note };
      },
      (row, { tile }) => {
        text(row.value, tile[0]);
        text(row.note, tile[1]);
      },
    );
  }

  list() {
    if (!this.answer) return;
    const { topics, topicCount, now } = this.answer;
    const { key, down } = this.sort;
    const shown = topics.filter((topic) => topic.name.toLowerCase().includes(this.filter));
    shown.sort(
      (a, b) => (a[key] < b[key] ? -1 : a[key] > b[key] ? 1 : 0) * (down ? -1 : 1) || (a.name < b.name ? -1 : 1),
    );
    this.heads.forEach((head, i) =>
      set(head, "aria-sort", COLUMNS[i].key && COLUMNS[i].key === key ? (down ? "descending" : "ascending") : null),
    );
    keyed(
      this.rows,
      shown,
      (topic) => topic.name,
      (topic) => this.row(topic),
      (row, topic) => this.update(row, topic, now),
    );
    this.table.hidden = !shown.length;
    this.empty.hidden = shown.length > 0;
    text(
      this.more,
      this.answer.matching > topics.length ? `The ${topics.length} busiest of ${this.answer.matching} topics.` : "",
    );
    if (!shown.length) this.explain(topicCount);
  }

  explain(topicCount) {
    const state = topicCount ? `filter ${this.filter}` : "none";
    if (this.explained === state) return;
    this.explained = state;
    put(
      this.empty,
      topicCount
        ? h("p", {}, `No topic has “${this.filter}” in its name.`)
        : [
            h("h3", {}, "No topics yet"),
            h("p", {}, "Make one, and it appears here:"),
            command(toAdmin("anabranch topics create orders --scalable")),
            h("p", {}, "Send it a message:"),
            command(
              toService(
                "anabranch produce topic://public/default/orders -m hello --key customer-7",
                this.answer.brokers?.find((broker) => broker.isThis)?.serviceUrl,
              ),
            ),
          ],
    );
  }

  row(topic) {
    const { namespace, local } = shortName(topic.name);
    const spark = s("svg", { class: "spark", "aria-hidden": "true", preserveAspectRatio: "none" });
    const section = h("div", { class: "section" });
    const cells = FIGURES.map(({ name, hint }) =>
      h("td", { class: "number", role: "cell", "data-label": hint === "msg/s" ? `${name}, ${hint}` : name }),
    );
    const note = h("span", { class: "quiet" });
    const element = h(
      "tr",
      { role: "row" },
      h(
        "th",
        { scope: "row", role: "rowheader" },
        h("a", { href: topicHref(topic.name) }, local),
        h("div", { class: "under" }, namespace, note),
      ),
      h("td", { role: "cell" }, spark),
      h("td", { role: "cell" }, section),
      cells,
    );
    return { element, spark, section, cells, note };
  }

  update(row, topic, now) {
    text(row.note, topic.kind === "classic" ? " · classic" : "");
    sparkline(row.spark, this.sparks.get(topic.name) ?? [], now - HOUR, now);
    const state = JSON.stringify([topic.section, theme()]);
    if (row.state !== state) {
      row.state = state;
      put(
        row.section,
        topic.section.map(([share, heat]) =>
          h("span", {
            style: { "flex-grow": String(Math.max(0.01, share ** 0.6)), background: colourOf(heat, theme()) },
          }),
        ),
      );
      const label =
        topic.kind === "classic" ? count(topic.segmentCount, "partition") : count(topic.segmentCount, "segment");
      row.section.append(h("em", {}, label));
    }
    const heat = topic.kind === "classic" ? "–" : percent(topic.heat);
    [short(topic.msgRateIn), short(topic.msgRateOut), heat, waiting(topic), String(topic.consumers)].forEach(
      (value, i) => text(row.cells[i], value),
    );
    set(row.cells[3], "title", topic.backlog === null ? UNOPENED : null);
  }

  listBrokers(answer) {
    this.brokersCard.hidden = !answer.brokers;
    const several = (answer.brokers ?? []).some((broker) => broker.isSilent !== undefined);
    this.brokerHeads.forEach((head, i) => (head.hidden = !isShown(i, several)));
    keyed(
      this.brokers,
      answer.brokers ?? [],
      (broker) => broker.serviceUrl,
      () => {
        const cells = BROKER_COLUMNS.slice(1).map((_, i) =>
          h("td", { class: i ? "number" : "", hidden: !isShown(i + 1, false) }),
        );
        const name = h("th", { scope: "row" });
        return { element: card(h("tr", {}, name, cells), BROKER_COLUMNS), name, cells };
      },
      (row, broker) => {
        const note = broker.isThis ? " (this one)" : broker.isSilent ? " (does not answer)" : "";
        text(row.name, broker.name + note);
        set(row.element, "class", broker.isSilent ? "silent" : null);
        const unknown = broker.connections === undefined;
        const values = [
          broker.serviceUrl,
          ago(answer.now - broker.started),
          unknown ? "–" : String(broker.connections),
          unknown ? "–" : bytes(broker.memory),
          unknown ? "–" : `${(broker.lag * 1000).toFixed(0)} ms`,
          broker.topics === undefined ? "–" : String(broker.topics),
          broker.in === undefined ? "–" : short(broker.in),
          broker.out === undefined ? "–" : short(broker.out),
          used(broker.disk),
        ];
        row.cells.forEach((cell, i) => (cell.hidden = !isShown(i + 1, several)));
        set(row.cells[DISK - 1], "title", broker.disk?.told ?? null);
        values.forEach((value, i) => text(row.cells[i], value));
      },
    );
  }
}
