// Deleting one's account: asked twice, and only with the password.

import { call, sentence } from "./api.js";
import { find } from "./dom.js";
import { forgetAll } from "./storage.js";

const dialog = find("#delete-account");
const form = find("form", dialog);
const password = form.elements.password;
const remove = find("[type=submit]", form);

function showError(text) {
  const line = find("[data-error]", form);
  line.hidden = text === "";
  line.textContent = text;
}

function open() {
  password.value = "";
  remove.disabled = true;
  showError("");
  dialog.showModal();
  password.focus();
}

async function submit() {
  remove.disabled = true;
  try {
    await call("DELETE", "/api/me", { password: password.value });
  } catch (error) {
    showError(sentence(error));
    password.select();
    remove.disabled = false;
    return;
  }
  // also the draft and the settings
  forgetAll();
  location.assign("/");
}

find("#open-delete-account").addEventListener("click", () => {
  find("details.account").open = false;
  open();
});
find("[data-keep]", form).addEventListener("click", () => dialog.close());
dialog.addEventListener("close", () => {
  password.value = "";
});
password.addEventListener("input", () => {
  remove.disabled = password.value === "";
});
form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (!remove.disabled) submit();
});
