// Server-sent events over fetch, as async generators, and a turn followed to its last event.

// The kinds of event that a turn's stream carries; a test compares them with app/chat/events.py.
export const EVENTS = ["state", "delta", "rate", "done", "failed"];
const LAST = new Set(["done", "failed"]);

// The server speaks at least every 5 s; silence much longer than that is a lost connection.
const SILENCE_MS = 25_000;
const BACK_OFF_MS = [250, 500, 1_000, 2_000, 4_000];

// An HTTP answer that is an error. `status` 0: nothing was reached at all.
export class HttpError extends Error {
  constructor({ status, code, message, retryAfter = null }) {
    super(message);
    this.name = "HttpError";
    this.status = status;
    this.code = code;
    this.retryAfter = retryAfter;
  }

  get isPassing() {
    return this.status === 0 || this.status === 502 || this.status === 504 || this.code === "store_unavailable";
  }
}

// Turn a response with an error status into an HttpError; the body may be anything.
export async function errorFrom(response) {
  let error = {};
  try {
    error = (await response.json())?.error ?? {};
  } catch (fault) {
    if (!(fault instanceof SyntaxError) && !(fault instanceof TypeError)) throw fault;
  }
  const header = Number.parseFloat(response.headers.get("Retry-After") ?? "");
  return new HttpError({
    status: response.status,
    code: error.code ?? `http_${response.status}`,
    message: error.message ?? `HTTP ${response.status}`,
    retryAfter: error.retry_after_seconds ?? (Number.isFinite(header) ? header : null),
  });
}

// The event-stream format: lines end with LF, CR or CRLF, `:` starts a comment, several data lines
// are joined, a blank line ends an event, an unfinished event at the end is dropped.
export class SseParser {
  #rest = "";
  #afterReturn = false;
  #isStart = true;
  #event = "";
  #data = [];
  #id = null;

  // Feed decoded text; returns the events that it completes.
  push(text) {
    if (this.#isStart && text !== "") {
      this.#isStart = false;
      if (text.startsWith("\ufeff")) text = text.slice(1);
    }
    const complete = [];
    let line = this.#rest;
    let start = 0;
    for (let at = 0; at < text.length; at += 1) {
      const letter = text[at];
      const wasReturn = this.#afterReturn;
      this.#afterReturn = letter === "\r";
      if (letter === "\n" && wasReturn) {
        start = at + 1;
      } else if (letter === "\n" || letter === "\r") {
        const event = this.#line(line + text.slice(start, at));
        if (event) complete.push(event);
        line = "";
        start = at + 1;
      }
    }
    this.#rest = line + text.slice(start);
    return complete;
  }

  #line(line) {
    if (line === "") return this.#dispatch();
    const colon = line.indexOf(":");
    if (colon === 0) return null;
    const field = colon < 0 ? line : line.slice(0, colon);
    let value = colon < 0 ? "" : line.slice(colon + 1);
    if (value.startsWith(" ")) value = value.slice(1);
    if (field === "event") this.#event = value;
    else if (field === "data") this.#data.push(value);
    else if (field === "id" && !value.includes("\0")) this.#id = value;
    return null;
  }

  #dispatch() {
    const event = this.#data.length
      ? { event: this.#event || "message", id: this.#id, data: JSON.parse(this.#data.join("\n")) }
      : null;
    this.#event = "";
    this.#data = [];
    this.#id = null;
    return event;
  }
}

// Yields {event, id, data} of one HTTP response; `onOpen` sees the response before the first.
export async function* events(url, options = {}) {
  const { method = "GET", body = null, headers = {}, signal, lastEventId = null, onOpen } = options;
  const response = await fetch(url, {
    method,
    body: body === null ? null : JSON.stringify(body),
    headers: {
      Accept: "text/event-stream",
      ...(body === null ? {} : { "Content-Type": "application/json" }),
      ...(lastEventId === null ? {} : { "Last-Event-ID": lastEventId }),
      ...headers,
    },
    signal,
    cache: "no-store",
  });
  if (!response.ok) throw await errorFrom(response);
  onOpen?.(response);
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  const parser = new SseParser();
  try {
    while (true) {
      const { value, done } = await readUnlessSilent(reader);
      yield* parser.push(decoder.decode(value, { stream: !done }));
      if (done) return;
    }
  } finally {
    // also when the caller leaves its loop early: the connection must not linger
    await reader.cancel().catch(() => {});
  }
}

async function readUnlessSilent(reader) {
  let timer;
  const silence = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new TypeError("the stream fell silent")), SILENCE_MS);
  });
  try {
    return await Promise.race([reader.read(), silence]);
  } finally {
    clearTimeout(timer);
  }
}

function wait(ms, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(finish, ms);
    function finish() {
      clearTimeout(timer);
      globalThis.removeEventListener?.("online", finish);
      signal?.removeEventListener("abort", giveUp);
      resolve();
    }
    function giveUp() {
      clearTimeout(timer);
      globalThis.removeEventListener?.("online", finish);
      reject(signal.reason);
    }
    if (signal?.aborted) giveUp();
    globalThis.addEventListener?.("online", finish);
    signal?.addEventListener("abort", giveUp);
  });
}

// Is the entry `id` at or before `last`? Ids are `<ms>-<n>`.
export function isSeen(id, last) {
  if (id === null || last === null) return false;
  const [ms, n] = id.split("-").map(Number);
  const [lastMs, lastN] = last.split("-").map(Number);
  return ms < lastMs || (ms === lastMs && n <= lastN);
}

// Follow a turn to its last event, whatever happens to the connection. `ask` is the body of
// POST /api/chat for a new turn (its id makes a repeat harmless), null to watch an existing one.
// Nothing with an id comes twice. `onConnection(isUp)` hears of losses and returns.
export async function* followTurn(generation, options = {}) {
  const { ask = null, signal, onConnection = () => {}, onOpen, prefix = "/api", headers } = options;
  let { lastEventId = null } = options;
  let mustAsk = ask !== null;
  let losses = 0;
  while (true) {
    const watchUrl = `${prefix}/turns/${encodeURIComponent(generation)}/events`;
    const opened = (response) => {
      mustAsk = false;
      onConnection(true);
      onOpen?.(response);
    };
    const stream = mustAsk
      ? events(`${prefix}/chat`, { method: "POST", body: ask, headers, signal, onOpen: opened })
      : events(watchUrl, { headers, signal, lastEventId, onOpen: opened });
    try {
      for await (const event of stream) {
        losses = 0;
        if (isSeen(event.id, lastEventId)) continue;
        if (event.id !== null) lastEventId = event.id;
        yield event;
        if (LAST.has(event.event)) return;
      }
    } catch (fault) {
      // fetch and its reader say TypeError for every network fault
      if (!(fault instanceof TypeError) && !fault.isPassing) throw fault;
    }
    signal?.throwIfAborted();
    onConnection(false);
    await wait(BACK_OFF_MS[Math.min(losses, BACK_OFF_MS.length - 1)], signal);
    losses += 1;
  }
}
