// Forms that sign in or create an account.

import { call, sentence } from "./api.js";
import { find } from "./dom.js";
import { t } from "./i18n.js";

// The first-start link carries its token in the fragment, which no server or log ever sees.
function takeAdminToken() {
  const match = /^#admin=(.+)$/.exec(location.hash);
  if (!match) return null;
  history.replaceState(null, "", location.pathname + location.search);
  try {
    return decodeURIComponent(match[1]);
  } catch {
    // a link cut in the middle of an escape: the server will say that it is not valid
    return match[1];
  }
}

// Only a path of our own may be gone on to.
function nextPath() {
  const next = new URLSearchParams(location.search).get("next") ?? "/";
  return /^\/[a-z-]*$/.test(next) ? next : "/";
}

class SignInForm {
  #form;
  #token;
  #isNew;
  #onDone;

  constructor(form, token, onDone) {
    this.#form = form;
    this.#token = token;
    this.#onDone = onDone;
    this.#show(token !== null);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
    find("[data-switch]", form).addEventListener("click", () => this.#show(!this.#isNew));
    // disabled in the page: without this script the browser itself would send the password
    find("[data-submit]", form).disabled = false;
  }

  #show(isNew) {
    this.#isNew = isNew;
    const form = this.#form;
    find("[data-title]", form).textContent = t(isNew ? "sign_up.title" : "sign_in.title");
    find("[data-submit]", form).textContent = t(isNew ? "sign_up" : "sign_in");
    find("[data-switch-text]", form).textContent = t(isNew ? "sign_in.have_account" : "sign_in.no_account");
    find("[data-switch]", form).textContent = t(isNew ? "sign_in" : "sign_up");
    find("[data-admin-note]", form).hidden = !isNew || this.#token === null;
    form.elements.password.autocomplete = isNew ? "new-password" : "current-password";
    this.#showError("");
  }

  #showError(text) {
    const line = find("[data-error]", this.#form);
    line.textContent = text;
    line.hidden = text === "";
  }

  async #submit() {
    const { name, password } = this.#form.elements;
    if (!name.value.trim() || !password.value) {
      this.#showError(t("sign_in.missing"));
      (name.value.trim() ? password : name).focus();
      return;
    }
    const body = { name: name.value, password: password.value };
    if (this.#isNew && this.#token !== null) body.admin_token = this.#token;
    const button = find("[data-submit]", this.#form);
    button.disabled = true;
    try {
      const me = await call("POST", this.#isNew ? "/api/sign-up" : "/api/sign-in", body);
      password.value = "";
      this.#showError("");
      this.#onDone(me);
    } catch (error) {
      this.#showError(sentence(error));
    } finally {
      button.disabled = false;
    }
  }
}

// A form inside a dialog: resolves when somebody has signed in, with null when it was closed.
export function askToSignIn(dialog) {
  return new Promise((resolve) => {
    let result = null;
    find("[data-title]", dialog).textContent = t("sign_in.title");
    dialog.returnValue = "";
    dialog.addEventListener("close", () => resolve(result), { once: true });
    pending.set(dialog, (me) => {
      result = me;
      dialog.close();
    });
    dialog.showModal();
  });
}

const pending = new WeakMap();
const token = takeAdminToken();
for (const form of document.querySelectorAll("form[data-sign-in]")) {
  const dialog = form.closest("dialog");
  new SignInForm(form, dialog ? null : token, (me) => {
    if (dialog) pending.get(dialog)?.(me);
    else location.assign(nextPath());
  });
}
