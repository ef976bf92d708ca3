// On narrow screens the sidebar is a sheet over the page.

import { find } from "./dom.js";

export class Sidebar {
  #side = find("#side");
  #shade = find("#shade");
  #button = find("#menu");
  #narrow = matchMedia("(max-width: 899px)");

  constructor() {
    this.#button.addEventListener("click", () => this.#set(this.#button.ariaExpanded !== "true"));
    this.#shade.addEventListener("click", () => this.close());
    document.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || this.#button.ariaExpanded !== "true") return;
      event.preventDefault(); // so that Escape does not stop the answer too
      this.close();
      this.#button.focus();
    }, { capture: true });
    this.#narrow.addEventListener("change", () => this.close());
    this.close();
  }

  close() {
    this.#set(false);
  }

  #set(isOpen) {
    this.#button.ariaExpanded = String(isOpen);
    this.#side.classList.toggle("is-open", isOpen);
    this.#shade.hidden = !isOpen;
    this.#side.inert = this.#narrow.matches && !isOpen;
    if (isOpen) this.#side.querySelector("button, a")?.focus();
  }
}
