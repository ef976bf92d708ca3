// Markdown as blocks: what text is finished, and the HTML of a block. Pure; no DOM.
//
// First of two walls: raw HTML is plain text here, images become links, and only web and mail
// addresses are links. The second wall is DOMPurify, in markdown.js.

import { Marked } from "../vendor/marked.esm.js";
import cjkFriendly from "../vendor/marked-cjk-friendly.js";

const SAFE_LINK = /^(?:https?:\/\/|mailto:)/i;

export function escapeHtml(text) {
  return text.replace(/[&<>"']/g, (letter) => `&#${letter.charCodeAt(0)};`);
}

function link(href, inner, title) {
  // browsers skip these letters inside a scheme, so a check must not see them either
  const address = href.replace(/[\u0000-\u0020\u007f]/g, "");
  if (!SAFE_LINK.test(address)) return inner;
  const hint = title ? ` title="${escapeHtml(title)}"` : "";
  return `<a href="${escapeHtml(address)}"${hint} rel="noopener noreferrer nofollow" target="_blank">${inner}</a>`;
}

const marked = new Marked(cjkFriendly(), {
  gfm: true,
  tokenizer: {
    // No raw HTML: returning nothing leaves the text to the paragraph and text rules.
    html() {},
    tag() {},
    // No link definitions: one that arrives late would change blocks that are already on screen.
    def() {},
    // GFM strikes through with one tilde too; "10~20 and 3~5" is prose.
    del(source, ...rest) {
      return source.startsWith("~~") ? false : undefined;
    },
  },
  renderer: {
    html: ({ text }) => escapeHtml(text),
    image({ href, title, text }) {
      return link(href, escapeHtml(text || href), title);
    },
    link({ href, title, tokens }) {
      return link(href, this.parser.parseInline(tokens), title);
    },
  },
});

const FENCE = /^ {0,3}(`{3,}(?=[^`\n]*\n)|~{3,})([^\n]*)\n/;

// The text's blocks, as marked's tokens; their `raw` parts joined are the text.
export function lex(text) {
  return marked.lexer(text);
}

export function blockHtml(token) {
  return marked.parser([token]);
}

export function fullHtml(text) {
  return lex(text).map(blockHtml).join("");
}

// The opening line of a code fence that is still open at the end of `token`, or null.
function openFence(token) {
  if (token?.type !== "code") return null;
  const match = FENCE.exec(token.raw);
  if (!match) return null;
  const body = token.raw.slice(match[0].length);
  if (closing(match[1]).test(body)) return null;
  return { fence: match[1], language: token.lang ?? "", indent: match[1][0] === "`" ? /^ */.exec(token.raw)[0].length : 0, body };
}

// As marked has it: the same run, more of the same letter, blanks.
function closing(fence) {
  return new RegExp(`(?:^|\\n) {0,3}${fence}${fence[0]}* *(?=\\n|$)`);
}

// The lines of a code token. marked leaves out the last line break, except after an empty line.
export function codeLines({ text }) {
  if (text === "") return [];
  return (text.endsWith("\n") ? text.slice(0, -1) : text).split("\n");
}

// Cuts a growing text into finished blocks and a tail. A sink is told, in order:
//   commit(token)          this block is final
//   tail(tokens)           these may still change; replaces the last tail
//   codeOpen(language)     a code fence opened: what follows is code until codeClose
//   codeLine(text, isFinal)  the current line; after a final one a new line begins
//   codeClose()
export class BlockStream {
  #sink;
  #pending = "";
  #endsWithReturn = false;
  #code = null;

  constructor(sink) {
    this.#sink = sink;
  }

  push(text) {
    if (this.#endsWithReturn) text = `\r${text}`;
    this.#endsWithReturn = text.endsWith("\r");
    if (this.#endsWithReturn) text = text.slice(0, -1);
    this.#pending += text.replace(/\r\n?/g, "\n");
  }

  // Tell the sink about everything pushed so far.
  flush() {
    while (this.#code ? this.#flushCode(false) : this.#flushBlocks());
  }

  // The text is complete.
  finish() {
    if (this.#endsWithReturn) this.#pending += "\n";
    this.#endsWithReturn = false;
    this.flush();
    if (this.#code) this.#flushCode(true);
    for (const token of lex(this.#pending)) this.#sink.commit(token);
    this.#pending = "";
    this.#sink.tail([]);
  }

  // Returns whether the mode changed, so that there is more to tell.
  #flushBlocks() {
    const tokens = lex(this.#pending);
    const open = openFence(tokens.at(-1));
    // The last two blocks may still change: a list goes on, a table's second row makes it a table.
    const keep = open ? 1 : 2;
    let blocks = 0;
    let cut = tokens.length;
    while (cut > 0 && blocks < keep) {
      cut -= 1;
      if (tokens[cut].type !== "space") blocks += 1;
    }
    for (const token of tokens.slice(0, cut)) {
      this.#sink.commit(token);
      this.#pending = this.#pending.slice(token.raw.length);
    }
    if (!open) {
      this.#sink.tail(tokens.slice(cut));
      return false;
    }
    this.#sink.tail([]);
    this.#code = { ...open, end: closing(open.fence) };
    this.#pending = open.body;
    this.#sink.codeOpen(open.language);
    return true;
  }

  #flushCode(isEnd) {
    const { end, indent } = this.#code;
    let newline;
    while ((newline = this.#pending.indexOf("\n")) >= 0) {
      const line = this.#pending.slice(0, newline);
      if (end.test(line)) {
        // the line break after the fence belongs to what follows
        this.#pending = this.#pending.slice(newline);
        this.#closeCode();
        return true;
      }
      this.#sink.codeLine(outdent(line, indent), true);
      this.#pending = this.#pending.slice(newline + 1);
    }
    if (isEnd) {
      if (this.#pending && !end.test(this.#pending)) {
        this.#sink.codeLine(outdent(this.#pending, indent), true);
      }
      this.#pending = "";
      this.#closeCode();
    } else {
      // a half-typed fence is not shown as code
      const isFence = this.#pending.trimStart().startsWith(this.#code.fence[0]);
      this.#sink.codeLine(isFence ? "" : outdent(this.#pending, indent), false);
    }
    return false;
  }

  #closeCode() {
    this.#code = null;
    this.#sink.codeClose();
  }
}

// A fence's own indent is taken from its lines, as marked does it (for backticks only).
function outdent(line, indent) {
  return line.slice(Math.min(/^\s*/.exec(line)[0].length, indent));
}
