// The page of the cluster: brokers as banks, the bundles between them, each move with its reason.

import { BanksView, kindOf, shortBundle } from "./cluster/banks.js";
import { ClusterModel } from "./cluster/model.js";
import { StoryPanel } from "./cluster/story.js";
import { grouped, keyOf } from "./cluster/streams.js";
import { colourOf } from "./colour.js";
import { command, h, keyed, put, set, text } from "./dom.js";
import { ago, byteRate, clock, count, percent, short } from "./format.js";
import { glyph } from "./river/marks.js";
import { onTheme, theme } from "./theme.js";

const SPANS = [
  [300_000, "5 min"],
  [900_000, "15 min"],
  [3600_000, "1 h"],
];
const BUNDLE_COLUMNS = ["Bundle", "Broker", "State", "In", "Out", "Bytes", "Topics", "Of split limit"];
const MOVE_COLUMNS = ["Time", "What", "Bundle", "From", "To", "State", "Reason"];
const LINES_MAX = 200;

const LEADS = {
  balanced:
    "Each bank is a broker, each stream a bundle: a share of a namespace's topics. Thicker: more traffic. What crosses over has moved, and the mark says why.",
  hashed:
    "Each bank is a broker, each stream a bundle: a share of a namespace's topics. A hash over the living brokers gives each bundle its broker, so none is moved for its load.",
};

export class ClusterPage {
  constructor(tips) {
    document.title = "Cluster · Anabranch";
    this.model = new ClusterModel();
    this.view = new BanksView(this.model, tips, (name) => this.choose(name));
    this.story = new StoryPanel(this.model);
    this.filter = "";
    this.opened = new Set();
    this.build();
    this.stopTheme = onTheme(() => this.model.latest && this.show());
  }

  get url() {
    return `/ui/api/cluster?since=${this.model.since}`;
  }

  close() {
    this.view.close();
    this.stopTheme();
  }

  build() {
    this.summary = h("p", { class: "summary" });
    this.verdict = h("p", { class: "verdict" });
    this.safe = h("div", { class: "card safe", role: "status", hidden: true });
    this.lead = h("p", { class: "lead" });
    this.spans = h("div", { class: "choice", role: "group", "aria-label": "How much time the picture shows" });
    for (const [ms, label] of SPANS)
      this.spans.append(h("button", { type: "button", "data-span": ms, onclick: () => this.setSpan(ms) }, label));
    this.legend = h("div", { class: "legend", role: "note", "aria-label": "Legend" });
    this.search = h("input", {
      type: "search",
      placeholder: "Filter by name or broker",
      "aria-label": "Filter bundles by name or broker",
      oninput: () => {
        this.filter = this.search.value.trim().toLowerCase();
        this.listBundles();
      },
    });
    this.more = h("p", { class: "quiet" });
    this.rows = h("tbody", {});
    this.lines = h("tbody", {});
    this.noMoves = h("p", { class: "hint" }, "Nothing has moved in the last hour.");
    this.alone = h("section", { class: "card", hidden: true });
    this.several = h(
      "div",
      {},
      this.safe,
      h(
        "section",
        { class: "card banks-card" },
        h(
          "div",
          { class: "card-head" },
          h("div", {}, h("h2", {}, "Brokers and bundles"), this.lead),
          h("div", { class: "controls" }, this.spans),
        ),
        this.view.element,
        this.legend,
      ),
      h(
        "div",
        { class: "columns" },
        h(
          "section",
          { class: "card" },
          h("div", { class: "card-head" }, h("h2", {}, "Bundles", h("span", { class: "unit" }, "busiest first")), this.search),
          this.table("bundles", BUNDLE_COLUMNS, this.rows, (i) => i > 2),
          this.more,
        ),
        this.story.element,
      ),
      (this.movesCard = h(
        "section",
        { class: "card" },
        h("h2", {}, "Moves", h("span", { class: "unit" }, "of the last hour, latest first")),
        this.noMoves,
        (this.movesTable = this.table("moves", MOVE_COLUMNS, this.lines, () => false)),
      )),
    );
    this.element = h(
      "div",
      { class: "page cluster" },
      h("h1", {}, "Cluster"),
      this.summary,
      this.verdict,
      this.alone,
      this.several,
    );
  }

