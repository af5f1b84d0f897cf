// Starts the page: which view the address names, whether the broker answers, light or dark.

import { isSignedIn, signIn, signOut } from "./access.js";
import { ClusterPage } from "./cluster.js";
import { h, put, sentence, set, text } from "./dom.js";
import { Feed } from "./feed.js";
import { OverviewPage } from "./overview.js";
import { onTheme, theme, toggle } from "./theme.js";
import { Tips } from "./tips.js";
import { TopicPage } from "./topic.js";

const main = document.querySelector("main");
const status = document.querySelector("#status");
const switcher = document.querySelector("#theme");
const leaver = document.querySelector("#leave");
const banner = document.querySelector("#banner");
const tips = new Tips();
let page = null;
let feed = null;
let countdown = null;

function opened() {
  const [, kind, ...rest] = location.hash.split("?")[0].split("/");
  if (kind === "topics" && rest.length === 3) return new TopicPage(rest.join("/"), tips);
  if (kind === "cluster") return new ClusterPage(tips);
  return new OverviewPage();
}

function route() {
  leaver.hidden = !isSignedIn();
  feed?.stop();
  page?.close();
  tips.hide();
  said("waiting");
  const isCluster = location.hash.startsWith("#/cluster");
  for (const link of document.querySelectorAll("header nav a"))
    set(link, "aria-current", link.hash.startsWith("#/cluster") === isCluster ? "page" : null);
  page = opened();
  const shown = page;
  put(main, h("p", { class: "loading" }, "Asking the broker …"));
  feed = new Feed(
    () => shown.url,
    (answer) => {
      if (!shown.element.isConnected) put(main, shown.element);
      shown.take(answer);
    },
    said,
  );
  shown.onQuestion = () => feed.soon(150);
  window.anabranch = { page, feed }; // For people with a console, and for tests.
}

function said(state, detail) {
  clearInterval(countdown);
  status.dataset.state = state;
  banner.hidden = state === "live" || state === "waiting";
  if (state === "live") text(status, "live");
  if (state === "waiting") text(status, "connecting");
  if (state === "lost") {
    text(status, "no answer");
    const tell = () => {
      const seconds = Math.max(0, Math.ceil((detail.at - Date.now()) / 1000));
      const again = seconds ? `Trying again in ${seconds} s.` : "Trying again …";
      text(
        banner,
        `The broker does not answer. What you see is as of the last answer. ${again} Is it running? Start it with: anabranch standalone`,
      );
    };
    tell();
    countdown = setInterval(tell, 500);
  }
  if (state === "refused" && detail.status === 401) {
    // Also when what was shown has expired: what was seen until then goes with it.
    text(status, "signed out");
    banner.hidden = true;
    signOut();
    leaver.hidden = true;
    put(main, signIn(detail.message, route));
    main.querySelector("input").focus();
    return;
  }
  if (state === "refused") {
    text(status, "refused");
    text(banner, detail.message);
    if (!page.element.isConnected) {
      const isMissing = detail.status === 404;
      put(
        main,
        h(
          "div",
          { class: "page" },
          h("h1", {}, isMissing ? "There is no such topic" : "The broker refused"),
          h("p", { class: "lead" }, sentence(detail.message)),
          h("p", {}, h("a", { href: "#/" }, "All topics")),
        ),
      );
      banner.hidden = true;
    }
  }
}

function named() {
  text(switcher, theme() === "dark" ? "Light" : "Dark");
  switcher.setAttribute("aria-label", `Change to ${theme() === "dark" ? "light" : "dark"} colours`);
}

switcher.addEventListener("click", toggle);
leaver.addEventListener("click", () => {
  signOut();
  route();
});
onTheme(named);
named();
addEventListener("hashchange", route);
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // The address names the view; the link only moves the focus.
  main.focus();
});
document.addEventListener("keydown", (event) => event.key === "Escape" && tips.hide());
route();
