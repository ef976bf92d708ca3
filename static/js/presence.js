// Whether the page is in front: the line calls those who look elsewhere, and the node goes on to
// others meanwhile.

import { call } from "./api.js";
import { t } from "./i18n.js";
import { HttpError } from "./stream.js";

const WAITING = new Set([null, "waiting", "claim"]);
const BEGUN = new Set(["allocating", "reading", "answering"]);

export class Presence {
  // running turns that no node has yet, and those whose turn was told of outside the page
  #waiting = new Set();
  #told = new Set();
  #tell;
  #page;
  #notify;

  // `tell(isHidden)` says it to the server. `page` is the document; `notify(title, text)` shows a
  // note outside the page.
  constructor({ tell = tellServer, page = document, notify = notification } = {}) {
    this.#tell = tell;
    this.#page = page;
    this.#notify = notify;
    page.addEventListener("visibilitychange", () => this.#waiting.size > 0 && tell(page.hidden));
  }

  // Tell of a change of a running turn.
  turn(turn) {
    const { generation: id, phase } = turn;
    const isWaiting = turn.status === "open" && WAITING.has(phase);
    const isNew = isWaiting && turn.state !== null && !this.#waiting.has(id);
    if (isNew) this.#waiting.add(id);
    const wasWaiting = this.#waiting.has(id);
    if (!isWaiting) this.#waiting.delete(id);
    // also in front: a reload says that the page goes, and nothing says that it has come back
    if (isNew) this.#tell(this.#page.hidden);
    if (this.#page.hidden) {
      if (phase === "claim") this.#ring(`${id} claim`, t("queue.claim_text"));
      if (wasWaiting && BEGUN.has(phase)) this.#ring(id, t("notify.begun"));
    } else if (phase === "claim" && !isNew) {
      // who sees this page has taken the turn; told again with each state until the server knows
      this.#tell(false);
    }
  }

  #ring(what, text) {
    if (this.#told.has(what)) return;
    this.#told.add(what);
    this.#notify(t("notify.title"), text);
  }
}

async function tellServer(isHidden) {
  try {
    await call("POST", "/api/line/presence", { hidden: isHidden });
  } catch (fault) {
    // a call to the turn is answered again with the next state; the card tells of a lost connection
    if (!(fault instanceof HttpError)) throw fault;
  }
}

// Whether the person may still be asked for notes outside the page.
export function mayAskToNotify() {
  return globalThis.Notification?.permission === "default";
}

function notification(title, text) {
  if (globalThis.Notification?.permission !== "granted") return;
  const note = new Notification(title, { body: text, icon: "/static/img/baton.svg", tag: "turn" });
  note.addEventListener("click", () => {
    globalThis.focus();
    note.close();
  });
}
