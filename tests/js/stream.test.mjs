import assert from "node:assert/strict";
import { createServer } from "node:http";
import { test } from "node:test";
import { errorFrom, events, followTurn, HttpError, isSeen, SseParser } from "../../static/js/stream.js";

const bytes = (text) => new TextEncoder().encode(text);

// What comes out when the bytes arrive in these pieces.
function parsed(...pieces) {
  const decoder = new TextDecoder();
  const parser = new SseParser();
  const found = pieces.flatMap((piece) => parser.push(decoder.decode(piece, { stream: true })));
  return [...found, ...parser.push(decoder.decode())];
}

const STREAM = ':\n\nid: 12-0\nevent: delta\ndata: {"text": "真，她 🙂"}\n\nevent: rate\ndata: {"live":\ndata: 1}\n\n';
const EXPECTED = [
  { event: "delta", id: "12-0", data: { text: "真，她 🙂" } },
  { event: "rate", id: null, data: { live: 1 } },
];

for (const [name, end] of [["LF", "\n"], ["CRLF", "\r\n"], ["CR", "\r"]]) {
  test(`a stream with ${name} line ends is the same wherever it is split`, () => {
    const whole = bytes(STREAM.replaceAll("\n", end));
    for (let at = 0; at <= whole.length; at += 1) {
      assert.deepEqual(parsed(whole.slice(0, at), whole.slice(at)), EXPECTED, `split at ${at}`);
    }
    assert.deepEqual(parsed(...Array.from(whole, (byte) => Uint8Array.of(byte))), EXPECTED);
  });
}

test("comments, unknown fields and an unfinished event at the end say nothing", () => {
  assert.deepEqual(parsed(bytes(': hello\nretry: 5\nfoo\n\ndata: {"a":1}\n')), []);
});

test("a byte order mark at the start is skipped, a missing blank after the colon is fine", () => {
  assert.deepEqual(parsed(bytes("\ufeffdata:1\n\n")), [{ event: "message", id: null, data: 1 }]);
});

test("entries at or before the last seen one are seen, by number and not by text", () => {
  assert.equal(isSeen("10-2", "9-30"), false);
  assert.equal(isSeen("9-9", "9-10"), true);
  assert.equal(isSeen("9-10", "9-10"), true);
  assert.equal(isSeen(null, "9-10"), false);
  assert.equal(isSeen("9-10", null), false);
});

test("an error response becomes a typed error, also when its body is no JSON", async () => {
  const told = await errorFrom(
    new Response('{"error":{"code":"line_full","message":"Full.","retry_after_seconds":60}}', { status: 429 }),
  );
  assert.ok(told instanceof HttpError);
  assert.deepEqual(
    [told.status, told.code, told.message, told.retryAfter], [429, "line_full", "Full.", 60]);
  const bare = await errorFrom(new Response("<html>", { status: 502, headers: { "Retry-After": "3" } }));
  assert.deepEqual([bare.status, bare.code, bare.retryAfter, bare.isPassing], [502, "http_502", 3, true]);
});

// A server whose n-th request is answered by the n-th of `answers`.
async function serving(answers, act) {
  const seen = [];
  const server = createServer((request, response) => {
    let body = "";
    request.on("data", (chunk) => (body += chunk));
    request.on("end", () => {
      seen.push({ method: request.method, url: request.url, after: request.headers["last-event-id"], body });
      answers[seen.length - 1](response);
    });
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  try {
    return await act(`http://127.0.0.1:${server.address().port}/api`, seen);
  } finally {
    server.closeAllConnections();
    server.close();
  }
}

const sse = (text, cut = false) => (response) => {
  response.writeHead(200, { "Content-Type": "text/event-stream", "X-Conversation-Id": "c1" });
  response.write(text, () => (cut ? response.destroy() : response.end()));
};
const delta = (id, text) => `id: ${id}\nevent: delta\ndata: {"text":"${text}"}\n\n`;
const DONE = 'id: 9-0\nevent: done\ndata: {"finish_reason":"stop"}\n\n';

async function collect(generator) {
  const found = [];
  for await (const event of generator) found.push(event.data.text ?? event.event);
  return found;
}

test("a turn is followed over cut and ended connections without a gap or a repeat", async () => {
  const answers = [
    sse(delta("1-0", "a") + delta("1-1", "b"), true),
    sse(delta("1-1", "b") + delta("2-0", "c")),
    sse(delta("2-1", "d") + DONE),
  ];
  await serving(answers, async (prefix, seen) => {
    const connection = [];
    const generator = followTurn("g1", {
      ask: { id: "g1", question: "?" }, prefix, onConnection: (isUp) => connection.push(isUp),
    });
    assert.deepEqual(await collect(generator), ["a", "b", "c", "d", "done"]);
    assert.deepEqual(seen.map(({ method, url, after }) => [method, url, after]), [
      ["POST", "/api/chat", undefined],
      ["GET", "/api/turns/g1/events", "1-1"],
      ["GET", "/api/turns/g1/events", "2-0"],
    ]);
    assert.deepEqual(JSON.parse(seen[0].body), { id: "g1", question: "?" });
    assert.deepEqual(connection, [true, false, true, false, true]);
  });
});

test("a question that never reached the server is asked again with the same id", async () => {
  const answers = [(response) => response.destroy(), sse(DONE)];
  await serving(answers, async (prefix, seen) => {
    assert.deepEqual(await collect(followTurn("g1", { ask: { id: "g1" }, prefix })), ["done"]);
    assert.deepEqual(seen.map(({ method }) => method), ["POST", "POST"]);
  });
});

test("a refusal is thrown and not repeated", async () => {
  const refuse = (response) => {
    response.writeHead(429, { "Content-Type": "application/json" });
    response.end('{"error":{"code":"line_full","message":"Full."}}');
  };
  await serving([refuse], async (prefix, seen) => {
    await assert.rejects(collect(followTurn("g1", { ask: {}, prefix })), { code: "line_full", status: 429 });
    assert.equal(seen.length, 1);
  });
});

test("an abort ends the following at once", async () => {
  await serving([(response) => response.writeHead(200).write(":\n\n")], async (prefix) => {
    const abort = new AbortController();
    const generator = followTurn("g1", { prefix, signal: abort.signal, onOpen: () => abort.abort() });
    await assert.rejects(collect(generator), { name: "AbortError" });
  });
});

test("leaving the loop closes the connection", async () => {
  let closed;
  const isClosed = new Promise((resolve) => (closed = resolve));
  const endless = (response) => {
    response.on("close", closed);
    response.writeHead(200).write(delta("1-0", "a"));
  };
  await serving([endless], async (prefix) => {
    for await (const event of events(`${prefix}/x`)) {
      assert.equal(event.data.text, "a");
      break;
    }
    await isClosed;
  });
});
