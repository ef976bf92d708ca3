import assert from "node:assert/strict";
import { test } from "node:test";
import {
  disconnect, endKey, figuresOf, newTurn, reduceTurn, refuse, secondsLeft, sessionFigures, storedTurn,
} from "../../static/js/state.js";

const state = (version, phase, more = {}) => ({
  event: "state", id: null,
  data: { version, phase, rank: null, waiting: 0, behind_own: 0, eta: null, pool: "p", node: null,
    slice_left_seconds: null, prompt: null, moved: null, reason: null, ...more },
});
const delta = (id, text, n, t_ms, channel = "text") => ({ event: "delta", id, data: { text, channel, n, t_ms } });
const rate = (live, tokens, average = null, peak = null) => ({ event: "rate", id: null, data: { live, tokens, average, peak } });
const FIGURES = {
  usage: { prompt_tokens: 9, cached_tokens: 4, completion_tokens: 11, reasoning_tokens: 2 },
  timing: { queue_ms: 5, prefill_ms: 20, decode_ms: 1000, total_ms: 1020 },
  tps: { peak: 12, average: 10, e2e: 9.8 },
  accepted: { mean: 1, min: 1, max: 1 },
};
const done = (id, more = {}) => ({ event: "done", id, data: { finish_reason: "stop", stop_reason: null, ...FIGURES, ...more } });
const after = (...messages) => messages.reduce((turn, message) => reduceTurn(turn, message, 7), newTurn("g", "q"));

test("a turn goes from the line through reading and answering to its end", () => {
  const turn = after(state(1, "waiting", { rank: 3 }), state(2, "reading"), delta("1-0", "Hel", 1, 0), delta("1-1", "lo", 2, 40), done("2-0"));
  assert.deepEqual([turn.answer, turn.status, turn.phase, turn.tokens, turn.lastId], ["Hello", "done", null, 3, "2-0"]);
});

test("an entry that comes twice counts once", () => {
  const turn = after(delta("1-0", "a", 1, 0), delta("1-0", "a", 1, 0), delta("1-1", "b", 1, 5), delta("1-0", "a", 1, 0));
  assert.deepEqual([turn.answer, turn.tokens], ["ab", 2]);
});

test("an older state does not overwrite a newer one", () => {
  assert.equal(after(state(5, "answering"), state(4, "waiting", { rank: 2 })).phase, "answering");
});

test("nothing changes an ended turn, and unknown events change nothing", () => {
  const ended = after(done("1-0"));
  assert.equal(reduceTurn(ended, delta("2-0", "x", 1, 0)), ended);
  const open = newTurn("g", "q");
  assert.equal(reduceTurn(open, { event: "shout", id: null, data: {} }), open);
});

test("thinking and answer are kept apart, their tokens together", () => {
  const turn = after(delta("1-0", "hm", 2, 0, "reasoning"), delta("1-1", "yes", 1, 9));
  assert.deepEqual([turn.reasoning, turn.answer, turn.tokens, turn.reasoningTokens], ["hm", "yes", 3, 2]);
});

test("a piece may end one part and begin others; calls of tools are no text", () => {
  const piece = delta("1-0", "hm", 2, 0, "reasoning");
  piece.data.tail = [["text", "yes"], ["tool_call", "{}\n"], ["text", "!"]];
  const turn = after(piece, delta("1-1", "{}\n", 1, 9, "tool_call"));
  assert.deepEqual([turn.reasoning, turn.answer, turn.tokens, turn.reasoningTokens], ["hm", "yes!", 3, 2]);
});

test("running figures are the server's own, whatever pieces the text came in", () => {
  // after a reload the text so far comes as one piece: nothing can be computed from that
  const replayed = after(delta("1-1", "ab", 100, 400));
  assert.deepEqual([figuresOf(replayed).average, figuresOf(replayed).peak], [null, null]);
  const measured = reduceTurn(replayed, rate(250, 100, 247.5, 260));
  const { live, average, peak } = figuresOf(measured);
  assert.deepEqual([live, average, peak], [250, 247.5, 260]);
});

