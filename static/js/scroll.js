// Where the log stands: the question at the top with its answer filling down, or following the end.

import { find } from "./dom.js";
import { recall, remember } from "./storage.js";

const NEAR_PX = 24;

export class Scroll {
  #log = find("#log");
  #button = find("#follow");
  #turns = find("#turns");

  constructor() {
    this.isFollowing = recall("follow") === "1";
    this.#showSwitch();
    this.#button.addEventListener("click", () => {
      this.isFollowing = !this.isFollowing;
      remember("follow", this.isFollowing ? "1" : null);
      this.#showSwitch();
      if (this.isFollowing) this.toEnd();
    });
    this.#log.addEventListener("scroll", () => this.#showButton(), { passive: true });
    // reading back is a reason not to be pulled away
    this.#log.addEventListener("wheel", (event) => event.deltaY < 0 && this.#release(), { passive: true });
    this.#log.addEventListener("touchmove", () => this.#release(), { passive: true });
    new ResizeObserver(() => this.#room()).observe(this.#log);
  }

  // The last turn gets the height of the view, so that its question can stand at the top.
  #room() {
    this.#turns.style.setProperty("--room", `${this.#log.clientHeight}px`);
    this.afterPaint();
  }

  toQuestion(article) {
    this.#room();
    const top = article.offsetTop - this.#turns.offsetTop;
    const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.#log.scrollTo({ top, behavior: calm ? "instant" : "smooth" });
  }

  toEnd() {
    this.#log.scrollTop = this.#log.scrollHeight;
  }

  afterPaint() {
    if (this.isFollowing) this.toEnd();
    this.#showButton();
  }

  #release() {
    if (!this.isFollowing) return;
    this.isFollowing = false;
    this.#showSwitch();
  }

  #showSwitch() {
    this.#button.setAttribute("aria-pressed", String(this.isFollowing));
  }

  #showButton() {
    const { scrollHeight, scrollTop, clientHeight } = this.#log;
    const isAtEnd = scrollHeight - scrollTop - clientHeight < NEAR_PX;
    this.#button.hidden = isAtEnd && !this.isFollowing;
  }
}
