// The drawer with the system prompt and the sampling parameters of the next question.

import { find } from "./dom.js";
import { recall, remember } from "./storage.js";

const NUMBERS = ["temperature", "top_p", "top_k", "max_tokens", "seed"];

export class Settings {
  #dialog = find("#settings");
  #form = find("form", this.#dialog);

  constructor() {
    find("#open-settings").addEventListener("click", () => this.#dialog.showModal());
    find("#settings-reset").addEventListener("click", () => {
      this.#form.reset();
      this.#store();
    });
    this.#form.addEventListener("input", () => this.#store());
    // a click on the backdrop is a click on the dialog itself
    this.#dialog.addEventListener("click", (event) => {
      if (event.target === this.#dialog && this.#form.reportValidity()) this.#dialog.close();
    });
    this.#load();
  }

  // Only what was filled in; the server knows the defaults.
  get values() {
    const values = {};
    const system = this.#form.elements.system.value.trim();
    if (system) values.system = system;
    for (const name of NUMBERS) {
      const field = this.#form.elements[name];
      if (field.value !== "" && field.validity.valid) values[name] = field.valueAsNumber;
    }
    return values;
  }

  #store() {
    const values = this.values;
    const isEmpty = Object.keys(values).length === 0;
    remember("settings", isEmpty ? null : JSON.stringify(values));
    find("#open-settings").toggleAttribute("data-set", !isEmpty);
  }

  #load() {
    let values = {};
    try {
      values = JSON.parse(recall("settings") ?? "{}") ?? {};
    } catch (fault) {
      if (!(fault instanceof SyntaxError)) throw fault;
    }
    for (const name of ["system", ...NUMBERS]) {
      if (values[name] !== undefined) this.#form.elements[name].value = values[name];
    }
    this.#store();
  }
}
