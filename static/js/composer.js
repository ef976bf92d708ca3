// The field a question is written in.

import { find } from "./dom.js";
import { recall, remember } from "./storage.js";
import { isTypingPlace, watchComposition } from "./typing.js";

export class Composer {
  #form = find("#composer");
  #field = find("#question");
  #send = find("#send");
  #stop = find("#stop");
  #isBusy = false;
  #onAsk;
  #onStop;

  // `onAsk(question)` when a question is sent; `onStop()` when the running one shall stop.
  constructor({ onAsk, onStop }) {
    this.#onAsk = onAsk;
    this.#onStop = onStop;
    const isComposing = watchComposition(this.#field);
    this.#field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || isComposing(event)) return;
      // on a touch keyboard Enter is the only way to a new line
      if (matchMedia("(pointer: coarse)").matches && !event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      this.#submit();
    });
    this.#field.addEventListener("input", () => this.#fit());
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
    this.#stop.addEventListener("click", () => this.#onStop());
    document.addEventListener("keydown", (event) => this.#onKey(event, isComposing));
    // what was typed before this script came stays
    this.#field.value ||= recall("draft") ?? "";
    this.#fit();
  }

  #onKey(event, isComposing) {
    if (isComposing(event) || document.querySelector("dialog[open]")) return;
    if (event.key === "Escape" && this.#isBusy && !event.defaultPrevented) this.#onStop();
    if (event.key === "/" && !isTypingPlace(document.activeElement)) {
      event.preventDefault();
      this.focus();
    }
  }

  #submit() {
    const question = this.#field.value.trim();
    if (!question || this.#isBusy) return;
    this.value = "";
    this.#onAsk(question);
  }

  set value(text) {
    this.#field.value = text;
    this.#fit();
  }

  get value() {
    return this.#field.value;
  }

  // Busy: this conversation has a running question. One can write on, but not send.
  set isBusy(isBusy) {
    this.#isBusy = isBusy;
    this.#stop.hidden = !isBusy;
    this.#send.hidden = isBusy;
    this.#fit();
  }

  focus() {
    this.#field.focus();
  }

  // As high as its text; CSS sets the limit.
  #fit() {
    this.#field.style.height = "auto";
    this.#field.style.height = `${this.#field.scrollHeight}px`;
    this.#send.disabled = this.#field.value.trim() === "";
    remember("draft", this.#field.value || null);
  }
}
