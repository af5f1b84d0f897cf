// The shape of the river: where each stream runs and how wide it is. Pure: numbers in, numbers out.
//
// Time runs to the right and the hash space from top to bottom. Each segment has a lane, the share of the height that
// belongs to its range of hashes, from its creation to its sealing. In it runs a stream whose width is its rate, on one
// scale for the whole picture. Where a segment splits, its stream parts into its children's; where segments merge, their
// streams flow into one. Both sides of a join meet in one cross-section, so no edge ever jumps.

export const HASHES = 65536;
// Narrow ranges get more height than their due, so that a segment of a thousandth of the space can be seen and hit.
const STRETCH = 0.6;
// How much of the tightest lane a stream may fill, and the thinnest that an idle one gets.
const FILL = 0.88;
const THIN_PX = 2;
const STEP_PX = 3;
const SMOOTHINGS = 6;
// How far colours run into each other behind a join.
const COLOUR_PX = 34;
const JOIN_MIN_PX = 18;
const JOIN_MAX_PX = 130;
const JOIN_STEEPNESS = 2.3;

export const smooth = (u) => (u <= 0 ? 0 : u >= 1 ? 1 : u * u * (3 - 2 * u));
const mix = (a, b, u) => a + (b - a) * u;

/** Maps hashes to 0…1, monotonously. `edges` are the boundaries of all segments in sight. */
export function stretched(segments) {
  const edges = [...new Set([0, HASHES, ...segments.flatMap((one) => [one.start, one.end + 1])])].sort((a, b) => a - b);
  const at = [0];
  for (let i = 1; i < edges.length; i++) at.push(at[i - 1] + ((edges[i] - edges[i - 1]) / HASHES) ** STRETCH);
  const total = at[at.length - 1];
  return (hash) => {
    let low = 0;
    let high = edges.length - 1;
    while (low + 1 < high) {
      const middle = (low + high) >> 1;
      if (edges[middle] <= hash) low = middle;
      else high = middle;
    }
    return mix(at[low], at[high], (hash - edges[low]) / (edges[high] - edges[low])) / total;
  };
}

/** The values at ascending `xs` of a series, straight between its points and level beyond its ends. */
export function resampled(times, values, xs) {
  const found = new Float32Array(xs.length);
  if (!times.length) return found;
  let at = 0;
  for (let i = 0; i < xs.length; i++) {
    while (at + 1 < times.length && times[at + 1] <= xs[i]) at++;
    if (xs[i] <= times[0] || at + 1 >= times.length) found[i] = values[xs[i] <= times[0] ? 0 : times.length - 1];
    else found[i] = mix(values[at], values[at + 1], (xs[i] - times[at]) / (times[at + 1] - times[at]));
  }
  return found;
}

/** A few times a weighted mean with the neighbours: water has no corners. */
function eased(values) {
  for (let pass = 0; pass < SMOOTHINGS; pass++) {
    let before = values[0];
    for (let i = 1; i + 1 < values.length; i++) {
      const here = values[i];
      values[i] = (before + 2 * here + values[i + 1]) / 4;
      before = here;
    }
  }
  return values;
}

function columns(from, to) {
  const xs = [from];
  for (let x = Math.ceil((from + 0.5) / STEP_PX) * STEP_PX; x < to - 0.5; x += STEP_PX) xs.push(x);
  if (to > from) xs.push(to);
  return xs;
}

/**
 * The streams of `segments` in a picture of `width` × `height` px that shows `from`…`to` (ms). `measure` is the rate
 * that makes the width; `scale` (px for one unit of it) is kept if it still fits, so that the picture does not breathe.
 */
