// The chat inside the frame. It keeps everything in memory: no cookie, no storage, no return.

import { Announcer } from "./announce.js";
import { find, setText } from "./dom.js";
import { newGenerationId } from "./live_turn.js";
import { Presence } from "./presence.js";
import { QueueCard } from "./queue.js";
import { rate, t } from "./i18n.js";
import { figuresOf, newTurn, reduceTurn, refuse } from "./state.js";
import { followTurn, HttpError } from "./stream.js";
import { TurnView } from "./turn_view.js";
import { watchComposition } from "./typing.js";
import { Visitor } from "./visitor.js";

const NEAR_END_PX = 40;
const TICK_MS = 500;

const visitor = new Visitor(document.body.dataset.key);
const log = find("#log");
const form = find("#composer");
const field = find("#question");
const send = find("#send");
const stopButton = find("#stop");
const speed = find("#rate");
const queue = new QueueCard({ leave: stop, here: () => visitor.presence(false) });
const presence = new Presence({ tell: (isHidden) => visitor.presence(isHidden) });
const announcer = new Announcer((text) => setText(find("#announcer"), text));

// the turns so far, oldest first: what the next question is asked with
const turns = [];
// the running one: what QueueCard wants to know of it
let live = null;
let isAtEnd = true;

async function ask(question) {
  const turn = newTurn(newGenerationId(), question);
  const view = new TurnView({ onPaint: keepAtEnd, onRetry: (text) => live === null && ask(text) });
  live = { turn, isOpen: true, isConnected: true };
  find("#empty").hidden = true;
  find("#turns").append(view.element);
  view.show(turn);
  isAtEnd = true;
  change((now) => now);
  const body = { id: turn.generation, messages: messagesWith(question) };
  try {
    await follow(body, view);
  } catch (fault) {
    if (!(fault instanceof HttpError)) throw fault;
    change((now) => refuse(now, { code: fault.code, message: fault.message, retry: fault.status !== 404 }), view);
  }
  turns.push(live.turn);
  live = null;
  around();
  if (matchMedia("(pointer: fine)").matches) field.focus();
}

async function follow(body, view, mayRenew = true) {
  try {
    await visitor.ready();
    const options = {
      ask: body,
      prefix: "/api/embed",
      headers: visitor.headers,
      lastEventId: live.turn.lastId,
      onConnection: (isUp) => {
        live.isConnected = isUp;
        around();
      },
    };
    for await (const message of followTurn(body.id, options)) {
      change((now) => reduceTurn(now, message, performance.now()), view);
    }
  } catch (fault) {
    // a machine that slept comes back with a token that is over; the turn is still its own
    if (!mayRenew || fault.code !== "visitor_expired") throw fault;
    await visitor.renew();
    await follow(body, view, false);
  }
}

// Only answered questions are told again: a failed one has no answer to go on from.
function messagesWith(question) {
  const told = turns.filter((turn) => turn.status === "done" && turn.answer !== "");
  const before = told.flatMap((turn) => [
    { role: "user", content: turn.question },
    { role: "assistant", content: turn.answer },
  ]);
  return [...before, { role: "user", content: question }];
}

function change(step, view = null) {
  live.turn = step(live.turn);
  live.isOpen = live.turn.status === "open";
  view?.update(live.turn);
  announcer.turn(live.turn, performance.now());
  presence.turn(live.turn);
  around();
}

function around() {
  const isBusy = live?.isOpen ?? false;
  stopButton.hidden = !isBusy;
  send.hidden = isBusy;
  send.disabled = field.value.trim() === "";
  queue.show(live, null, performance.now());
  const figures = isBusy ? figuresOf(live.turn) : null;
  speed.hidden = typeof figures?.live !== "number";
  if (!speed.hidden) setText(speed, t("unit.rate", { n: rate(figures.live) }));
  keepAtEnd();
}

async function stop() {
  if (live?.isOpen) await visitor.stop(live.turn.generation);
}

function keepAtEnd() {
  if (isAtEnd) log.scrollTop = log.scrollHeight;
}

function submit() {
  const question = field.value.trim();
  if (question === "" || live !== null) return;
  field.value = "";
  fit();
  ask(question);
}

// As high as its text; CSS sets the limit.
function fit() {
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight}px`;
  send.disabled = field.value.trim() === "";
}

const isComposing = watchComposition(field);
field.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || isComposing(event)) return;
  // on a touch keyboard Enter is the only way to a new line
  if (matchMedia("(pointer: coarse)").matches && !event.ctrlKey && !event.metaKey) return;
  event.preventDefault();
  submit();
});
field.addEventListener("input", fit);
form.addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
stopButton.addEventListener("click", stop);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !isComposing(event)) stop();
});
log.addEventListener("scroll", () => {
  isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < NEAR_END_PX;
}, { passive: true });
// nobody can come back to this conversation, so its place goes to the next
addEventListener("pagehide", (event) => {
  if (!event.persisted && live?.isOpen) visitor.stop(live.turn.generation, { isLeaving: true });
});
// countdowns
setInterval(() => live && queue.show(live, null, performance.now()), TICK_MS);
around();
// disabled until here, so that an early Enter is not lost
field.disabled = false;
