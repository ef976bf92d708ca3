// What GET /api/line says of us and of the pools, asked for now and then while the page is visible.

import { call } from "./api.js";
import { HttpError } from "./stream.js";

const HOLDING_MS = 3_000;
const RESTING_MS = 10_000;

export class LineWatch {
  #timer = null;
  #onChange;

  constructor(onChange) {
    this.seat = null;
    this.pools = null;
    this.#onChange = onChange;
    document.addEventListener("visibilitychange", () => this.refresh());
    this.refresh();
  }

  async refresh() {
    clearTimeout(this.#timer);
    if (document.hidden) return;
    try {
      const { seat, pools } = await call("GET", "/api/line");
      this.seat = { ...seat, atMs: performance.now() };
      this.pools = pools;
      this.#onChange();
    } catch (fault) {
      // the next round asks again; what is shown counts down by itself meanwhile
      if (!(fault instanceof HttpError)) throw fault;
    }
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.refresh(), this.seat?.state === "holding" ? HOLDING_MS : RESTING_MS);
  }
}