export function braid(segments, { from, to, width, height, measure = 0, scale = 0 }) {
  const xOf = (ms) => ((ms - from) / (to - from)) * width;
  const seen = segments.filter((one) => (one.sealed || to) >= from && (one.created || 0) <= to);
  const yOf = stretched(seen);
  const streams = new Map();
  let tightest = 0;
  for (const segment of seen.sort((a, b) => a.id - b.id)) {
    const stream = rough(segment, { from, to, width, height, measure, xOf, yOf });
    streams.set(segment.id, stream);
    const lane = stream.bottom - stream.top;
    for (const rate of stream.rate) tightest = Math.max(tightest, rate / lane);
  }
  const fitting = tightest > 0 ? FILL / tightest : 0;
  const kept = scale > 0 && scale <= fitting * 1.02 && scale >= fitting * 0.6 ? scale : fitting;
  for (const stream of streams.values()) bed(stream, kept, { from, to, width });
  const joins = joinsOf(streams, xOf);
  for (const join of joins) meet(join);
  for (const stream of streams.values()) bend(stream);
  return { streams, joins, scale: kept, yOf: (hash) => yOf(hash) * height, xOf, from, to, width, height };
}

/** Lane, columns, rate and heat. */
function rough(segment, { from, to, width, height, measure, xOf, yOf }) {
  const x0 = Math.max(-JOIN_MAX_PX, xOf(segment.created || 0));
  const x1 = Math.max(x0, segment.sealed ? Math.min(xOf(segment.sealed), width) : width);
  const xs = columns(x0, x1);
  const times = xs.map((x) => from + (x / width) * (to - from));
  return {
    id: segment.id,
    segment,
    xs: Float32Array.from(xs),
    rate: eased(
      resampled(
        segment.times,
        segment.rates.map((rates) => rates[measure]),
        times,
      ),
    ),
    heat: eased(resampled(segment.times, segment.heats, times)),
    top: yOf(segment.start) * height,
    bottom: yOf(segment.end + 1) * height,
    isActive: !segment.sealed,
    isWhole: x0 > -JOIN_MAX_PX,
  };
}

/** Width, and a middle line that wanders a little in the room the stream leaves. */
function bed(stream, scale, { from, to, width }) {
  const { xs, rate, top, bottom } = stream;
  const lane = bottom - top;
  const middle = (top + bottom) / 2;
  stream.half = rate.map((value) => Math.min(lane, Math.max(THIN_PX, value * scale)) / 2);
  stream.middle = new Float32Array(xs.length);
  // The bends belong to times and places, so they move along with the river instead of wobbling.
  const turn = (2 * Math.PI) / Math.max(60_000, (to - from) / 6);
  const phase = (middle / 97) * Math.PI;
  for (let i = 0; i < xs.length; i++) {
    const ms = from + (xs[i] / width) * (to - from);
    const room = Math.min(9, 0.34 * (lane / 2 - stream.half[i]));
    stream.middle[i] =
      middle + Math.max(0, room) * (Math.sin(ms * turn + phase) * 0.7 + Math.sin(ms * turn * 2.3 + phase * 3) * 0.3);
  }
}

/** Where segments became others: all parents and children that belong together, and when. */
function joinsOf(streams, xOf) {
  const joins = new Map();
  for (const stream of streams.values()) {
    const { sealed, children } = stream.segment;
    const heirs = children.map((id) => streams.get(id)).filter(Boolean);
    if (!sealed || !heirs.length) continue;
    const key = heirs.map((heir) => heir.id).join();
    const join = joins.get(key) ?? {
      parents: [],
      children: heirs,
      at: sealed,
      x: xOf(heirs[0].segment.created || sealed),
    };
    join.parents.push(stream);
    joins.set(key, join);
  }
  const down = (a, b) => a.top - b.top;
  for (const join of joins.values()) {
    join.parents.sort(down);
    join.children.sort(down);
    join.kind = kindOf(join);
  }
  return [...joins.values()];
}

/** One that became one other got another number of entry buckets, unless a classic topic was migrated. */
function kindOf({ parents, children }) {
  if (parents.length > children.length) return "merge";
  return parents.length === 1 && children.length === 1 && isRebucket(parents[0].segment) ? "rebucket" : "split";
}

const isRebucket = (segment) => segment.children.length === 1 && !segment.classic;

const sum = (values) => values.reduce((all, one) => all + one, 0);
const last = (values) => values[values.length - 1];

