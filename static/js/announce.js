// What a screen reader hears: boundaries only, never tokens.

import { number, t } from "./i18n.js";

const PLACE_EVERY_MS = 15_000;
const BEGUN = new Set(["claim", "allocating", "reading"]);

export class Announcer {
  #say;
  #rank = null;
  #placeAtMs = -Infinity;
  #joined = new Set();
  #begun = new Set();
  #answering = new Set();
  #ended = new Set();

  // `say(text)` writes into the page's one live region.
  constructor(say) {
    this.#say = say;
  }

  // Tell of a change of a live turn. `nowMs` is any steady clock.
  turn(turn, nowMs) {
    const id = turn.generation;
    if (turn.status !== "open") {
      if (once(this.#ended, id)) this.#say(ending(turn));
    } else if (turn.phase === "answering") {
      if (once(this.#answering, id)) this.#say(t("announce.answering"));
    } else if (BEGUN.has(turn.phase)) {
      if (once(this.#begun, id)) this.#say(t("announce.turn"));
    } else if (turn.phase === "waiting") {
      this.#place(turn, nowMs);
    }
  }

  #place(turn, nowMs) {
    const { rank } = turn.state;
    const isNew = once(this.#joined, turn.generation);
    if (rank === null || (!isNew && (rank === this.#rank || nowMs - this.#placeAtMs < PLACE_EVERY_MS))) {
      return;
    }
    this.#rank = rank;
    this.#placeAtMs = nowMs;
    const place = t("queue.place", { n: rank });
    this.#say(isNew ? `${t("announce.joined")} ${place}` : place);
  }
}

function once(seen, id) {
  if (seen.has(id)) return false;
  seen.add(id);
  return true;
}

function ending(turn) {
  if (turn.status === "failed") return t("announce.failed", { message: turn.error?.message ?? "" });
  const tokens = turn.usage?.completion_tokens;
  const average = turn.tps?.average;
  if (!tokens || !average) return t("announce.done_plain");
  return t("announce.done", { tokens, average: number(average, average < 100 ? 1 : 0) });
}
