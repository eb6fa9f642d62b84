// Starts the page: signs in, draws the bar, and shows the view that the address names after its #,
// a part that browsers do not send to servers.

import { add, announce, h, put } from "./dom.js";
import { session } from "./session.js";
import { signInView } from "./sign_in.js";
import { themeButton } from "./theme_button.js";
import { runsView } from "./runs.js";
import { runView } from "./run_page.js";
import { checkpointsView } from "./checkpoints.js";
import { playgroundView } from "./playground.js";
import { serverView } from "./server_page.js";

const VIEWS = [
  { name: "runs", label: "Runs", make: (rest, query) => (rest ? runView(rest, query) : runsView(query)) },
  { name: "checkpoints", label: "Checkpoints", make: (rest, query) => checkpointsView(query) },
  { name: "playground", label: "Playground", make: (rest, query) => playgroundView(query) },
  { name: "server", label: "Server", make: () => serverView() },
];

const main = document.getElementById("main");
let current = null; // the view that is shown: { element, title, stop }
let refusal = null; // why the last key was refused

function route() {
  const [where, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = where.split("/");
  const view = VIEWS.find((each) => each.name === name) ?? VIEWS[0];
  return { view, rest: decoded(rest.join("/")), query: new URLSearchParams(query) };
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function show() {
  current?.stop?.();
  const { view, rest, query } = route();
  drawBar(view.name);
  current = session.key ? view.make(rest, query) : signInView(refusal, show);
  refusal = null;
  put(main, current.element);
  document.title = current.title ? `${current.title} · Tinkex` : "Tinkex";
  announce(current.title ?? "");
  window.scrollTo(0, 0);
}

function drawBar(active) {
  const bar = document.getElementById("bar");
  if (!session.key) {
    put(bar);
    return;
  }
  put(bar,
    h("a", { class: "brand", href: "#/runs" }, h("img", { src: "/page/icon.svg", alt: "" }), "Tinkex"),
    h("nav", { "aria-label": "Views" }, VIEWS.map(({ name, label }) =>
      h("a", { href: `#/${name}`, "aria-current": name === active ? "page" : null }, label))),
    add(h("div", { class: "who" }), themeButton(),
      h("button", { type: "button", class: "quiet", on: { click: signOut } }, "Sign out")));
}

function signOut() {
  session.signOut();
  show();
}

window.addEventListener("hashchange", () => {
  show();
  main.focus({ preventScroll: true });
});
window.addEventListener("tinkex:refused", ({ detail }) => {
  if (!session.key) return;
  session.signOut();
  refusal = detail;
  show();
});
show();