/** One cross-section for both sides: who has which part of it. */
function meet(join) {
  const { parents, children } = join;
  const before = parents.map((stream) => last(stream.half) * 2);
  const after = children.map((stream) => stream.half[0] * 2);
  const whole = (sum(before) + sum(after)) / 2;
  const middle =
    parents.length === 1
      ? last(parents[0].middle)
      : children.length === 1
        ? children[0].middle[0]
        : (Math.min(...parents.map((one) => one.top)) + Math.max(...parents.map((one) => one.bottom))) / 2;
  // Water does not change its colour at once: on the first stretch a child still shows where it came from.
  const heat = parents.reduce((all, stream, i) => all + last(stream.heat) * before[i], 0) / sum(before);
  const share = (streams, widths, side) => {
    let at = middle - whole / 2;
    streams.forEach((stream, i) => {
      const part = (whole * widths[i]) / sum(widths);
      stream[side] = { middle: at + part / 2, half: part / 2, heat };
      at += part;
    });
  };
  share(parents, before, "end");
  share(children, after, "start");
  join.y = middle;
  join.half = whole / 2;
}

/**
 * How far from a join a stream is on its own again. A steep way takes longer; two joins share what there is, and a
 * stream that still flows may be on its way.
 */
function reach(stream, join, own) {
  const length = last(stream.xs) - stream.xs[0];
  const room = stream.isActive ? Infinity : stream.start && stream.end ? length / 2 : length;
  return Math.min(room, Math.max(JOIN_MIN_PX, Math.min(JOIN_MAX_PX, JOIN_STEEPNESS * Math.abs(join.middle - own))));
}

function bend(stream) {
  const { xs, middle, half, heat, start, end } = stream;
  const first = xs[0];
  const final = last(xs);
  if (start) {
    const over = reach(stream, start, middle[0]);
    for (let i = 0; i < xs.length && xs[i] - first < over; i++) {
      const u = smooth((xs[i] - first) / over);
      middle[i] = mix(start.middle, middle[i], u);
      half[i] = mix(start.half, half[i], u);
      heat[i] = mix(Math.min(1, start.heat), heat[i], smooth((xs[i] - first) / Math.min(over, COLOUR_PX)));
    }
  }
  if (end) {
    const over = reach(stream, end, middle[xs.length - 1]);
    for (let i = xs.length - 1; i >= 0 && final - xs[i] < over; i--) {
      const u = smooth((final - xs[i]) / over);
      middle[i] = mix(end.middle, middle[i], u);
      half[i] = mix(end.half, half[i], u);
    }
  }
}

/** Which column of the stream `x` falls into. */
export function columnAt(stream, x) {
  const { xs } = stream;
  let low = 0;
  let high = xs.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (xs[middle] <= x) low = middle;
    else high = middle - 1;
  }
  return low;
}

/** The stream at a point: the one that flows there, else the one whose lane it is. */
export function streamAt(picture, x, y) {
  let lane = null;
  for (const stream of picture.streams.values()) {
    if (x < stream.xs[0] || x > last(stream.xs)) continue;
    const i = columnAt(stream, x);
    if (Math.abs(y - stream.middle[i]) <= stream.half[i] + 2) return stream;
    if (y >= stream.top && y < stream.bottom) lane = stream;
  }
  return lane;
}

/** Times for a labelled axis: round ones, about `wanted` of them. */
export function ticks(from, to, wanted, zoneMs = 0) {
  const steps = [10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600].map((seconds) => seconds * 1000);
  const step = steps.find((one) => (to - from) / one <= wanted) ?? 3600_000;
  const found = [];
  for (let at = Math.ceil((from + zoneMs) / step) * step - zoneMs; at <= to; at += step) found.push(at);
  return found;
}

/** 1, 2 or 5 times a power of ten: the largest not over `value`. */
export function roundBelow(value) {
  if (!(value > 0)) return 0;
  const power = 10 ** Math.floor(Math.log10(value));
  return [5, 2, 1].map((one) => one * power).find((one) => one <= value * 1.0001) ?? power;
}
