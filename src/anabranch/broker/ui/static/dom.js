// Elements without a framework: `h("p", { class: "note" }, "text", child)`.
//
// Text is always set as text, never parsed as markup: names of topics and consumers come from strangers.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, one] of Object.entries(value)) element.style.setProperty(key, one);
    else if (name === "value" || name === "checked" || name === "disabled" || name === "hidden") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(
    ...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false),
  );
  return element;
}

export const h = (tag, properties, ...children) => fill(document.createElement(tag), properties, children);
export const s = (tag, properties, ...children) => fill(document.createElementNS(SVG, tag), properties, children);

export function put(element, ...children) {
  element.replaceChildren(
    ...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false),
  );
}

/**
 * A row of a table that narrow windows show as a card, each figure with the name of its column. That takes the meaning of
 * a table from its elements: roles give it back.
 */
export function card(row, heads) {
  row.setAttribute("role", "row");
  [...row.children].forEach((cell, i) => {
    cell.setAttribute("role", i ? "cell" : "rowheader");
    cell.dataset.label = heads[i];
  });
  return row;
}

/** Sets text only where it differs, so that selections and screen readers are left in peace. */
export function text(element, value) {
  if (element.textContent !== value) element.textContent = value;
}

export function set(element, name, value) {
  if (value === null || value === undefined || value === false) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

/** Rows that stay the same elements while their figures change: made once a key, updated, sorted, dropped. */
export function keyed(parent, items, key, make, update) {
  const known = (parent._rows ??= new Map());
  const seen = new Set();
  let at = null;
  for (const item of items) {
    const name = key(item);
    seen.add(name);
    let row = known.get(name);
    if (!row) known.set(name, (row = make(item)));
    update(row, item);
    const next = at ? at.nextSibling : parent.firstChild;
    if (next !== row.element) parent.insertBefore(row.element, next);
    at = row.element;
  }
  for (const [name, row] of known) {
    if (!seen.has(name)) {
      row.element.remove();
      known.delete(name);
    }
  }
}

/** A sentence of the broker's: what stands in backticks is a command. */
export function sentence(words) {
  return words.split("`").map((part, i) => (i % 2 ? h("code", {}, part) : part));
}

/** A command to type, with a button that copies it. */
export function command(line) {
  const button = h("button", { class: "copy", type: "button", "aria-label": `Copy: ${line}` }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(line);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Select it";
    }
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  return h("div", { class: "command" }, h("code", {}, line), button);
}
