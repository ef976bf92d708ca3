// Texts in the page's language. The server puts the language's file into the page as data.

let texts = {};
let language = "en";

export function setTexts(newTexts, newLanguage) {
  texts = newTexts;
  language = newLanguage;
}

const block = globalThis.document?.getElementById("texts");
if (block) setTexts(JSON.parse(block.textContent), document.documentElement.lang);

// The text of `key` with {names} filled in. A text may be an object of plural forms, chosen by
// `n` ({"plural": {...}}) or by n as an ordinal ({"ordinal": {...}}).
export function t(key, values = {}) {
  let text = texts[key];
  if (text === undefined) return key;
  if (typeof text === "object") {
    const [[kind, forms]] = Object.entries(text);
    const rules = new Intl.PluralRules(language, { type: kind === "ordinal" ? "ordinal" : "cardinal" });
    text = forms[rules.select(values.n)] ?? forms.other;
  }
  return text.replace(/\{(\w+)\}/g, (whole, name) =>
    name in values ? shown(values[name]) : whole,
  );
}

function shown(value) {
  return typeof value === "number" ? number(value) : String(value);
}

export function number(value, digits = 0) {
  return value.toLocaleString(language, { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

// Tokens a second: two decimals where they say something.
export function rate(value) {
  return number(value, value < 100 ? 2 : value < 1000 ? 1 : 0);
}

export function duration(ms) {
  if (ms < 1000) return t("unit.ms", { n: Math.round(ms) });
  if (ms < 60_000) return t("unit.s", { n: number(ms / 1000, ms < 10_000 ? 2 : 1) });
  return t("unit.min", { n: clock(ms / 1000) });
}

// m:ss, for countdowns.
export function clock(seconds) {
  const whole = Math.max(0, Math.ceil(seconds));
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
}

// When a conversation was last used: a time today, a date before.
export function when(iso) {
  const date = new Date(iso);
  const isToday = date.toDateString() === new Date().toDateString();
  return date.toLocaleString(language, isToday ? { timeStyle: "short" } : { dateStyle: "medium" });
}