test("two equal rates are two measurements; away from answering the speed is unknown", () => {
  const turn = after(delta("1-0", "a", 1, 0), rate(50, 1), rate(50, 1));
  assert.equal(turn.rates, 2);
  assert.equal(disconnect(turn).live, null);
  assert.equal(reduceTurn(turn, state(9, "waiting", { rank: 1 })).live, null);
  assert.equal(reduceTurn(turn, state(9, "answering")).live, 50);
});

test("the figures of an ended answer are the server's own", () => {
  const figures = figuresOf(after(delta("1-0", "a", 1, 0), done("2-0")));
  assert.deepEqual(
    [figures.average, figures.peak, figures.e2e, figures.tokens, figures.ttftMs, figures.queueMs],
    [10, 12, 9.8, 11, 20, 5],
  );
});

test("what was not measured is null, never a zero", () => {
  const none = { ...FIGURES, usage: { ...FIGURES.usage, completion_tokens: 0 }, tps: { peak: 0, average: 0, e2e: 0 } };
  const figures = figuresOf(after(done("1-0", none)));
  assert.deepEqual([figures.average, figures.peak, figures.e2e, figures.ttftMs], [null, null, null, null]);
  const one = { ...FIGURES, tps: { peak: 0, average: 0, e2e: 40 } };
  assert.deepEqual([figuresOf(after(done("1-0", one))).average, figuresOf(after(done("1-0", one))).e2e], [null, 40]);
  const bare = figuresOf(after(done("1-0", { usage: {}, timing: {}, tps: {} })));
  assert.ok(Object.values(bare).every((value) => value === null));
});

test("a stored turn shows its figures; an open one starts empty, for its stream tells all", () => {
  const record = { generation: "g", question: "q", answer: "part", reasoning: "", status: "open", figures: null, error: null };
  assert.equal(storedTurn(record).answer, "");
  const ended = storedTurn({ ...record, status: "done", finish_reason: "stop", figures: FIGURES });
  assert.deepEqual([ended.answer, figuresOf(ended).average], ["part", 10]);
  assert.equal(ended.moved, null);
  const moved = { from: 7, exact: false };
  assert.deepEqual(storedTurn({ ...record, status: "done", figures: { ...FIGURES, moved } }).moved, moved);
  const failed = storedTurn({ ...record, status: "failed", error: { code: "x", message: "Why." } });
  assert.deepEqual([failed.answer, failed.error.message, failed.error.retry, endKey(failed)], ["part", "Why.", true, "end.failed"]);
});

test("a session sums tokens over time and takes the highest peak", () => {
  const slow = after(done("1-0"));
  const fast = after(done("1-0", { timing: { ...FIGURES.timing, decode_ms: 100 }, tps: { peak: 300, average: 100, e2e: 1 } }));
  const figures = sessionFigures([slow, fast, newTurn("x", "open"), refuse(newTurn("y", "q"), {})]);
  assert.deepEqual([figures.answers, figures.tokens, figures.peak], [2, 22, 300]);
  assert.ok(Math.abs(figures.average - 20_000 / 1100) < 1e-9);
  assert.deepEqual(sessionFigures([]), { answers: 0, tokens: 0, average: null, peak: null });
});

test("the end of an answer says why", () => {
  const ends = [
    [{}, "end.stop"], [{ finish_reason: "length" }, "end.length"],
    [{ finish_reason: "cancelled", stop_reason: "stopped" }, "end.stopped"],
    [{ finish_reason: "cancelled", stop_reason: "slice_ended" }, "end.slice"],
  ];
  for (const [more, key] of ends) assert.equal(endKey(after(done("1-0", more))), key);
});

test("countdowns run on between two words of the server and stop at zero", () => {
  assert.equal(secondsLeft(10, 2_500), 7.5);
  assert.equal(secondsLeft(1, 2_500), 0);
  assert.equal(secondsLeft(null, 2_500), null);
});
