// Who looks at the page, on brokers that ask: a token, or a user and a password, kept until the tab is closed.

import { h } from "./dom.js";

const KEPT = "anabranch.authorization";

/** The headers that say who asks; none for nobody. */
export function headers() {
  const value = sessionStorage.getItem(KEPT);
  return value ? { Authorization: value } : {};
}

export const isSignedIn = () => sessionStorage.getItem(KEPT) !== null;

export function signOut() {
  sessionStorage.removeItem(KEPT);
}

function basic(user, password) {
  const bytes = new TextEncoder().encode(`${user}:${password}`);
  return `Basic ${btoa(String.fromCharCode(...bytes))}`;
}

/** A form that asks for one or the other, and calls `done` with it kept. `reason` is the broker's last word. */
export function signIn(reason, done) {
  const token = h("input", { type: "password", name: "token", autocomplete: "off", spellcheck: "false", id: "token" });
  const user = h("input", { type: "text", name: "username", autocomplete: "username", id: "user" });
  const password = h("input", {
    type: "password",
    name: "password",
    autocomplete: "current-password",
    id: "password",
  });
  const fault = h("p", { class: "fault", role: "alert" });
  const submitted = (event) => {
    event.preventDefault();
    const shown = token.value.trim();
    if (!shown && !user.value) {
      fault.textContent = "Paste a token, or give a user and a password.";
      return;
    }
    // Only bytes can stand in a header: anything else was not copied from a token.
    if (shown && !/^[\x21-\x7e]+$/.test(shown)) {
      fault.textContent = "That is no token: it has spaces or letters that no token has.";
      return;
    }
    sessionStorage.setItem(KEPT, shown ? `Bearer ${shown}` : basic(user.value, password.value));
    done();
  };
  return h(
    "div",
    { class: "page" },
    h("h1", {}, "Who are you?"),
    h("p", { class: "lead" }, `The broker asks: ${reason}.`),
    h(
      "form",
      { class: "signin", onsubmit: submitted },
      h("label", { for: "token" }, "Token"),
      token,
      h("p", { class: "or" }, "or"),
      h("label", { for: "user" }, "User"),
      user,
      h("label", { for: "password" }, "Password"),
      password,
      fault,
      h("button", { class: "button main", type: "submit" }, "Sign in"),
    ),
    h(
      "p",
      { class: "note" },
      "Kept in this tab until it is closed, and sent to this broker only. ",
      h("code", {}, "anabranch tokens create"),
      " makes tokens.",
    ),
  );
}
