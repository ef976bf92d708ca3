import assert from "node:assert/strict";
import { test } from "node:test";

globalThis.document = { getElementById: () => null, documentElement: { lang: "en" } };
const { Presence } = await import("../../static/js/presence.js");
const { newTurn, reduceTurn } = await import("../../static/js/state.js");

function page() {
  const target = new EventTarget();
  target.hidden = false;
  target.turn = (isHidden) => {
    target.hidden = isHidden;
    target.dispatchEvent(new Event("visibilitychange"));
  };
  return target;
}

function setUp() {
  const said = [];
  const notes = [];
  const shown = page();
  const presence = new Presence({ tell: (isHidden) => said.push(isHidden), page: shown, notify: (title, text) => notes.push(text) });
  let turn = newTurn("g", "q");
  let version = 0;
  const comes = (phase) => {
    version += 1;
    turn = reduceTurn(turn, { event: "state", id: null, data: { version, phase } });
    presence.turn(turn);
  };
  return { said, notes, shown, comes };
}

test("a page that goes to the background and comes back says so while its question waits", () => {
  const { said, shown, comes } = setUp();
  shown.turn(true);
  shown.turn(false);
  assert.deepEqual(said, []);
  comes("waiting");
  said.length = 0;
  shown.turn(true);
  shown.turn(false);
  assert.deepEqual(said, [true, false]);
  comes("allocating");
  shown.turn(true);
  assert.deepEqual(said, [true, false]);
});

test("a page in front that finds its question waiting says so once: what it was before a reload said that it went", () => {
  const { said, comes } = setUp();
  comes("waiting");
  comes("waiting");
  assert.deepEqual(said, [false]);
});

test("a page that finds its turn called takes it with one word", () => {
  const { said, comes } = setUp();
  comes("claim");
  assert.deepEqual(said, [false]);
});

test("a question that begins to wait in the background says so once", () => {
  const { said, shown, comes } = setUp();
  shown.turn(true);
  comes("waiting");
  comes("waiting");
  assert.deepEqual(said, [true]);
});

test("a called turn is taken by a page in front, and rung for once behind", () => {
  const { said, notes, shown, comes } = setUp();
  comes("waiting");
  said.length = 0;
  comes("claim");
  assert.deepEqual([said, notes], [[false], []]);
  shown.turn(true);
  comes("claim");
  comes("claim");
  assert.deepEqual([said, notes], [[false, true], ["queue.claim_text"]]);
  shown.turn(false);
  assert.deepEqual(said, [false, true, false]);
});

test("an answer that begins behind another page is told of", () => {
  const { notes, shown, comes } = setUp();
  comes("waiting");
  shown.turn(true);
  comes("allocating");
  comes("reading");
  assert.deepEqual(notes, ["notify.begun"]);
});
