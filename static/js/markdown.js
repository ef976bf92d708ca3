// Markdown into the page, whole or as it streams in. Finished blocks are never touched again; per
// frame only the last two blocks are rendered anew, and code grows by an element per line.

import "../vendor/purify.min.js";
import { BlockStream, blockHtml, codeLines, lex } from "./blocks.js";
import { copyButton } from "./copy.js";
import { element } from "./dom.js";
import { t } from "./i18n.js";

// Second wall behind the escaping in blocks.js.
const ALLOWED = {
  ALLOWED_TAGS: [
    "p", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6", "strong", "em", "del", "code", "pre", "a",
    "blockquote", "ul", "ol", "li", "input", "table", "thead", "tbody", "tr", "th", "td",
  ],
  ALLOWED_ATTR: ["href", "title", "rel", "target", "align", "class", "start", "type", "checked", "disabled"],
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  ALLOWED_URI_REGEXP: /^(?:https?:|mailto:)/i,
  // DOMPurify would hold these against the pattern above too
  ADD_URI_SAFE_ATTR: ["rel", "target", "align", "start", "type", "checked", "disabled"],
  RETURN_DOM_FRAGMENT: true,
};
const SLOW_FLUSH_MS = 12;
const HIDDEN_FLUSH_MS = 250;
const MOST_SKIPPED_FRAMES = 3;

// Foreign HTML as a fragment of the allowed elements only.
export function sanitised(html) {
  return globalThis.DOMPurify.sanitize(html, ALLOWED);
}

class CodeBlock {
  #code = element("code");
  #last = null;

  constructor(language) {
    const name = language.trim().split(/\s+/)[0];
    const copy = copyButton(() => this.#code.textContent.replace(/\n$/, ""), t("copy.code"));
    this.figure = element(
      "figure", { class: "code" },
      element("figcaption", {}, element("span", {}, name), copy),
      element("pre", { tabindex: "0" }, this.#code),
    );
  }

  // One element per line: the cost of layout stays with the last line.
  line(text, isFinal) {
    if (!this.#last) {
      if (text === "" && !isFinal) return;
      this.#last = element("span", { class: "line" });
      this.#code.append(this.#last);
    }
    const shown = isFinal ? `${text}\n` : text;
    if (this.#last.textContent !== shown) this.#last.textContent = shown;
    if (isFinal) this.#last = null;
  }

  // No further line comes; one that was begun and not finished is no line.
  close() {
    if (this.#last) this.#last.remove();
  }
}

function codeBlock(language, lines) {
  const block = new CodeBlock(language);
  for (const line of lines) block.line(line, true);
  return block.figure;
}

// The nodes of one block.
function rendered(token) {
  if (token.type === "code") return codeBlock(token.lang ?? "", codeLines(token));
  const fragment = sanitised(blockHtml(token));
  for (const pre of fragment.querySelectorAll("pre")) {
    const language = /language-(\S+)/.exec(pre.firstElementChild?.className ?? "")?.[1] ?? "";
    pre.replaceWith(codeBlock(language, codeLines({ text: pre.textContent })));
  }
  for (const table of fragment.querySelectorAll("table")) {
    const frame = element("div", { class: "table", tabindex: "0" });
    table.replaceWith(frame);
    frame.append(table);
  }
  return fragment;
}

// Render a whole text; what was in `target` goes.
export function renderInto(target, text) {
  target.replaceChildren(...lex(text.replace(/\r\n?/g, "\n")).map(rendered));
}

export class StreamRenderer {
  #target;
  #tailNodes = [];
  #tailRaw = "";
  #code = null;
  #stream = new BlockStream(this);
  #frame = null;
  #timer = null;
  #isDirty = false;
  #slowFlushes = 0;
  #skip = 0;
  #skipped = 0;
  #onFlush;

  // `onFlush` is called after text was painted, for scrolling.
  constructor(target, onFlush = () => {}) {
    this.#target = target;
    this.#onFlush = onFlush;
    target.replaceChildren();
  }

  push(text) {
    if (text === "") return;
    this.#stream.push(text);
    this.#isDirty = true;
    this.#schedule();
  }

  // Paint everything and render the tail for the last time.
  finish() {
    this.#unschedule();
    this.#stream.finish();
    this.#isDirty = false;
    this.#onFlush();
  }

  // Frames stop in a hidden page, so a timer keeps the text from piling up.
  #schedule() {
    if (this.#frame === null && !document.hidden) {
      this.#frame = requestAnimationFrame(() => this.#onFrame());
    }
    this.#timer ??= setTimeout(() => this.#flush(), HIDDEN_FLUSH_MS);
  }

  #unschedule() {
    cancelAnimationFrame(this.#frame);
    clearTimeout(this.#timer);
    this.#frame = this.#timer = null;
  }

  #onFrame() {
    this.#frame = null;
    if (this.#skipped < this.#skip) {
      this.#skipped += 1;
      this.#schedule();
    } else {
      this.#flush();
    }
  }

  #flush() {
    this.#unschedule();
    this.#skipped = 0;
    if (!this.#isDirty) return;
    this.#isDirty = false;
    const start = performance.now();
    this.#stream.flush();
    this.#onFlush();
    this.#adapt(performance.now() - start);
  }

  // On a slow machine paint every second, then every fourth frame.
  #adapt(ms) {
    this.#slowFlushes = ms > SLOW_FLUSH_MS ? this.#slowFlushes + 1 : 0;
    if (this.#slowFlushes >= 2) {
      this.#skip = Math.min(MOST_SKIPPED_FRAMES, this.#skip * 2 + 1);
      this.#slowFlushes = 0;
    }
  }

  // -- what BlockStream tells ---------------------------------------------------------------------

  commit(token) {
    this.#clearTail();
    this.#target.append(rendered(token));
  }

  tail(tokens) {
    const raw = tokens.map((token) => token.raw).join("");
    if (raw === this.#tailRaw && raw !== "") return;
    this.#clearTail();
    const fragment = document.createDocumentFragment();
    fragment.append(...tokens.map(rendered));
    this.#tailNodes = [...fragment.childNodes];
    this.#tailRaw = raw;
    this.#target.append(fragment);
  }

  codeOpen(language) {
    this.#clearTail();
    this.#code = new CodeBlock(language);
    this.#target.append(this.#code.figure);
  }

  codeLine(text, isFinal) {
    this.#code.line(text, isFinal);
  }

  codeClose() {
    this.#code.close();
    this.#code = null;
  }

  #clearTail() {
    for (const node of this.#tailNodes) node.remove();
    this.#tailNodes = [];
    this.#tailRaw = "";
  }
}
