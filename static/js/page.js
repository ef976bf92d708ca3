// What every page has: language, colours, the account menu.

import { call } from "./api.js";
import { t } from "./i18n.js";
import { recall, remember } from "./storage.js";

const THEMES = ["auto", "light", "dark"];

function showTheme(theme) {
  const root = document.documentElement;
  if (theme === "auto") delete root.dataset.theme;
  else root.dataset.theme = theme;
  const button = document.getElementById("theme");
  button.title = t(`nav.theme.${theme}`);
  button.setAttribute("aria-label", button.title);
}

function currentTheme() {
  const theme = recall("theme");
  return THEMES.includes(theme) ? theme : "auto";
}

document.getElementById("theme").addEventListener("click", () => {
  const next = THEMES[(THEMES.indexOf(currentTheme()) + 1) % THEMES.length];
  remember("theme", next === "auto" ? null : next);
  showTheme(next);
});
showTheme(currentTheme());

for (const button of document.querySelectorAll("[data-language]")) {
  button.addEventListener("click", () => {
    remember("language", button.dataset.language);
    const address = new URL(location.href);
    address.searchParams.set("lang", button.dataset.language);
    location.assign(address);
  });
}

document.getElementById("sign-out")?.addEventListener("click", async () => {
  await call("POST", "/api/sign-out");
  location.assign("/");
});

// A menu closes when one clicks or tabs elsewhere, or presses Escape.
const account = document.querySelector("details.account");
if (account) {
  const closeOutside = (event) => {
    if (!account.contains(event.target)) account.open = false;
  };
  document.addEventListener("pointerdown", closeOutside);
  document.addEventListener("focusin", closeOutside);
  account.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !account.open) return;
    event.stopPropagation();
    account.open = false;
    account.querySelector("summary").focus();
  });
}
