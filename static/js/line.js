// What GET /api/line says of us and of the pools, asked for now and then while the page is visible.

import { call } from "./api.js";
import { find, setText } from "./dom.js";
import { lineSummary } from "./queue.js";
import { HttpError } from "./stream.js";

const HOLDING_MS = 3_000;
const RESTING_MS = 10_000;

export class LineWatch {
  #timer = null;
  #onChange;

  // `onChange(this)` whenever something was heard.
  constructor(onChange) {
    this.seat = null;
    this.pools = null;
    this.#onChange = onChange;
    document.addEventListener("visibilitychange", () => this.refresh());
    this.refresh();
  }

  // Do something about our place or node, and hear what it changed.
  async act(deed) {
    await deed();
    await this.refresh();
  }

  async refresh() {
    clearTimeout(this.#timer);
    if (document.hidden) return;
    try {
      const { seat, pools } = await call("GET", "/api/line");
      this.seat = { ...seat, atMs: performance.now() };
      this.pools = pools;
      this.#onChange(this);
    } catch (fault) {
      // the next round asks again; what is shown counts down by itself meanwhile
      if (!(fault instanceof HttpError)) throw fault;
    }
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.refresh(), this.seat?.state === "holding" ? HOLDING_MS : RESTING_MS);
  }
}

// The header's word on the nodes, and the choice of a model where there are several.
export function showLine({ seat, pools }) {
  const summary = find("#line-summary");
  setText(summary, lineSummary(pools, seat));
  summary.dataset.free = String(pools.some((pool) => pool.idle_nodes > 0) || ["holding", "busy"].includes(seat.state));
  const select = find("#pool");
  const names = pools.map((pool) => pool.name);
  find("#pools").hidden = names.length < 2;
  find("#race").hidden = names.length < 2;
  if (names.join("\n") === [...select.options].map((option) => option.value).join("\n")) return;
  const chosen = select.value;
  select.replaceChildren(...names.map((name) => new Option(name, name)));
  if (names.includes(chosen)) select.value = chosen;
}
