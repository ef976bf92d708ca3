// Copying to the clipboard, also where the page is served over plain http.

import { element, icon } from "./dom.js";
import { t } from "./i18n.js";

const SHOWN_MS = 1_600;

export async function copyText(text) {
  if (globalThis.isSecureContext && navigator.clipboard) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch (fault) {
      if (!(fault instanceof DOMException)) throw fault;
    }
  }
  return copyBySelection(text);
}

// The clipboard API needs https; the old command works everywhere.
function copyBySelection(text) {
  const before = document.activeElement;
  const area = element("textarea", { class: "offscreen", readonly: true, "aria-hidden": "true" });
  area.value = text;
  // inside an open dialog, only the dialog's own children can be selected
  (before?.closest("dialog[open]") ?? document.body).append(area);
  area.select();
  const isCopied = document.execCommand("copy");
  area.remove();
  before?.focus?.({ preventScroll: true });
  return isCopied;
}

// A button that copies what `read()` returns at the time of the click.
export function copyButton(read, label = t("copy")) {
  const button = element("button", { type: "button", class: "quiet copy", title: label, "aria-label": label });
  button.append(icon("copy"));
  button.addEventListener("click", () => copyWith(button, read()));
  return button;
}

const timers = new WeakMap();

async function copyWith(button, text) {
  const isCopied = await copyText(text);
  clearTimeout(timers.get(button));
  button.replaceChildren(icon(isCopied ? "check" : "warn"));
  button.title = isCopied ? t("copied") : t("copy.failed");
  timers.set(
    button,
    setTimeout(() => {
      button.replaceChildren(icon("copy"));
      button.title = button.getAttribute("aria-label");
    }, SHOWN_MS),
  );
}
