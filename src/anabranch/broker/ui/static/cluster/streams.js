// The shape of the cluster's picture: where each bundle runs and how wide it is. Pure: numbers in, numbers out.
//
// Time runs to the right. Each broker has a bank of the same height, and in it run the bundles that it has, one under the
// other in the order of their names. A bundle has the width of its traffic now, on one scale for all; what moves crosses
// over to another bank, and the bundles around it close up or make room.

// The bank of bundles without an owner.
export const NOWHERE = "";
const THIN_PX = 3;
const BETWEEN_PX = 2;
const PAD_PX = 7;
// Changes closer together than this are drawn as one.
const JOIN_PX = 22;
// So many moves alike are a run.
const RUN_MIN = 4;

/**
 * Where a bundle was and is: [{ broker, from, until }]. `owner` is undefined for a bundle that is no more. Times without
 * an owner that are shorter than `brief` ms count for the broker before.
 */
export function staysOf(owner, moves, brief = 0) {
  const stays = [];
  let broker;
  let at = -Infinity;
  let isKnown = false;
  const until = (ms) => broker !== undefined && ms > at && stays.push({ broker, from: at, until: ms });
  for (const move of moves) {
    if (!isKnown) broker = move.from ?? undefined;
    isKnown = true;
    if (move.endedMs === null || move.state === "overtaken") continue;
    until(move.endedMs);
    at = move.endedMs;
    broker = move.state === "deleted" ? undefined : move.state === "freed" ? NOWHERE : (move.to ?? NOWHERE);
  }
  // What the states say now is true, whatever moves were missed.
  broker = owner === undefined ? undefined : (owner ?? NOWHERE);
  until(Infinity);
  return stays.filter((stay, i) => {
    const isBrief = i > 0 && stay.broker === NOWHERE && stay.until - stay.from < brief;
    if (isBrief) stays[i - 1].until = stay.until;
    return !isBrief;
  });
}

/**
 * The streams of `bundles` ({ name, rate, stays, parent }) in a picture of `width` px that shows `from`…`to` (ms).
 * `banks` are { id, top, height }. Gives { streams: Map of name to { d, width, ys }, columns, scale }.
 */
export function drawn(bundles, banks, { from, to, width }) {
  const xOf = (ms) => Math.max(0, Math.min(width, ((ms - from) / (to - from)) * width));
  const columns = columnsOf(bundles, from, to, xOf);
  const filled = columns.map(({ at }) => fill(bundles, banks, at));
  const scale = scaleOf(filled, banks);
  const wide = (bundle) => THIN_PX + bundle.rate * scale;
  const streams = new Map(bundles.map((one) => [one.name, { width: wide(one), ys: [], d: "" }]));
  filled.forEach((byBank, c) => {
    for (const bank of banks) {
      const some = byBank.get(bank.id) ?? [];
      const tall = some.reduce((sum, one) => sum + wide(one), 0) + Math.max(0, some.length - 1) * BETWEEN_PX;
      let y = bank.top + Math.max(2, (bank.height - tall) / 2);
      // Too many even for thin lines: they overlap rather than leave their bank.
      const squeeze = Math.min(1, (bank.height - 4) / Math.max(1, tall));
      for (const one of some) {
        streams.get(one.name).ys[c] = y + (wide(one) * squeeze) / 2;
        y += (wide(one) + BETWEEN_PX) * squeeze;
      }
    }
  });
  for (const one of bundles) {
    const stream = streams.get(one.name);
    const parent = one.parent ? streams.get(one.parent) : null;
    stream.d = path(stream.ys, columns, width, parent?.ys);
  }
  return { streams, columns, scale };
}

/** Moments at which something changed, with where they are drawn; the first is the left edge. */
function columnsOf(bundles, from, to, xOf) {
  const times = bundles.flatMap((one) => one.stays.flatMap((stay) => [stay.from, stay.until]));
  const columns = [{ at: from, x: 0 }];
  for (const at of [...new Set(times)].filter((ms) => ms > from && ms <= to).sort((a, b) => a - b)) {
    const last = columns[columns.length - 1];
    const x = xOf(at);
    if (columns.length > 1 && x - last.x < JOIN_PX) last.at = at;
    else columns.push({ at, x });
  }
  return columns;
}

