// What the page knows of a turn and of a session: pure functions of what the server said.

import { isSeen } from "./stream.js";

function emptyTurn() {
  return {
    generation: null,
    question: "",
    answer: "",
    reasoning: "",
    // open, done or failed
    status: "open",
    phase: null,
    state: null,
    // when `state` came, on the page's clock: countdowns run on from there
    stateAtMs: null,
    lastId: null,
    tokens: 0,
    reasoningTokens: 0,
    live: null,
    averageSoFar: null,
    peakSoFar: null,
    // `rate` events so far: tells two equal values from one
    rates: 0,
    finishReason: null,
    stopReason: null,
    usage: null,
    timing: null,
    tps: null,
    accepted: null,
    // of a stored answer; while it runs `state` says so
    moved: null,
    error: null,
  };
}

// A turn that is being asked now.
export function newTurn(generation, question) {
  return { ...emptyTurn(), generation, question };
}

// A turn as GET /api/conversations/{id} tells it. An open one starts empty: its stream is read
// from the beginning.
export function storedTurn(record) {
  const turn = { ...newTurn(record.generation, record.question), status: record.status };
  if (record.status === "open") return turn;
  const figures = record.figures ?? {};
  return {
    ...turn,
    answer: record.answer ?? "",
    reasoning: record.reasoning ?? "",
    phase: null,
    finishReason: record.finish_reason ?? null,
    stopReason: record.stop_reason ?? null,
    usage: figures.usage ?? null,
    timing: figures.timing ?? null,
    tps: figures.tps ?? null,
    accepted: figures.accepted ?? null,
    moved: figures.moved ?? null,
    error: record.error ? { retry: true, ...record.error } : null,
  };
}

// The turn after `message` ({event, id, data}); the same object where nothing changes.
export function reduceTurn(turn, message, nowMs = 0) {
  const change = CHANGES[message.event];
  if (!change || turn.status !== "open" || isSeen(message.id, turn.lastId)) return turn;
  const next = change(turn, message.data, nowMs);
  return message.id === null || next === turn ? next : { ...next, lastId: message.id };
}

function textOf(pieces, channel) {
  return pieces.filter(([name]) => name === channel).map(([, text]) => text).join("");
}

const CHANGES = {
  state(turn, data, nowMs) {
    // a late connection may repeat an older version
    if (turn.state && data.version < turn.state.version) return turn;
    const live = data.phase === "answering" ? turn.live : null;
    return { ...turn, state: data, stateAtMs: nowMs, phase: data.phase, live };
  },

  delta(turn, data) {
    const pieces = [[data.channel, data.text], ...(data.tail ?? [])];
    return {
      ...turn,
      phase: "answering",
      answer: turn.answer + textOf(pieces, "text"),
      reasoning: turn.reasoning + textOf(pieces, "reasoning"),
      tokens: turn.tokens + data.n,
      reasoningTokens: turn.reasoningTokens + (data.channel === "reasoning" ? data.n : 0),
    };
  },

  rate(turn, data) {
    return {
      ...turn,
      live: data.live,
      averageSoFar: data.average,
      peakSoFar: data.peak,
      rates: turn.rates + 1,
    };
  },

  done(turn, data) {
    return {
      ...turn,
      status: "done",
      phase: null,
      live: null,
      finishReason: data.finish_reason,
      stopReason: data.stop_reason,
      usage: data.usage,
      timing: data.timing,
      tps: data.tps,
      accepted: data.accepted,
    };
  },

  failed(turn, data) {
    return { ...turn, status: "failed", phase: null, live: null, error: data };
  },
};

// The connection is gone: what was the speed is no longer known.
export function disconnect(turn) {
  return turn.live === null ? turn : { ...turn, live: null };
}

// A turn that ended before its stream began: the request was refused.
export function refuse(turn, error) {
  return { ...turn, status: "failed", phase: "refused", error };
}

// The figures to show for a turn, each null until it was measured. All are the server's: a page
// that came in the middle cannot know when the first token left the engine.
export function figuresOf(turn) {
  const { usage, timing, tps } = turn;
  const isMeasured = tps !== null && timing !== null && (usage?.completion_tokens ?? 0) > 0;
  if (isMeasured) {
    return {
      live: null,
      average: tps.average > 0 ? tps.average : null,
      peak: tps.peak > 0 ? tps.peak : null,
      e2e: tps.e2e > 0 ? tps.e2e : null,
      tokens: usage.completion_tokens,
      promptTokens: usage.prompt_tokens,
      cachedTokens: usage.cached_tokens ?? null,
      reasoningTokens: usage.reasoning_tokens ?? null,
      ttftMs: timing.prefill_ms,
      queueMs: timing.queue_ms,
      prefillMs: timing.prefill_ms,
      decodeMs: timing.decode_ms,
      totalMs: timing.total_ms,
    };
  }
  const isRunning = turn.status === "open";
  return {
    live: turn.live,
    average: turn.averageSoFar,
    peak: turn.peakSoFar,
    e2e: null,
    tokens: turn.tokens || (isRunning ? null : usage?.completion_tokens ?? null),
    promptTokens: usage?.prompt_tokens ?? turn.state?.prompt?.total ?? null,
    cachedTokens: usage?.cached_tokens ?? turn.state?.prompt?.cached ?? null,
    reasoningTokens: turn.reasoningTokens || null,
    ttftMs: null,
    queueMs: timing?.queue_ms ?? null,
    prefillMs: null,
    decodeMs: null,
    totalMs: timing?.total_ms ?? null,
  };
}

// Figures of several turns together: sums over sums, and the highest peak (engine/metrics.py).
export function sessionFigures(turns) {
  const sum = { answers: 0, tokens: 0, decodeTokens: 0, decodeMs: 0, peak: 0 };
  for (const turn of turns) {
    if (!turn.tps || !turn.usage?.completion_tokens) continue;
    sum.answers += 1;
    sum.tokens += turn.usage.completion_tokens;
    sum.decodeTokens += Math.round((turn.tps.average * turn.timing.decode_ms) / 1000);
    sum.decodeMs += turn.timing.decode_ms;
    sum.peak = Math.max(sum.peak, turn.tps.peak);
  }
  const average = sum.decodeMs > 0 ? (sum.decodeTokens * 1000) / sum.decodeMs : null;
  return {
    answers: sum.answers,
    tokens: sum.tokens,
    average,
    peak: sum.answers > 0 && sum.peak > 0 ? Math.max(sum.peak, average ?? 0) : null,
  };
}

// How a finished answer ended, as a key of the language file.
export function endKey(turn) {
  if (turn.status === "failed") return "end.failed";
  if (turn.stopReason === "slice_ended") return "end.slice";
  if (turn.finishReason === "length") return "end.length";
  if (turn.finishReason === "cancelled" || turn.stopReason === "stopped") return "end.stopped";
  return "end.stop";
}

// Seconds left of what the server told `agoMs` ago; null stays null.
export function secondsLeft(told, agoMs) {
  return told === null || told === undefined ? null : Math.max(0, told - agoMs / 1000);
}
