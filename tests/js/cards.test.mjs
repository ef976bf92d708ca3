import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { before, test } from "node:test";

const document = { getElementById: () => null, documentElement: { lang: "en" } };
globalThis.document = document;
const { setTexts } = await import("../../static/js/i18n.js");
const { etaText, lineSummary, seatCard, turnCard } = await import("../../static/js/queue.js");
const { Announcer } = await import("../../static/js/announce.js");
const { newTurn, reduceTurn, refuse } = await import("../../static/js/state.js");

before(() => setTexts(JSON.parse(readFileSync(new URL("../../static/lang/en.json", import.meta.url), "utf8")), "en"));

const state = (phase, more = {}) => ({
  event: "state", id: null,
  data: { version: 1, phase, rank: null, waiting: 4, behind_own: 0, eta: null, node: null, slice_left_seconds: null, prompt: null, moved: null, reason: null, ...more },
});
const live = (message, isConnected = true, nowMs = 0) => ({ turn: reduceTurn(newTurn("g", "q"), message, nowMs), isConnected, isOpen: true });
const NODE = { name: "gpu-02", hardware: "8 × H200" };

test("the card says the place, who waits and what to expect", () => {
  const card = turnCard(live(state("waiting", { rank: 3, eta: [60, 130], behind_own: 1, reason: "Returned." })), 0);
  assert.equal(card.title, "3rd in your line");
  assert.equal(card.lines[0], "4 waiting · about 1–3 min");
  assert.match(card.lines[1], /1 earlier question/);
  assert.equal(card.lines[2], "Returned.");
  assert.match(card.lines[3], /kept for 2 minutes/);
  assert.deepEqual(card.actions, [["leave", "Leave the line"]]);
});

test("an unmeasured wait is said to be unmeasured", () => {
  assert.match(etaText(null), /measured/);
  assert.deepEqual([etaText([3, 14]), etaText([0, 4]), etaText([125, 170])], ["about 0–15 s", "about 0–5 s", "about 2–3 min"]);
});

test("preparing, reading and a slice with others waiting each have their card; plain answering has none", () => {
  assert.deepEqual(turnCard(live(state("allocating", { node: NODE })), 0).lines[0], "gpu-02 · 8 × H200");
  const reading = turnCard(live(state("reading", { prompt: { done: 50, total: 200, cached: 20 } })), 0);
  assert.deepEqual([reading.progress, reading.lines[0]], [0.25, "50 of 200 tokens · 20 already known"]);
  assert.equal(turnCard(live(state("answering")), 0), null);
  assert.match(turnCard(live(state("answering", { slice_left_seconds: 65 }), true, 1_000), 6_000).title, /1:00 left/);
  assert.match(turnCard(live(state("waiting", { rank: 1 }), false), 0).title, /connection is lost/);
});

test("whoever is called sees how long the turn may be taken, and a button for it", () => {
  const card = turnCard(live(state("claim", { rank: 1, claim_left_seconds: 30 }), true, 1_000), 11_000);
  assert.equal(card.title, "It is your turn: 0:20 to take it");
  assert.deepEqual(card.actions.map(([name]) => name), ["here", "leave"]);
});

test("a node at rest can be given back, and counts down by the server's word", () => {
  const seat = { state: "holding", node: NODE, idle_left_seconds: 30, slice_left_seconds: null, atMs: 0 };
  const card = seatCard(seat, 10_000);
  assert.deepEqual([card.title, card.actions], ["gpu-02 is yours", [["leave", "End turn"]]]);
  assert.match(card.lines[1], /0:20/);
  assert.equal(seatCard(seat, 31_000), null);
  assert.equal(seatCard({ state: "none" }, 0), null);
  assert.equal(seatCard(null, 0), null);
});

test("time can be extended where the server says so, and what is certain is shown", () => {
  const seat = { state: "holding", node: NODE, idle_left_seconds: 50, slice_left_seconds: null, certain_seconds: 200, may_extend: true, atMs: 0 };
  const card = seatCard(seat, 20_000);
  assert.deepEqual(card.actions.map(([name]) => name), ["extend", "leave"]);
  assert.match(card.lines[0], /3:00 of it is certain/);
  const waited = seatCard({ ...seat, slice_left_seconds: 200, may_extend: false }, 20_000);
  assert.deepEqual(waited.actions.map(([name]) => name), ["leave"]);
  assert.match(waited.lines[0], /Others are waiting: 3:00/);
  const answering = live(state("answering", { slice_left_seconds: 65 }));
  assert.deepEqual(turnCard(answering, 0, 120, { may_extend: true }).actions.map(([name]) => name), ["extend"]);
  assert.deepEqual(turnCard(answering, 0, 120, { may_extend: false }).actions, []);
});

test("the header tells whether a node is free", () => {
  const pool = (nodes, idle_nodes, waiting) => [{ name: "p", nodes, idle_nodes, waiting }];
  assert.equal(lineSummary(pool(2, 1, 0), { state: "none" }), "1 node is free");
  assert.equal(lineSummary(pool(2, 0, 3), { state: "none" }), "All nodes are busy, 3 waiting");
  assert.equal(lineSummary([], { state: "none" }), "No node is connected");
  assert.equal(lineSummary(pool(2, 1, 0), { state: "holding", node: NODE }), "gpu-02 is yours");
});

test("a screen reader hears boundaries: joined, place at most every 15 s, turn, answering, end", () => {
  const said = [];
  const announcer = new Announcer((text) => said.push(text));
  let turn = newTurn("g", "q");
  const tell = (message, nowMs) => announcer.turn((turn = reduceTurn(turn, message, nowMs)), nowMs);
  tell(state("waiting", { rank: 5 }), 0);
  tell(state("waiting", { rank: 4 }), 5_000);
  tell(state("waiting", { rank: 3 }), 16_000);
  tell(state("waiting", { rank: 3 }), 40_000);
  tell(state("allocating"), 41_000);
  tell(state("reading"), 42_000);
  for (let n = 0; n < 50; n += 1) tell({ event: "delta", id: `1-${n}`, data: { text: "x", channel: "text", n: 1, t_ms: n } }, 43_000);
  tell({ event: "done", id: "2-0", data: { finish_reason: "stop", stop_reason: null, usage: { completion_tokens: 50 }, timing: {}, tps: { average: 612.3 } } }, 44_000);
  assert.deepEqual(said, [
    "You joined the line. 5th in your line", "3rd in your line", "It is your turn.", "Answering.",
    "Done: 50 tokens, 612 tokens per second on average.",
  ]);
  announcer.turn(refuse(newTurn("h", "q"), { message: "Full." }), 0);
  assert.equal(said.at(-1), "The answer failed. Full.");
});
