// The one tooltip of the page: beside a pointer or a focused element, inside the window, gone with Escape.

import { h, put } from "./dom.js";

export class Tips {
  constructor() {
    this.box = h("div", { class: "tip", role: "tooltip", id: "tip", hidden: true });
    document.body.append(this.box);
  }

  show(anchor, content) {
    put(this.box, content);
    this.box.hidden = false;
    const near = anchor.getBoundingClientRect();
    this.place(near.left + near.width / 2, near.top, near.height);
    this.anchor?.removeAttribute("aria-describedby");
    this.anchor = anchor;
    anchor.setAttribute("aria-describedby", "tip");
  }

  showAt(x, y, content) {
    put(this.box, content);
    this.box.hidden = false;
    this.place(x, y - 10, 24);
  }

  place(x, top, height) {
    const { offsetWidth: width, offsetHeight: tall } = this.box;
    const left = Math.max(8, Math.min(innerWidth - width - 8, x - width / 2));
    const above = top - tall - 10;
    const y = above > 8 ? above : top + height + 10;
    this.box.style.transform = `translate(${Math.round(left)}px, ${Math.round(y)}px)`;
  }

  hide() {
    this.box.hidden = true;
    this.anchor?.removeAttribute("aria-describedby");
    this.anchor = null;
  }
}
