// The same question at two models: their answers side by side, and who writes how fast.

import { element, find, setText } from "./dom.js";
import { rate, t } from "./i18n.js";
import { LiveTurn, newGenerationId } from "./live_turn.js";
import { figuresOf, newTurn } from "./state.js";
import { HttpError } from "./stream.js";

// The model to race against: an idle one beside the one that is asked; null where there is none.
export function opponentOf(pool, pools) {
  const asked = pool ?? pools[0]?.name;
  return pools.find(({ name, idle_nodes }) => name !== asked && idle_nodes > 0)?.name ?? null;
}

export class RaceSwitch {
  #button = find("#race");

  constructor() {
    this.#button.addEventListener("click", () => this.#button.setAttribute("aria-pressed", String(!this.isOn)));
  }

  get isOn() {
    return !this.#button.hidden && this.#button.getAttribute("aria-pressed") === "true";
  }
}

export class Race {
  #ask;
  #view;
  #live;
  #titles = { own: element("h3"), other: element("h3") };
  #names;
  #onChange;

  // `ask`: the body of the question, for the pool of `names.own`. `onChange()` when it ends.
  constructor(ask, { own, other }, ownView, view, onChange) {
    const turn = newTurn(newGenerationId(), ask.question);
    this.#ask = { ...ask, id: turn.generation, pool: other, race: true };
    this.#names = { own, other };
    this.#view = view;
    this.#onChange = onChange;
    this.#live = new LiveTurn(turn, { conversationId: ask.conversation_id, onChange: (live) => this.#changed(live.turn) });
    view.show(turn);
    setText(this.#titles.own, own);
    setText(this.#titles.other, other);
    this.element = element(
      "section", { class: "race", "aria-label": t("race.title") },
      element("div", { class: "question", dir: "auto" }, ask.question),
      element("div", { class: "lane" }, this.#titles.own, ownView.element),
      element("div", { class: "lane" }, this.#titles.other, view.element),
      element("p", { class: "muted" }, t("race.not_kept")),
    );
  }

  get isOpen() {
    return this.#live.isOpen;
  }

  // The first answer has gone on: its lane says how fast.
  showOwn(turn) {
    setText(this.#titles.own, titleOf(this.#names.own, turn));
  }

  async run() {
    try {
      await this.#live.run(this.#ask);
    } catch (fault) {
      // the lane says why
      if (!(fault instanceof HttpError)) throw fault;
    } finally {
      this.#onChange();
    }
  }

  get generation() {
    return this.#live.turn.generation;
  }

  #changed(turn) {
    this.#view.update(turn);
    setText(this.#titles.other, titleOf(this.#names.other, turn));
  }
}

function titleOf(name, turn) {
  if (turn.live !== null) return `${name} · ${t("race.rate", { n: rate(turn.live) })}`;
  const average = turn.status === "open" ? null : figuresOf(turn).average;
  return average === null ? name : `${name} · ${t("figures.average", { n: rate(average) })}`;
}
