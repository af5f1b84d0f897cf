// The mouths: who reads the topic, and from which streams. Drawn to the right of the river.

import { colourOf } from "../colour.js";
import { h, put, s } from "../dom.js";
import { count, short } from "../format.js";

const FAN_PX = 58;
const FAN_NARROW_PX = 30;
const SLOT_MIN_PX = 19;
const TWO_LINES_PX = 34;

/** Who reads what, for one subscription: mouths from top to bottom, each with its streams. Pure. */
export function mouthsOf(subscription, streams, figures) {
  if (!subscription) return [];
  const backlog = (ids) => ids.reduce((all, id) => all + (figures?.[id]?.backlog?.[subscription.name] ?? 0), 0);
  const active = streams.filter((stream) => stream.isActive);
  const ids = active.map((stream) => stream.id);
  if (!subscription.consumers.length) {
    if (!subscription.consumerCount) return [];
    const name = count(subscription.consumerCount, "consumer");
    return [{ name, note: "every segment", backlog: backlog(ids), ids, isConnected: true }];
  }
  const middle = new Map(active.map((stream) => [stream.id, stream.middle[stream.middle.length - 1]]));
  const mouths = subscription.consumers.map((consumer) => {
    const mine = consumer.segments.filter((id) => middle.has(id));
    const sealed = consumer.segments.length - mine.length;
    // What is sealed comes first, to keep the order; the active segments follow once it is read.
    const reads = sealed && !mine.length ? `${sealed} sealed first` : count(mine.length, "segment");
    return {
      name: consumer.connected ? consumer.name : `${consumer.name} (away)`,
      note: reads,
      backlog: backlog(consumer.segments),
      ids: mine,
      isConnected: consumer.connected,
      at: mine.length ? mine.reduce((all, id) => all + middle.get(id), 0) / mine.length : Infinity,
    };
  });
  return mouths.sort((a, b) => a.at - b.at || (a.name < b.name ? -1 : 1));
}

function clipped(name, room) {
  return name.length <= room
    ? name
    : `${name.slice(0, Math.ceil(room / 2) - 1)}…${name.slice(name.length - Math.floor(room / 2))}`;
}

/** Where each mouth lies: near the middle of its streams, and no two on top of each other. Pure. */
export function places(mouths, height, slot) {
  const ys = mouths.map((mouth) => (Number.isFinite(mouth.at) ? mouth.at : height / 2));
  for (let i = 0; i < ys.length; i++) ys[i] = Math.max(ys[i], i ? ys[i - 1] + slot : slot / 2);
  for (let i = ys.length - 1; i >= 0; i--)
    ys[i] = Math.min(ys[i], i + 1 < ys.length ? ys[i + 1] - slot : height - slot / 2);
  return ys;
}

export function drawMouths(svg, { picture, shift, subscription, figures, theme, width, height }) {
  const streams = [...picture.streams.values()];
  const active = streams.filter((stream) => stream.isActive);
  let mouths = mouthsOf(subscription, streams, figures);
  const room = Math.max(1, Math.floor(height / SLOT_MIN_PX));
  let more = 0;
  if (mouths.length > room) {
    more = mouths.length - room + 1;
    mouths = mouths.slice(0, room - 1);
  }
  const fan = width < 150 ? FAN_NARROW_PX : FAN_PX;
  const slot = Math.min(54, height / (mouths.length + (more ? 1 : 0) || 1));
  const ys = places(mouths, height - (more ? slot : 0), slot);
  const end = (stream) => {
    const i = stream.xs.length - 1;
    return { y: stream.middle[i], half: stream.half[i], colour: colourOf(stream.heat[i], theme) };
  };
  const drawn = [];
  const served = new Set();
  mouths.forEach((mouth, m) => {
    const arms = mouth.ids.map((id) => picture.streams.get(id)).filter(Boolean);
    const thick = Math.min(slot * 0.5, arms.reduce((all, stream) => all + end(stream).half * 2, 0) * 0.7, 26);
    let at = ys[m] - thick / 2;
    for (const stream of arms) {
      served.add(stream.id);
      const { y, half, colour } = end(stream);
      const part = thick / arms.length;
      drawn.push(
        s("path", {
          d: ribbon(y, half, at + part / 2, part / 2, fan),
          fill: colour,
          class: "arm",
          opacity: mouth.isConnected ? 0.8 : 0.3,
        }),
      );
      at += part;
    }
    drawn.push(...label(mouth, ys[m], slot, width, fan));
  });
  for (const stream of active) {
    if (served.has(stream.id)) continue;
    const { y, half, colour } = end(stream);
    drawn.push(
      s("path", { d: ribbon(y, half, y, Math.min(half, 0.6), 30), fill: colour, class: "arm", opacity: 0.45 }),
    );
  }
  if (more) drawn.push(s("text", { x: fan + 8, y: height - slot / 2 + 4, class: "mouth-note" }, `and ${more} more`));
  put(svg, drawn);
}

function ribbon(y0, half0, y1, half1, length) {
  const bend = length * 0.55;
  return (
    `M0 ${(y0 - half0).toFixed(1)} C${bend} ${(y0 - half0).toFixed(1)} ${length - bend} ${(y1 - half1).toFixed(1)} ${length} ${(y1 - half1).toFixed(1)} ` +
    `L${length} ${(y1 + half1).toFixed(1)} C${length - bend} ${(y1 + half1).toFixed(1)} ${bend} ${(y0 + half0).toFixed(1)} 0 ${(y0 + half0).toFixed(1)} Z`
  );
}

function label(mouth, y, slot, width, fan) {
  const room = Math.max(6, Math.floor((width - fan - 12) / 7.2));
  const two = slot >= TWO_LINES_PX;
  const backlog = `${short(mouth.backlog)} waiting`;
  const full = `${mouth.name}: ${mouth.note}, ${backlog}`;
  const name = s(
    "text",
    { x: fan + 8, y: y + (two ? -2 : 4), class: "mouth-name" },
    clipped(mouth.name, room),
    s("title", {}, full),
  );
  return two
    ? [
        name,
        s(
          "text",
          { x: fan + 8, y: y + 13, class: "mouth-note" },
          clipped(width < 150 ? backlog : `${mouth.note}, ${backlog}`, Math.floor((width - fan - 8) / 6.1)),
        ),
      ]
    : [name];
}

/** What stands at the mouths when nobody is connected. Whoever reads the log's own files, as Spark may, never is. */
export function nobody(name, subscription) {
  if (subscription)
    return h(
      "div",
      { class: "nobody" },
      h("strong", {}, "No consumer is connected"),
      h("p", {}, `${short(subscription.backlog)} wait for subscription ${subscription.name}.`),
      h("p", {}, "Spark's queries read the log themselves and move it on as they commit."),
    );
  return h(
    "div",
    { class: "nobody" },
    h("strong", {}, "Nobody reads this topic"),
    h("p", {}, "Consumers appear here, at the mouths."),
    h("code", {}, `anabranch consume ${name} -s mine --start earliest`),
  );
}
