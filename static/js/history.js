// The sidebar: the conversations, to open, rename and delete.

import { call, sentence } from "./api.js";
import { element, find, icon } from "./dom.js";
import { t, when } from "./i18n.js";
import { watchComposition } from "./typing.js";

export class History {
  #list = find("#conversations");
  #none = find("#no-conversations");
  #conversations = [];
  #current = null;
  #running = new Set();
  #onOpen;
  #onDeleted;
  #onError;

  // `onOpen(id)`, `onDeleted(id)`, `onError(sentence)`.
  constructor({ onOpen, onDeleted, onError }) {
    this.#onOpen = onOpen;
    this.#onDeleted = onDeleted;
    this.#onError = onError;
  }

  async refresh() {
    try {
      this.#conversations = (await call("GET", "/api/conversations")).conversations;
    } catch (error) {
      this.#onError(sentence(error));
      return;
    }
    // a row that is being edited stays as it is
    if (!this.#list.querySelector("input, .sure")) this.#paint();
  }

  set current(id) {
    this.#current = id;
    this.#paint();
  }

  // Ids of the conversations with a running question.
  set running(ids) {
    this.#running = ids;
    for (const row of this.#list.children) row.classList.toggle("is-running", ids.has(row.dataset.id));
  }

  #paint() {
    this.#none.hidden = this.#conversations.length > 0;
    this.#list.replaceChildren(...this.#conversations.map((conversation) => this.#row(conversation)));
  }

  #row(conversation) {
    const row = element("li", { "data-id": conversation.id });
    row.classList.toggle("is-running", this.#running.has(conversation.id));
    const title = conversation.title || t("history.untitled");
    const isCurrent = conversation.id === this.#current;
    const link = element(
      "a",
      { href: addressOf(conversation.id), title: `${title}\n${when(conversation.updated_at)}`, "aria-current": isCurrent ? "page" : null },
      element("span", { class: "title", dir: "auto" }, title),
    );
    link.addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      this.#onOpen(conversation.id);
    });
    row.append(
      link,
      tool("pen", t("history.rename"), () => this.#rename(row, conversation)),
      tool("bin", t("history.delete"), () => this.#askToDelete(row, conversation)),
    );
    return row;
  }

  #rename(row, conversation) {
    const field = element("input", { value: conversation.title ?? "", maxlength: "200", "aria-label": t("history.rename") });
    const isComposing = watchComposition(field);
    let isOver = false;
    const finish = async (isKept) => {
      if (isOver) return;
      isOver = true;
      const title = field.value.trim();
      if (isKept && title && title !== conversation.title) await this.#change("PATCH", conversation, { title });
      else this.#paint();
    };
    field.addEventListener("keydown", (event) => {
      if (isComposing(event)) return;
      if (event.key === "Enter" || event.key === "Escape") {
        event.preventDefault();
        finish(event.key === "Enter");
      }
    });
    field.addEventListener("blur", () => finish(true));
    row.replaceChildren(field);
    field.focus();
    field.select();
  }

  #askToDelete(row, conversation) {
    const sure = element(
      "div", { class: "sure", role: "group", "aria-label": t("history.delete_sure") },
      element("p", {}, t("history.delete_sure")),
      element("button", { type: "button", class: "danger", onclick: () => this.#change("DELETE", conversation) }, t("history.delete")),
      element("button", { type: "button", onclick: () => this.#paint() }, t("history.keep")),
    );
    row.replaceChildren(sure);
    sure.lastElementChild.focus();
  }

  async #change(method, conversation, body = null) {
    try {
      await call(method, `/api/conversations/${encodeURIComponent(conversation.id)}`, body);
      if (method === "DELETE") this.#onDeleted(conversation.id);
    } catch (error) {
      this.#onError(sentence(error));
    }
    this.#paint();
    await this.refresh();
  }
}

function tool(name, label, onclick) {
  return element("button", { type: "button", class: "quiet tool", title: label, "aria-label": label, onclick }, icon(name));
}

// The page's own address for a conversation; null: a new one. Other parameters stay.
export function addressOf(id) {
  const address = new URL(location.href);
  if (id === null) address.searchParams.delete("c");
  else address.searchParams.set("c", id);
  return address.pathname + address.search;
}
