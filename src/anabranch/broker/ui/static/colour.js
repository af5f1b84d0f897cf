// The heat scale: which colour a segment has at a given share of its split limit.
//
// Two scales, one for each theme, both even to the eye: anchors in OKLCH, joined in OKLab and walked at constant speed,
// so equal steps of heat are equal steps of colour. Lightness only ever rises (dark theme) or falls (light theme), so
// hotter always stands out more from the ground, in greys and to colour-blind eyes too.

const ANCHORS = {
  dark: [
    [0.43, 0.09, 236],
    [0.53, 0.125, 258],
    [0.6, 0.16, 305],
    [0.67, 0.18, 5],
    [0.76, 0.16, 50],
    [0.89, 0.15, 92],
  ],
  light: [
    [0.71, 0.1, 232],
    [0.66, 0.13, 252],
    [0.6, 0.16, 285],
    [0.55, 0.19, 330],
    [0.48, 0.19, 12],
    [0.37, 0.14, 28],
  ],
};

export const STEPS = 64;

export function oklab([l, c, h]) {
  const angle = (h * Math.PI) / 180;
  return [l, c * Math.cos(angle), c * Math.sin(angle)];
}

export function rgb([l, a, b]) {
  const x = (l + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const y = (l - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const z = (l - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    4.0767416621 * x - 3.3077115913 * y + 0.2309699292 * z,
    -1.2684380046 * x + 2.6097574011 * y - 0.3413193965 * z,
    -0.0041960863 * x - 0.7034186147 * y + 1.707614701 * z,
  ].map((linear) => {
    const inside = Math.min(1, Math.max(0, linear));
    const coded = inside <= 0.0031308 ? 12.92 * inside : 1.055 * inside ** (1 / 2.4) - 0.055;
    return Math.round(255 * coded);
  });
}

const distance = (one, other) => Math.hypot(one[0] - other[0], one[1] - other[1], one[2] - other[2]);
const between = (one, other, share) => one.map((value, i) => value + (other[i] - value) * share);

/** `STEPS + 1` points in OKLab, the same distance apart along the anchors. */
export function evenScale(anchors) {
  const dense = [];
  const points = anchors.map(oklab);
  for (let i = 0; i + 1 < points.length; i++) {
    for (let j = 0; j < 100; j++) dense.push(between(points[i], points[i + 1], j / 100));
  }
  dense.push(points[points.length - 1]);
  const travelled = [0];
  for (let i = 1; i < dense.length; i++) travelled.push(travelled[i - 1] + distance(dense[i - 1], dense[i]));
  const total = travelled[travelled.length - 1];
  const scale = [];
  for (let step = 0, i = 0; step <= STEPS; step++) {
    while (i + 1 < dense.length - 1 && travelled[i + 1] < (total * step) / STEPS) i++;
    const share = ((total * step) / STEPS - travelled[i]) / (travelled[i + 1] - travelled[i] || 1);
    scale.push(between(dense[i], dense[i + 1], Math.min(1, share)));
  }
  return scale;
}

const SCALES = Object.fromEntries(Object.entries(ANCHORS).map(([theme, anchors]) => [theme, evenScale(anchors)]));
const CODES = Object.fromEntries(
  Object.entries(SCALES).map(([theme, scale]) => [theme, scale.map((point) => `rgb(${rgb(point).join(" ")})`)]),
);

export const points = (theme) => SCALES[theme];

/** Heat 1 is the limit; whatever is over it has the last colour. */
export function stepOf(heat) {
  return Math.round(Math.min(1, Math.max(0, heat || 0)) * STEPS);
}

export const colourOfStep = (step, theme) => CODES[theme][step];
export const colourOf = (heat, theme) => CODES[theme][stepOf(heat)];