  table(name, columns, rows, isNumber) {
    const heads = columns.map((one, i) => h("th", { scope: "col", class: isNumber(i) ? "number" : "" }, one));
    return h("div", { class: "scroll" }, h("table", { class: name }, h("thead", {}, h("tr", {}, heads)), rows));
  }

  choose(name) {
    this.view.selected = name;
    this.story.show(name);
    this.view.draw();
    this.listBundles();
  }

  setSpan(ms) {
    this.view.span = ms;
    this.show();
  }

  take(answer) {
    this.model.take(answer);
    this.show();
    this.story.update();
  }

  show() {
    const { latest } = this.model;
    // A role without rights is told of no broker.
    if (!latest.brokers.length) {
      this.several.hidden = true;
      text(this.summary, "You have no rights to see this cluster.");
      return;
    }
    const isAlone = latest.kind === "alone";
    this.several.hidden = isAlone;
    this.alone.hidden = !isAlone;
    this.summarize(latest);
    if (isAlone) {
      if (!this.alone.hasChildNodes())
        put(
          this.alone,
          h("p", { class: "lead" }, "One broker serves all topics, so there is nothing to share and nothing to move. Several on this machine:"),
          command("anabranch standalone --brokers 3 --set loadManagerClassName=balanced"),
        );
      return;
    }
    const isBalanced = latest.kind === "balanced";
    text(this.lead, LEADS[latest.kind]);
    this.spans.hidden = this.movesCard.hidden = !isBalanced;
    for (const button of this.spans.children)
      set(button, "aria-pressed", Number(button.dataset.span) === this.view.span);
    this.view.draw();
    this.explainSigns(isBalanced);
    this.listBundles();
    if (isBalanced) this.listMoves();
  }

  summarize(latest) {
    const flights = this.model.inFlight.length;
    const parts = [
      count(latest.brokers.filter((one) => !one.isGone).length, "broker"),
      latest.kind === "alone" ? null : count(latest.bundleCount, "bundle"),
      latest.kind === "balanced" ? (latest.leader ? `led by ${latest.leader}` : "no leader at the moment") : null,
      flights ? `${flights} in flight` : null,
      latest.silent.length ? `without ${latest.silent.join(", ")}, which did not answer` : null,
      latest.channelLag > 2 ? `states as of ${ago(latest.channelLag * 1000)} ago` : null,
    ];
    text(this.summary, parts.filter(Boolean).join("  ·  "));
    const { shedding, safeMode } = latest;
    text(this.verdict, shedding ? `${shedding.because} (looked at ${clock(shedding.untilMs, true)})` : "");
    this.verdict.hidden = !shedding;
    this.safe.hidden = !safeMode;
    if (safeMode) put(this.safe, h("strong", {}, "Safe mode: no bundle is moved. "), `${safeMode}.`);
  }

  explainSigns(isBalanced) {
    const state = `${isBalanced}/${theme()}`;
    if (this.signs === state) return;
    this.signs = state;
    const sample = (heat) => h("span", { class: "swatch", style: { background: colourOf(heat, theme()) } });
    const sign = (kind, word) => [h("span", { class: `mark ${kind} still` }, glyph(kind)), word];
    put(
      this.legend,
      h("div", { class: "legend-item" }, h("span", { class: "legend-name" }, "Width"), "messages a second, in and out, as of now"),
      isBalanced
        ? [
            h("div", { class: "legend-item" }, h("span", { class: "legend-name" }, "Colour"), sample(0), "idle", sample(0.5), "half", sample(1), "at its split limit"),
            h("div", { class: "legend-item" }, sign("transfer", "transfer"), sign("unload", "unload"), sign("split", "split"), sign("repair", "repair")),
            h("div", { class: "legend-item" }, h("span", { class: "flight-sample" }), "in flight"),
          ]
        : null,
    );
  }

