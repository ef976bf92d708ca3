// The page with the API keys.

import { call, sentence } from "./api.js";
import { copyButton } from "./copy.js";
import { element, find } from "./dom.js";
import { t, when } from "./i18n.js";

const form = find("#new-key");
const list = find("#keys");

function showError(text) {
  const line = find(".error", form);
  line.hidden = text === "";
  line.textContent = text;
}

function snippet(text) {
  return element("div", { class: "copyable" }, element("pre", { tabindex: "0" }, element("code", {}, text)), copyButton(() => text));
}

// What a site owner puts into a page. Quotes cannot occur in a key.
function embedCode(key) {
  return `<script src="${location.origin}/embed.js" data-key="${key}"></script>`;
}

function showFresh(key) {
  const box = find("#new-secret");
  box.replaceChildren(
    element("h2", {}, `${t("keys.fresh")}: ${key.name}`),
    element("p", {}, t("keys.fresh_text")),
    snippet(key.secret),
  );
  if (key.kind === "publishable") box.append(element("p", {}, t("keys.snippet")), snippet(embedCode(key.secret)));
  box.hidden = false;
  box.scrollIntoView({ block: "nearest" });
}

function row(key) {
  const facts = [
    t(key.kind === "secret" ? "keys.secret" : "keys.publishable"),
    t("keys.created", { date: when(key.created_at) }),
    key.last_used_at ? t("keys.used", { date: when(key.last_used_at) }) : t("keys.unused"),
    ...(key.origins ?? []),
  ];
  const item = element("li", { class: "card" });
  const revoke = element("button", { type: "button", class: "danger", onclick: () => askToRevoke(item, key) }, t("keys.revoke"));
  item.append(
    element(
      "div", {},
      element("b", {}, key.name), " ", element("code", {}, `${key.prefix}…`),
      element("p", { class: "muted" }, facts.join(" · ")),
    ),
    revoke,
  );
  return item;
}

function askToRevoke(item, key) {
  const sure = element(
    "div", { class: "sure" },
    element("p", {}, t("keys.revoke_sure")),
    element("button", { type: "button", class: "danger", onclick: () => change(() => call("DELETE", `/api/keys/${key.id}`)) }, t("keys.revoke")),
    element("button", { type: "button", onclick: refresh }, t("history.keep")),
  );
  item.replaceChildren(element("b", {}, key.name), sure);
  sure.lastElementChild.focus();
}

async function change(act) {
  try {
    await act();
    showError("");
  } catch (error) {
    showError(sentence(error));
  }
  await refresh();
}

async function refresh() {
  const { keys } = await call("GET", "/api/keys");
  list.replaceChildren(...keys.map(row));
  find("#no-keys").hidden = keys.length > 0;
}

function isPublishable() {
  return form.elements.kind.value === "publishable";
}

form.addEventListener("change", () => {
  find("#origins-field").hidden = !isPublishable();
});

form.addEventListener("submit", (event) => {
  event.preventDefault();
  const { name, kind, origins } = form.elements;
  const body = {
    name: name.value.trim(),
    kind: kind.value,
    origins: isPublishable() ? origins.value.split(/[\s,]+/).filter(Boolean) : [],
  };
  change(async () => {
    const key = await call("POST", "/api/keys", body);
    form.reset();
    find("#origins-field").hidden = true;
    showFresh(key);
  });
});

function showUse(model) {
  find("#use-snippet").textContent = [
    `curl ${location.origin}/v1/chat/completions \\`,
    `  -H "Authorization: Bearer $BATON_KEY" \\`,
    `  -H "Content-Type: application/json" \\`,
    `  -d '{"model": "${model}", "stream": true,`,
    `       "messages": [{"role": "user", "content": "Hello"}]}'`,
  ].join("\n");
}

showUse("MODEL");
await change(async () => {
  const { pools } = await call("GET", "/api/line");
  if (pools.length > 0) showUse(pools[0].name);
});
