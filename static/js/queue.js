// The card above the composer: the place in line, the node being prepared, the time left.

import { element, find, setText } from "./dom.js";
import { clock, t } from "./i18n.js";
import { mayAskToNotify } from "./presence.js";
import { secondsLeft } from "./state.js";

// A countdown is shown only when it is near: before, it would only be noise.
const IDLE_SHOWN_SECONDS = 3_600;

export class QueueCard {
  #root = find("#queue");
  #title = element("h2");
  #lines = element("div", { class: "queue-lines" });
  #bar = element("progress", { max: "1", hidden: true });
  #buttons = element("div", { class: "queue-buttons" });
  #key = "";
  #acts;

  // `acts`: what a button does, by its name in `actions` of a view; one without is not shown.
  constructor(acts) {
    this.#acts = acts;
    this.#root.append(
      element("div", { class: "queue-text" }, this.#title, this.#lines, this.#bar), this.#buttons,
    );
  }

  #button([name, label]) {
    const button = element("button", { type: "button", class: name === "here" ? "primary" : "leave" }, label);
    button.addEventListener("click", async () => {
      button.disabled = true;
      try {
        await this.#acts[name]();
      } finally {
        button.disabled = false;
      }
    });
    return button;
  }

  // `live` is the running turn of this conversation or null; `seat` what GET /api/line says of us,
  // with `atMs`, the time it came.
  show(live, seat, nowMs) {
    const view = live?.isOpen ? turnCard(live, nowMs, Number(this.#root.dataset.grace ?? 0), seat) : seatCard(seat, nowMs);
    this.#root.hidden = view === null;
    if (view === null) return;
    const key = JSON.stringify(view);
    if (key === this.#key) return;
    this.#key = key;
    this.#root.dataset.kind = view.kind;
    setText(this.#title, view.title);
    this.#lines.replaceChildren(...view.lines.filter(Boolean).map((line) => element("p", {}, line)));
    this.#bar.hidden = view.progress === undefined;
    if (view.progress !== undefined) this.#bar.value = view.progress;
    const actions = (view.actions ?? []).filter(([name]) => this.#acts[name]);
    // a countdown must not take the button away that is being pressed
    const names = JSON.stringify(actions);
    if (names !== this.#buttons.dataset.names) {
      this.#buttons.dataset.names = names;
      this.#buttons.replaceChildren(...actions.map((action) => this.#button(action)));
    }
    this.#buttons.hidden = actions.length === 0;
  }
}

// What to say of a running turn, as plain data; null: nothing.
export function turnCard(live, nowMs, graceSeconds = 120, seat = null) {
  const { turn, isConnected } = live;
  const { state } = turn;
  if (!isConnected) {
    const key = turn.phase === "answering" ? "queue.lost_answering" : "queue.lost";
    return { kind: "lost", title: t(key), lines: [] };
  }
  if (!state) return { kind: "waiting", title: t("queue.joining"), lines: [] };
  const card = CARDS[turn.phase];
  return card ? card(turn, state, nowMs, graceSeconds, seat) : null;
}

const CARDS = {
  waiting: (turn, state, nowMs, graceSeconds) => ({
    kind: "waiting",
    title: state.rank === null ? t("queue.joining") : t("queue.place", { n: state.rank }),
    lines: [
      [t("queue.waiting", { n: state.waiting }), etaText(state.eta)].join(" · "),
      state.behind_own > 0 ? t("queue.behind_own", { n: state.behind_own }) : "",
      state.reason ?? "",
      t("queue.kept", { time: spanText(graceSeconds) }),
    ],
    actions: mayAskToNotify() ? [["notify", t("notify.ask")], leave()] : [leave()],
  }),
  claim: (turn, state, nowMs) => ({
    kind: "claim",
    title: t("queue.claim", { clock: clock(secondsLeft(state.claim_left_seconds ?? 0, nowMs - turn.stateAtMs)) }),
    lines: [t("queue.claim_text")],
    actions: [["here", t("queue.here")], leave()],
  }),
  allocating: preparing,
  lost: (turn, state) => ({
    kind: "waiting", title: t("queue.node_lost"), lines: [state.reason ?? ""], actions: [leave()],
  }),
  reading: (turn, state) => ({
    kind: "reading",
    title: t("queue.reading"),
    lines: [
      state.prompt
        ? [
            t("queue.reading_count", { done: state.prompt.done, total: state.prompt.total }),
            state.prompt.cached > 0 ? t("queue.reading_cached", { cached: state.prompt.cached }) : "",
          ].filter(Boolean).join(" · ")
        : nodeText(state.node),
    ],
    progress: state.prompt ? state.prompt.done / Math.max(1, state.prompt.total) : undefined,
  }),
  answering: (turn, state, nowMs, graceSeconds, seat) => {
    const left = secondsLeft(state.slice_left_seconds, nowMs - turn.stateAtMs);
    if (left === null) return null;
    return { kind: "slice", title: t("queue.slice_left", { clock: clock(left) }), lines: [state.reason ?? ""], actions: extension(seat) };
  },
  ending: (turn, state) => ({ kind: "slice", title: t("queue.ending"), lines: [state.reason ?? ""] }),
};

function leave() {
  return ["leave", t("queue.leave")];
}

function preparing(turn, state) {
  return {
    kind: "preparing",
    title: t("queue.preparing"),
    lines: [nodeText(state.node), state.reason ?? ""],
    actions: [leave()],
  };
}

// What to say between questions: a lease at rest.
export function seatCard(seat, nowMs) {
  if (seat?.state !== "holding") return null;
  const idle = secondsLeft(seat.idle_left_seconds, nowMs - seat.atMs);
  const slice = secondsLeft(seat.slice_left_seconds, nowMs - seat.atMs);
  if (idle === 0 || slice === 0) return null;
  return {
    kind: "holding",
    title: t("queue.holding", { name: seat.node?.name ?? "" }),
    lines: [
      slice === null ? certainText(seat, nowMs) : t("queue.slice_left", { clock: clock(slice) }),
      idle === null || idle > IDLE_SHOWN_SECONDS ? "" : t("queue.idle_left", { clock: clock(idle) }),
    ],
    actions: [...extension(seat), ["leave", t("queue.end")]],
  };
}

function extension(seat) {
  return seat?.may_extend ? [["extend", t("queue.extend")]] : [];
}

// What is left even if somebody comes; while nobody waits a turn goes on beyond it.
function certainText(seat, nowMs) {
  const certain = secondsLeft(seat.certain_seconds, nowMs - seat.atMs);
  return certain ? t("queue.certain", { clock: clock(certain) }) : "";
}

function nodeText(node) {
  return node ? t("queue.node", node) : "";
}

// Whole minutes, or seconds where it is less; rounded down, for it is a promise.
function spanText(seconds) {
  return seconds < 60
    ? t("unit.seconds", { n: Math.floor(seconds) })
    : t("unit.minutes", { n: Math.floor(seconds / 60) });
}

// A range of seconds as people say it; null: not measured yet.
export function etaText(eta) {
  if (!eta) return t("queue.eta_measuring");
  const [lowSeconds, highSeconds] = eta;
  if (highSeconds < 90) {
    const low = Math.floor(lowSeconds / 5) * 5;
    const high = Math.max(5, Math.ceil(highSeconds / 5) * 5);
    return low >= high ? t("queue.eta_one_second", { high }) : t("queue.eta_seconds", { low, high });
  }
  const low = Math.floor(lowSeconds / 60);
  const high = Math.ceil(highSeconds / 60);
  return low >= high ? t("queue.eta_one_minute", { high }) : t("queue.eta_minutes", { low, high });
}

// One line for the header: whether a node is free.
export function lineSummary(pools, seat) {
  if (!pools) return "";
  if ((seat?.state === "holding" || seat?.state === "busy") && seat.node) return t("line.yours", { name: seat.node.name });
  const sum = (name) => pools.reduce((total, pool) => total + pool[name], 0);
  if (sum("nodes") === 0) return t("line.none");
  if (sum("idle_nodes") > 0) return t("line.free", { n: sum("idle_nodes") });
  return sum("waiting") > 0 ? t("line.busy_waiting", { n: sum("waiting") }) : t("line.busy");
}
