// Paints streams on a canvas: heat along their length, light on their upper edge, lines of flow inside.

import { colourOfStep, stepOf } from "../colour.js";

const INK = {
  dark: {
    shore: "rgb(255 255 255 / 0.05)",
    light: "rgb(255 255 255 / 0.34)",
    flow: "rgb(255 255 255 / 0.13)",
    over: "#4a1c00",
    streak: "rgb(255 255 255 / 0.42)",
    mark: "#ffffff",
  },
  light: {
    shore: "rgb(20 60 90 / 0.055)",
    light: "rgb(255 255 255 / 0.65)",
    flow: "rgb(255 255 255 / 0.3)",
    over: "#ffffff",
    streak: "rgb(255 255 255 / 0.5)",
    mark: "#10202b",
  },
};

// Dashes in a thinner stream would hide it, and on a shorter stretch they are specks.
const DASHED_HALF_PX = 4.5;
const DASHED_LEAST_PX = 10;

export const ink = (theme) => INK[theme];

function edge(context, stream, share, backwards = false) {
  const { xs, middle, half } = stream;
  if (backwards) for (let i = xs.length - 1; i >= 0; i--) context.lineTo(xs[i], middle[i] + share * half[i]);
  else for (let i = 0; i < xs.length; i++) context.lineTo(xs[i], middle[i] + share * half[i]);
}

export function outline(context, stream) {
  context.beginPath();
  edge(context, stream, -1);
  edge(context, stream, 1, true);
  context.closePath();
}

/** Colours along the stream. A stop only where the colour changes: most streams need few. */
function along(context, stream, theme) {
  const { xs, heat } = stream;
  const from = xs[0];
  const length = Math.max(0.001, xs[xs.length - 1] - from);
  const gradient = context.createLinearGradient(from, 0, from + length, 0);
  let before = -1;
  for (let i = 0; i < xs.length; i++) {
    const step = stepOf(heat[i]);
    if (step === before && i + 1 < xs.length) continue;
    if (before >= 0 && i > 0 && stepOf(heat[i - 1]) === before)
      gradient.addColorStop((xs[i - 1] - from) / length, colourOfStep(before, theme));
    gradient.addColorStop((xs[i] - from) / length, colourOfStep(step, theme));
    before = step;
  }
  return gradient;
}

/** The ground that a segment's keys may use, faintly. */
export function paintLane(context, stream, theme) {
  const { xs, top, bottom } = stream;
  context.fillStyle = INK[theme].shore;
  context.beginPath();
  context.roundRect(
    xs[0] + 0.5,
    top + 0.75,
    Math.max(0, xs[xs.length - 1] - xs[0] - 1),
    Math.max(0.5, bottom - top - 1.5),
    Math.min(6, (bottom - top) / 3),
  );
  context.fill();
}

export function paintStream(context, stream, theme) {
  const colours = INK[theme];
  outline(context, stream);
  context.fillStyle = along(context, stream, theme);
  context.fill();
  const widest = stream.half.reduce((most, one) => Math.max(most, one), 0);
  if (widest > 5) {
    context.lineWidth = 1;
    context.strokeStyle = colours.flow;
    for (const share of widest > 14 ? [-0.45, 0, 0.45] : [0]) {
      context.beginPath();
      edge(context, stream, share);
      context.stroke();
    }
  }
  if (widest > 2.5) {
    context.lineWidth = 1;
    context.strokeStyle = colours.light;
    context.beginPath();
    edge(context, stream, -0.94);
    context.stroke();
  }
  paintOver(context, stream, colours.over);
}

/** Dashes along both edges where it is over the limit, so that colour is not the only sign. */
function paintOver(context, stream, colour) {
  const { xs, heat, middle, half } = stream;
  if (!heat.some((one, i) => one > 1 && half[i] > DASHED_HALF_PX)) return;
  context.strokeStyle = colour;
  context.lineWidth = 1.6;
  context.setLineDash([4, 3]);
  context.beginPath();
  for (let i = 0, end = 0; i < xs.length; i = end + 1) {
    for (end = i; end < xs.length && heat[end] > 1 && half[end] > DASHED_HALF_PX;) end++;
    if (end === i || xs[end - 1] - xs[i] < DASHED_LEAST_PX) continue;
    for (const side of [-1, 1]) {
      for (let j = i; j < end; j++) context[j === i ? "moveTo" : "lineTo"](xs[j], middle[j] + side * (half[j] - 2.5));
    }
  }
  context.stroke();
  context.setLineDash([]);
}