function fill(bundles, banks, at) {
  const found = new Map(banks.map((bank) => [bank.id, []]));
  for (const one of bundles) {
    const stay = one.stays.find(({ from, until }) => from <= at && at < until);
    if (stay) found.get(stay.broker)?.push(one);
  }
  return found;
}

/** Pixels for a message a second, so that the fullest bank of all moments is just full. */
function scaleOf(filled, banks) {
  let scale = Infinity;
  for (const byBank of filled) {
    for (const bank of banks) {
      const some = byBank.get(bank.id) ?? [];
      const rate = some.reduce((sum, one) => sum + one.rate, 0);
      const room = bank.height - 2 * PAD_PX - some.length * (THIN_PX + BETWEEN_PX);
      if (rate > 0) scale = Math.min(scale, Math.max(0, room) / rate);
    }
  }
  return Number.isFinite(scale) ? scale : 0;
}

function path(ys, columns, width, parents) {
  let d = "";
  for (let c = 0; c < columns.length; c++) {
    const { x } = columns[c];
    const y = ys[c];
    if (y === undefined) continue;
    const before = ys[c - 1] ?? (ys.some((one, i) => i < c && one !== undefined) ? undefined : parents?.[c - 1]);
    const left = Math.max(0, x - JOIN_PX / 2);
    const right = Math.min(width, x + JOIN_PX / 2);
    if (before === undefined) d += `M${x.toFixed(1)} ${y.toFixed(1)}`;
    else if (ys[c - 1] === undefined || !d) d += `M${left.toFixed(1)} ${before.toFixed(1)}`;
    if (before !== undefined && Math.abs(before - y) > 0.05) {
      const middle = ((left + right) / 2).toFixed(1);
      d += `H${left.toFixed(1)}C${middle} ${before.toFixed(1)} ${middle} ${y.toFixed(1)} ${right.toFixed(1)} ${y.toFixed(1)}`;
    }
    const end = ys[c + 1] === undefined ? (columns[c + 1]?.x ?? width) : null;
    if (end !== null) d += `H${end.toFixed(1)}`;
  }
  return d;
}

/** Where a move is marked: between the two places that it leads from and to. */
export function placeOf(move, { columns, streams }, xOf) {
  const ys = streams.get(move.bundle)?.ys ?? [];
  const c = move.endedMs === null ? -1 : columns.findIndex((one, i) => i > 0 && one.at >= move.endedMs);
  const near = (c < 0 ? [ys[columns.length - 1]] : [ys[c - 1], ys[c]]).filter((y) => y !== undefined);
  if (!near.length) return null;
  return { x: c < 0 ? xOf(move.beganMs) : columns[c].x, y: near.reduce((sum, y) => sum + y, 0) / near.length };
}

export const keyOf = (move) => `${move.bundle}/${move.version}/${move.beganMs}`;

/** Many moves of one kind, at one time, for one reason, are told as one: [{ key, moves }], the latest first. */
export function grouped(moves) {
  const shape = (move) => [move.kind, move.state, move.from, move.reason.replace(/\d[\d.,:]*/g, "#")].join("\n");
  const found = [];
  for (const move of [...moves].reverse()) {
    const last = found[found.length - 1];
    if (last && last.shape === shape(move) && last.moves[last.moves.length - 1].beganMs - move.beganMs < 5000)
      last.moves.push(move);
    else found.push({ shape: shape(move), moves: [move] });
  }
  // A new move of a run must not change the key of its line: the oldest is the last.
  return found
    .flatMap(({ moves: some }) => (some.length < RUN_MIN ? some.map((move) => [move]) : [some]))
    .map((some) => ({ key: keyOf(some.at(-1)), moves: some }));
}