  listBundles() {
    if (!this.model.latest) return;
    const { bundles, bundleCount, kind } = this.model.latest;
    const rate = (one) => (one.in ?? 0) + (one.out ?? 0);
    const isMoving = (one) => one.state === "assigning" || one.state === "splitting";
    const shown = bundles
      .filter((one) => `${one.name} ${one.owner ?? ""} ${one.state}`.toLowerCase().includes(this.filter))
      .sort((a, b) => isMoving(b) - isMoving(a) || rate(b) - rate(a) || (a.name < b.name ? -1 : 1));
    keyed(
      this.rows,
      shown,
      (one) => one.name,
      (one) => {
        const cells = BUNDLE_COLUMNS.slice(1).map((_, i) => h("td", { class: i > 1 ? "number" : "" }));
        const swatch = h("span", { class: "swatch" });
        const open = h("button", { type: "button", class: "link", onclick: () => this.choose(one.name) }, shortBundle(one.name));
        const space = h("span", { class: "under" }, ` ${one.name.split("/").slice(0, 2).join("/")}`);
        return { element: h("tr", {}, h("th", { scope: "row" }, swatch, open, space), cells), cells, swatch };
      },
      (row, one) => {
        const goes = one.destination ? `${one.owner ?? one.source ?? "–"} → ${one.destination}` : one.owner;
        const isKnown = one.in !== undefined;
        const values = [
          goes ?? (one.lost ? `${one.lost}, gone` : "–"),
          one.state,
          isKnown ? short(one.in) : "–",
          isKnown ? short(one.out) : "–",
          isKnown ? byteRate(one.bytes) : "–",
          isKnown ? String(one.topics) : "–",
          isKnown && kind === "balanced" ? percent(one.heat) : "–",
        ];
        values.forEach((value, i) => text(row.cells[i], value));
        row.swatch.style.background = colourOf(one.heat ?? 0, theme());
        set(row.element, "aria-selected", one.name === this.view.selected ? "true" : null);
      },
    );
    this.more.hidden = bundleCount <= bundles.length;
    text(this.more, bundleCount > bundles.length ? `The ${bundles.length} busiest of ${bundleCount} bundles.` : "");
  }

  listMoves() {
    const lines = [];
    for (const { key, moves } of grouped(this.model.told)) {
      const isRun = moves.length > 1;
      lines.push({ key, move: moves[0], group: isRun ? moves : null });
      if (isRun && this.opened.has(key)) for (const move of moves) lines.push({ key: `${keyOf(move)}/each`, move });
    }
    this.noMoves.hidden = lines.length > 0;
    this.movesTable.hidden = !lines.length;
    keyed(
      this.lines,
      lines.slice(0, LINES_MAX),
      (line) => line.key,
      (line) => {
        const cells = MOVE_COLUMNS.slice(1).map(() => h("td", {}));
        const time = h("time", {});
        const sign = h("span", { class: "sign" }, glyph(line.move.kind));
        const word = h("span", {});
        const open = h("button", { type: "button", class: "link" });
        cells[0].append(sign, word);
        cells[1].append(open);
        open.addEventListener("click", () => (line.group ? this.toggle(line.key) : this.choose(line.move.bundle)));
        return { element: h("tr", {}, h("td", {}, time), cells), cells, time, word, open };
      },
      (row, line) => this.line(row, line),
    );
  }

  line(row, { group, move, key }) {
    const some = group ?? [move];
    const took = move.endedMs === null ? null : move.endedMs - move.beganMs;
    const to = [...new Set(some.map((one) => one.to).filter(Boolean))];
    const parts = move.children ? `${move.children.length} parts` : "–";
    text(row.time, clock(move.beganMs, true));
    text(row.word, kindOf(move));
    text(row.open, group ? `${group.length} bundles${this.opened.has(key) ? ", hide" : ""}` : shortBundle(move.bundle));
    set(row.open, "aria-expanded", group ? String(this.opened.has(key)) : null);
    text(row.cells[2], move.kind === "assignment" ? "–" : (move.from ?? "–"));
    text(row.cells[3], move.kind === "split" ? parts : to.length > 1 ? count(to.length, "broker") : (to[0] ?? "no owner"));
    text(row.cells[4], took === null || group ? move.state : `${move.state}, ${took < 1000 ? `${took} ms` : ago(took)}`);
    text(row.cells[5], move.reason);
    set(row.element, "class", move.endedMs === null ? "flying" : null);
  }

  toggle(key) {
    if (!this.opened.delete(key)) this.opened.add(key);
    this.listMoves();
  }
}
