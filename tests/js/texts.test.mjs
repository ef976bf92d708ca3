import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";
import { clock, duration, rate, setTexts, t } from "../../static/js/i18n.js";

const root = new URL("../../", import.meta.url);
const read = (path) => readFileSync(new URL(path, root), "utf8");
const files = readdirSync(new URL("static/lang/", root)).filter((name) => name.endsWith(".json"));
const languages = new Map(files.map((name) => [name.slice(0, -5), JSON.parse(read(`static/lang/${name}`))]));
const english = languages.get("en");

test("every language has the same keys, names and forms", () => {
  const names = (text) => [...new Set(JSON.stringify(text).match(/\{\w+\}/g) ?? [])].sort();
  for (const [code, texts] of languages) {
    assert.deepEqual(Object.keys(texts).sort(), Object.keys(english).sort(), code);
    for (const [key, text] of Object.entries(texts)) {
      assert.deepEqual(names(text), names(english[key]), `${code}: ${key}`);
      if (typeof text === "object") assert.ok(Object.values(text)[0].other, `${code}: ${key}`);
    }
  }
});

test("every text that pages and scripts name exists, and every text is used", () => {
  const sources = ["static/js", "templates", "app/embed"].flatMap((folder) =>
    readdirSync(new URL(folder, root)).filter((name) => /\.(js|html|py)$/.test(name)).map((name) => read(`${folder}/${name}`)),
  );
  const all = [...sources, read("app/pages.py")].join("\n");
  for (const [, key] of all.matchAll(/\bt\(\s*["']([a-z_.0-9]+)["']\s*[,)]/g)) assert.ok(key in english, `no text ${key}`);
  // keys that are put together from a constant start and a changing end
  const made = [/^nav\.theme\./, /^chat\.example_/, /^gauge\.\w+(\.how)?$/];
  const isUsed = (key) => all.includes(`"${key}"`) || all.includes(`'${key}'`) || made.some((pattern) => pattern.test(key));
  assert.deepEqual(Object.keys(english).filter((key) => !isUsed(key)), []);
});

test("places are ordinals, counts have their plural", () => {
  setTexts(english, "en");
  assert.deepEqual([1, 2, 3, 11, 22].map((n) => t("queue.place", { n })), [
    "1st in your line", "2nd in your line", "3rd in your line", "11th in your line", "22nd in your line",
  ]);
  assert.equal(t("line.free", { n: 1 }), "1 node is free");
  assert.equal(t("line.free", { n: 2 }), "2 nodes are free");
  setTexts(languages.get("zh"), "zh");
  assert.equal(t("queue.place", { n: 3 }), "队列中第 3 位");
  setTexts(english, "en");
});

test("nobody is ever called next", () => {
  for (const [key, text] of Object.entries(english)) {
    if (/^(queue|line|announce)\./.test(key)) assert.doesNotMatch(JSON.stringify(text), /\bnext\b/i, key);
  }
});

test("figures are rounded to what they say", () => {
  setTexts(english, "en");
  assert.deepEqual([rate(8.126), rate(612.34), rate(1612.4)], ["8.13", "612.3", "1,612"]);
  assert.deepEqual([duration(81.6), duration(2_345), duration(42_345), duration(90_000)], ["82 ms", "2.35 s", "42.3 s", "1:30 min"]);
  assert.deepEqual([clock(0), clock(59.2), clock(61)], ["0:00", "1:00", "1:01"]);
});

test("values put into a text are not read as text themselves", () => {
  setTexts({ a: "{x} {y}" }, "en");
  assert.equal(t("a", { x: "{y}", y: "<b>" }), "{y} <b>");
  setTexts(english, "en");
});
