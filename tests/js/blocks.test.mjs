import assert from "node:assert/strict";
import { test } from "node:test";
import { blockHtml, BlockStream, codeLines, fullHtml, lex } from "../../static/js/blocks.js";

// Collects what a page would show, and checks that nothing finished is touched again.
class Sheet {
  blocks = [];
  tailBlocks = [];
  #code = null;

  commit(token) {
    this.tailBlocks = [];
    this.blocks.push(shown(token));
  }

  tail(tokens) {
    this.tailBlocks = tokens.map(shown);
  }

  codeOpen(language) {
    this.tailBlocks = [];
    this.#code = { language, lines: [], partial: "" };
  }

  codeLine(text, isFinal) {
    this.#code.partial = isFinal ? "" : text;
    if (isFinal) this.#code.lines.push(text);
  }

  codeClose() {
    this.blocks.push(["code", this.#code.language, this.#code.lines]);
    this.#code = null;
  }

  get all() {
    return [...this.blocks, ...this.tailBlocks].filter((block) => block[0] !== "space");
  }
}

function shown(token) {
  if (token.type === "code") return ["code", token.lang ?? "", codeLines(token)];
  return [token.type, blockHtml(token)];
}

function whole(text) {
  return lex(text.replace(/\r\n?/g, "\n")).map(shown).filter((block) => block[0] !== "space");
}

function streamed(text, pieceLength) {
  const sheet = new Sheet();
  const stream = new BlockStream(sheet);
  for (let at = 0; at < text.length; ) {
    const before = JSON.stringify(sheet.blocks);
    const length = pieceLength();
    stream.push(text.slice(at, at + length));
    stream.flush();
    at += length;
    assert.ok(JSON.stringify(sheet.blocks).startsWith(before.slice(0, -1)), "a finished block changed");
  }
  stream.finish();
  return sheet.all;
}

const PIECES = [
  "# Title\n", "\n", "text **bold** and `code`\n", "second line\n", "- one\n", "- two\n  more\n", "  - inner\n",
  "1. first\n", "\n\n", "> quote\n", "| a | b |\n|---|---|\n", "| 1 | 2 |\n", "```js\n", "```\n", "let a = 1;\n", "\n    indented\n",
  "~~~\n", "  ```python\n", "   def f():\n", "---\n", "===\n", "<div>\n", "</div>\n", "<!-- c\n", "[x]: http://a.b\n",
  "[x] http://a.b\n", "真，**她**说\r\n", "`` ` ``\n", "* * *\n", "````\n", "\t tab\n", "- [ ] task\n", "````md\n",
];

// A small generator of our own, so that a failure can be repeated.
function* numbers(seed) {
  let value = seed;
  while (true) {
    value = (Math.imul(value, 1664525) + 1013904223) >>> 0;
    yield value / 2 ** 32;
  }
}

test("streamed markdown ends up equal to the whole, however it is cut", () => {
  for (let seed = 1; seed <= 600; seed += 1) {
    const random = numbers(seed);
    const next = () => random.next().value;
    const text = Array.from({ length: 1 + Math.floor(next() * 14) }, () => PIECES[Math.floor(next() * PIECES.length)]).join("");
    const cut = seed % 3 === 0 ? () => 1 : () => 1 + Math.floor(next() * 9);
    assert.deepEqual(streamed(text, cut), whole(text), `seed ${seed}: ${JSON.stringify(text)}`);
  }
});

test("a long list or code block costs one more block, not one more of everything", () => {
  const commits = [];
  const stream = new BlockStream({
    commit: (token) => commits.push(token.raw), tail() {}, codeOpen() {}, codeLine() {}, codeClose() {},
  });
  for (let n = 0; n < 50; n += 1) {
    stream.push(`paragraph ${n}\n\n`);
    stream.flush();
  }
  assert.ok(commits.length >= 90, "finished paragraphs are committed as they come");
});

test("code appears line by line while its fence is open, without the half-typed closing fence", () => {
  const lines = [];
  const stream = new BlockStream({
    commit() {}, tail() {}, codeOpen: (language) => lines.push(language), codeLine: (text, isFinal) => lines.push([text, isFinal]), codeClose: () => lines.push("end"),
  });
  for (const piece of ["```py\n", "a = ", "1\n", "``", "`\n"]) {
    stream.push(piece);
    stream.flush();
  }
  assert.deepEqual(lines, ["py", ["", false], ["a = ", false], ["a = 1", true], ["", false], ["", false], "end"]);
});

const hostile = [
  "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "<svg onload=alert(1)>", "[a](javascript:alert(1))",
  "[a](JaVaScRiPt:alert(1))", "[a](java&#x0A;script:alert(1))", "[a](data:text/html,x)", "[a](vbscript:x)",
  "![a](javascript:alert(1))", "<javascript:alert(1)>", "[a](\x01javascript:alert(1))", "[a](//evil.example)",
  "<a href=javascript:alert(1)>x</a>", "```\"><script>alert(1)</script>\nx\n```", "[a](http://x \"\\\" onclick=alert(1) \")",
  "![\" onerror=alert(1) x=\"](http://x)", "- <iframe src=//x>", "| <b>a</b> |\n|---|\n| <img src=x> |", "<div\nonclick=alert(1)>",
];

test("no raw HTML, no script address and no image comes out of hostile text", () => {
  for (const text of hostile) {
    const html = fullHtml(text);
    assert.doesNotMatch(html, /<(script|img|svg|iframe|b|div)\b/i, text);
    const withoutValues = html.replace(/"[^"]*"/g, '""');
    assert.doesNotMatch(withoutValues, /<[^>]*\son\w+\s*=/i, `${text} -> ${html}`);
    for (const [, address] of html.matchAll(/href="([^"]*)"/g)) assert.match(address, /^(https?:\/\/|mailto:)/, text);
  }
});

test("links say that they trust nobody; images are links", () => {
  assert.match(fullHtml("[a](https://x.y)"), /rel="noopener/);
  assert.equal(fullHtml("![a cat](https://x.y/c.png)").includes("<a href=\"https://x.y/c.png\""), true);
});

test("Chinese emphasis, tildes and dollars are read as people mean them", () => {
  assert.match(fullHtml("**真，**她说"), /<strong>真，<\/strong>她说/);
  assert.match(fullHtml("10~20 元，3~5 天"), /10~20 元，3~5 天/);
  assert.match(fullHtml("~one~ ~~two~~"), /~one~ <del>two<\/del>/);
  assert.match(fullHtml("It is $5 and $6."), /It is \$5 and \$6\./);
});
