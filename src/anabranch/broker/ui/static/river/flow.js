// Streaks of light that drift along the streams, so that the river is seen to flow. Decoration: nothing depends on it.

import { columnAt } from "./geometry.js";

const STREAKS_MAX = 180;
const PX_PER_SECOND = 34;
const LENGTH_PX = 26;

function heightAt(stream, x, share) {
  const i = columnAt(stream, x);
  const j = Math.min(i + 1, stream.xs.length - 1);
  const u = j > i ? (x - stream.xs[i]) / (stream.xs[j] - stream.xs[i]) : 0;
  const middle = stream.middle[i] + (stream.middle[j] - stream.middle[i]) * u;
  return middle + share * (stream.half[i] + (stream.half[j] - stream.half[i]) * u);
}

export class Flow {
  constructor(chance = Math.random) {
    this.chance = chance;
    this.streaks = [];
  }

  /** The picture has changed: streaks stay where they are if their stream is still there. */
  follow(picture) {
    this.picture = picture;
    const area = [];
    let total = 0;
    for (const stream of picture.streams.values()) {
      const widest = stream.half.reduce((most, one) => Math.max(most, one), 0);
      if (widest < 2) continue;
      total += (stream.xs[stream.xs.length - 1] - stream.xs[0]) * Math.sqrt(widest);
      area.push([total, stream]);
    }
    this.area = area;
    this.total = total;
    const wanted = Math.min(STREAKS_MAX, Math.round(total / 45));
    this.streaks = this.streaks.filter((one) => picture.streams.has(one.id)).slice(0, wanted);
    while (this.streaks.length < wanted) this.streaks.push(this.fresh({}));
  }

  fresh(streak) {
    const point = this.chance() * this.total;
    const [, stream] = this.area.find(([until]) => until >= point) ?? this.area[this.area.length - 1];
    streak.id = stream.id;
    streak.x = stream.xs[0] + this.chance() * (stream.xs[stream.xs.length - 1] - stream.xs[0]);
    streak.share = (this.chance() * 2 - 1) * 0.78;
    streak.speed = PX_PER_SECOND * (0.6 + 0.8 * this.chance());
    streak.age = 0;
    streak.life = 2.5 + 3 * this.chance();
    return streak;
  }

  /** Moves on by `seconds` and paints. */
  paint(context, seconds, colour) {
    if (!this.area?.length) return;
    context.strokeStyle = colour;
    context.lineCap = "round";
    for (const streak of this.streaks) {
      streak.x += streak.speed * seconds;
      streak.age += seconds;
      let stream = this.picture.streams.get(streak.id);
      if (streak.x > stream.xs[stream.xs.length - 1]) {
        const heirs = stream.segment.children.map((id) => this.picture.streams.get(id)).filter(Boolean);
        // The one on its side of the water.
        stream = heirs.length > 1 ? heirs[streak.share < 0 ? 0 : heirs.length - 1] : heirs[0];
        if (stream) streak.id = stream.id;
      }
      if (!stream || streak.age > streak.life) {
        this.fresh(streak);
        continue;
      }
      const i = columnAt(stream, streak.x);
      if (stream.half[i] < 1.2) continue;
      context.globalAlpha = Math.sin((Math.PI * streak.age) / streak.life);
      context.lineWidth = Math.min(1.3, 0.6 + stream.half[i] / 30);
      context.beginPath();
      for (let behind = LENGTH_PX; behind >= 0; behind -= LENGTH_PX / 4) {
        const x = Math.max(stream.xs[0], streak.x - behind);
        context.lineTo(x, heightAt(stream, x, streak.share));
      }
      context.stroke();
    }
    context.globalAlpha = 1;
  }
}
