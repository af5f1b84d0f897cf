// Numbers, times and units as people read them.

const UNITS = ["", "k", "M", "G", "T"];

/** 12400 → "12.4 k": three digits at most, and a unit of thousands. */
export function short(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  if (Math.abs(value) < 1) return value < 0.01 ? "<0.01" : value.toFixed(2);
  let power = 0;
  let scaled = value;
  while (Math.abs(scaled) >= 999.5 && power < UNITS.length - 1) {
    scaled /= 1000;
    power += 1;
  }
  const digits =
    Math.abs(scaled) >= 99.95 || (power === 0 && Number.isInteger(scaled)) ? 0 : Math.abs(scaled) >= 9.995 ? 1 : 2;
  const text = digits ? scaled.toFixed(digits).replace(/\.?0+$/, "") : scaled.toFixed(0);
  return UNITS[power] ? `${text} ${UNITS[power]}` : text;
}

const joined = (value, unit) => {
  const text = short(value);
  return text.includes(" ") ? `${text}${unit}` : `${text} ${unit}`;
};

export const messages = (value) => (value === 1 ? "1 message" : `${short(value)} messages`);
export const messageRate = (value) => `${short(value)} msg/s`;
export const bytes = (value) => joined(value, "B");
export const byteRate = (value) => joined(value, "B/s");
export const percent = (share) => (share > 0 && share < 0.01 ? "<1 %" : `${Math.round(share * 100)} %`);
export const hex = (value) => value.toString(16).padStart(4, "0");
export const range = (segment) => `${hex(segment.start)}–${hex(segment.end)}`;
export const count = (number, one, many = `${one}s`) => `${number.toLocaleString("en")} ${number === 1 ? one : many}`;

export function ago(ms) {
  const seconds = Math.max(0, Math.round(ms / 1000));
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

const two = (value) => String(value).padStart(2, "0");

export function clock(ms, withSeconds = false) {
  const at = new Date(ms);
  const text = `${two(at.getHours())}:${two(at.getMinutes())}`;
  return withSeconds ? `${text}:${two(at.getSeconds())}` : text;
}

/** A broker's sentence with its rates in words and its moments on this clock: "msgRateIn 12,000/s" is "12,000 msg/s in". */
export function sentence(because) {
  return because
    .replace(
      /\b(?:msg|bytes)Rate(In|Out) ([\d,.]+)( [kMG]?B)?\/s/g,
      (_, way, figure, unit) => `${figure}${unit ?? " msg"}/s ${way.toLowerCase()}`,
    )
    .replace(/(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d) UTC/g, (_, day, time) => {
      const at = Date.parse(`${day}T${time}Z`);
      const isToday = new Date(at).toDateString() === new Date().toDateString();
      return isToday ? clock(at, true) : `${new Date(at).toLocaleDateString()} ${clock(at, true)}`;
    });
}

/** The name people use, of `topic://public/default/orders`. */
export function shortName(topic) {
  const [, , tenant, namespace, ...rest] = topic.split("/");
  return { namespace: `${tenant}/${namespace}`, local: rest.join("/") };
}
