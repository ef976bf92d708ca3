// The chat page: wires what the server says to the pieces that show it.

import { Announcer } from "./announce.js";
import { call, sentence } from "./api.js";
import { Composer } from "./composer.js";
import { find, setText } from "./dom.js";
import { Gauge } from "./gauge.js";
import { addressOf, History } from "./history.js";
import { t } from "./i18n.js";
import { LineWatch, showLine } from "./line.js";
import { LiveTurn, newGenerationId } from "./live_turn.js";
import { Presence } from "./presence.js";
import { QueueCard } from "./queue.js";
import { opponentOf, Race, RaceSwitch } from "./race.js";
import { Scroll } from "./scroll.js";
import { Settings } from "./settings.js";
import { Sidebar } from "./sidebar.js";
import { askToSignIn } from "./sign_in.js";
import { newTurn, sessionFigures, storedTurn } from "./state.js";
import { HttpError } from "./stream.js";
import { TurnView } from "./turn_view.js";

const SITE = document.title;

class Chat {
  // null: a conversation that has no question yet
  #conversationId = null;
  // what the shown conversation holds, in order: {turn, view, live | null, race | undefined}
  #entries = [];
  // running turns of all conversations, by generation
  #running = new Map();
  #loading = 0;
  // turns whose stream was gone, so that their conversation was loaded anew: once is enough
  #reloaded = new Set();
  #turns = find("#turns");
  #scroll = new Scroll();
  #gauge = new Gauge();
  #settings = new Settings();
  #raceSwitch = new RaceSwitch();
  #sidebar = new Sidebar();
  #announcer = new Announcer((text) => setText(find("#announcer"), text));
  #composer = new Composer({ onAsk: (question) => this.ask(question), onStop: () => this.#stop() });
  #queue = new QueueCard({
    leave: () => this.#line.act(() => this.#act("/api/line/leave")),
    extend: () => this.#line.act(() => this.#act("/api/line/extend")),
    here: () => this.#act("/api/line/presence", { hidden: false }),
    notify: () => Notification.requestPermission(),
  });
  #presence = new Presence();
  #line = new LineWatch(showLine);
  #history = new History({
    onOpen: (id) => this.open(id),
    onDeleted: (id) => id === this.#conversationId && this.open(null),
    onError: (text) => this.#notice(text),
  });

  start() {
    find("#new-chat").addEventListener("click", () => this.open(null));
    for (const button of document.querySelectorAll(".example")) {
      button.addEventListener("click", () => {
        this.#composer.value = button.textContent;
        this.#composer.focus();
      });
    }
    globalThis.addEventListener("popstate", () => this.#load(idInAddress()));
    const frame = (nowMs) => {
      this.#gauge.tick(nowMs);
      this.#queue.show(this.#shownLive(), this.#line.seat, nowMs);
      requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
    this.#history.refresh();
    this.#load(idInAddress());
  }

  // -- conversations ------------------------------------------------------------------------------

  open(id) {
    history.pushState(null, "", addressOf(id));
    this.#sidebar.close();
    return this.#load(id);
  }

  async #load(id) {
    const loading = (this.#loading += 1);
    this.#notice("");
    this.#setConversation(id);
    this.#setEntries([]);
    if (id === null) {
      this.#composer.focus();
      return;
    }
    try {
      const { turns } = await call("GET", `/api/conversations/${encodeURIComponent(id)}`);
      if (loading !== this.#loading) return; // another one was opened meanwhile
      this.#setEntries(turns.map((record) => this.#entry(record, id)));
    } catch (error) {
      if (loading !== this.#loading) return;
      if (error instanceof HttpError && error.status === 401) {
        await this.#signInAgain(() => this.#load(id));
      } else if (error instanceof HttpError && error.status === 404) {
        this.#notice(t("chat.not_found"));
      } else {
        this.#notice(t("chat.load_failed", { message: sentence(error) }));
      }
    }
  }

  // A turn of a loaded conversation: one that we still follow, one to resume, or one that is over.
  #entry(record, conversationId) {
    const followed = this.#running.get(record.generation);
    if (followed) return followed;
    const turn = storedTurn(record);
    const view = this.#newView();
    view.show(turn);
    if (record.status !== "open") return { turn, view, live: null };
    const entry = { turn, view, live: this.#newLive(turn, conversationId) };
    this.#follow(entry, null);
    return entry;
  }

  #setConversation(id) {
    this.#conversationId = id;
    this.#history.current = id;
  }

  #setEntries(entries) {
    this.#entries = entries;
    this.#turns.replaceChildren(...entries.map(elementOf));
    find("#empty").hidden = entries.length > 0 || this.#conversationId !== null;
    const last = entries.at(-1);
    if (last) this.#scroll.toQuestion(elementOf(last));
    this.#showAll();
  }

  // -- asking -------------------------------------------------------------------------------------

  ask(question) {
    this.#notice("");
    const turn = newTurn(newGenerationId(), question);
    const view = this.#newView();
    view.show(turn);
    const entry = { turn, view, live: null };
    entry.live = this.#newLive(turn, this.#conversationId, (response) => this.#taken(entry, response));
    this.#entries.push(entry);
    find("#empty").hidden = true;
    const pool = find("#pool").value || null;
    const ask = {
      id: turn.generation,
      conversation_id: this.#conversationId,
      question,
      pool,
      settings: this.#settings.values,
    };
    entry.race = this.#newRace(ask, view);
    this.#turns.append(elementOf(entry));
    this.#follow(entry, ask);
    entry.race?.run();
    this.#scroll.toQuestion(elementOf(entry));
  }

  // The same question at a second model, where that is wanted and one is free.
  #newRace(ask, view) {
    if (!this.#raceSwitch.isOn) return undefined;
    const other = opponentOf(ask.pool, this.#line.pools ?? []);
    if (other === null) {
      this.#notice(t("race.none"));
      return undefined;
    }
    return new Race(ask, { own: ask.pool, other }, view, this.#newView(), () => this.#showAll());
  }

  // The server has the question: now the conversation has an address.
  #taken(entry, response) {
    const id = response.headers.get("X-Conversation-Id");
    if (id && entry.live.conversationId === null) {
      entry.live.conversationId = id;
      if (this.#entries.includes(entry) && this.#conversationId === null) {
        this.#setConversation(id);
        history.replaceState(null, "", addressOf(id));
      }
    }
    this.#showRunning();
    this.#history.refresh();
  }

  async #follow(entry, ask) {
    const { generation } = entry.turn;
    this.#running.set(generation, entry);
    this.#showAll();
    try {
      await entry.live.run(ask);
    } catch (fault) {
      if (!(fault instanceof HttpError)) throw fault;
      await this.#refused(entry, ask, fault);
    } finally {
      this.#running.delete(generation);
      this.#showAll();
      this.#line.refresh();
      this.#history.refresh();
    }
  }

  async #refused(entry, ask, fault) {
    const isShown = this.#entries.includes(entry);
    if (fault.status === 401 && ask !== null) {
      await this.#signInAgain(() => this.#askAgain(entry));
    } else if (fault.status === 401 && isShown) {
      await this.#signInAgain(() => this.#load(this.#conversationId));
    } else if (fault.status === 404 && ask === null && isShown && !this.#reloaded.has(entry.turn.generation)) {
      // the stream is no longer kept, so the database has the whole answer
      this.#reloaded.add(entry.turn.generation);
      this.#running.delete(entry.turn.generation);
      await this.#load(entry.live.conversationId);
    }
  }

  #askAgain(entry) {
    const at = this.#entries.indexOf(entry);
    if (at < 0) return;
    this.#entries.splice(at, 1);
    elementOf(entry).remove();
    this.ask(entry.turn.question);
  }

  #newLive(turn, conversationId, onOpen) {
    return new LiveTurn(turn, { conversationId, onOpen, onChange: (live, message) => this.#changed(live, message) });
  }

  #newView() {
    return new TurnView({
      onPaint: () => this.#scroll.afterPaint(),
      onRetry: (question) => this.#shownLive() === null && this.ask(question),
    });
  }

  #changed(live, message) {
    const entry = this.#running.get(live.turn.generation);
    if (!entry) return;
    const hasNewPhase = entry.turn.phase !== live.turn.phase;
    entry.turn = live.turn;
    entry.view.update(live.turn);
    entry.race?.showOwn(live.turn);
    this.#announcer.turn(live.turn, performance.now());
    this.#presence.turn(live.turn);
    const isShown = this.#entries.includes(entry);
    if (isShown) this.#gauge.show(live.turn);
    if (hasNewPhase || message?.event === "state") this.#showTitle();
    // the header tells whose the node is
    if (hasNewPhase && live.isOpen) this.#line.refresh();
  }

  // -- acts of the person -------------------------------------------------------------------------

  async #stop() {
    const live = this.#shownLive();
    const races = this.#entries.map(({ race }) => race).filter((race) => race?.isOpen);
    const running = [...(live ? [live.turn] : []), ...races];
    await Promise.all(running.map(({ generation }) => this.#act(`/api/turns/${encodeURIComponent(generation)}/stop`)));
  }

  async #act(path, body = {}) {
    try {
      await call("POST", path, body);
    } catch (error) {
      this.#notice(sentence(error));
    }
  }

  async #signInAgain(then) {
    this.#notice(t("sign_in.again"));
    if (await askToSignIn(find("#sign-in-again"))) {
      this.#notice("");
      await then();
    }
  }

  // -- showing ------------------------------------------------------------------------------------

  // The running turn of the shown conversation, or null.
  #shownLive() {
    return this.#entries.findLast((entry) => entry.live?.isOpen)?.live ?? null;
  }

  #showAll() {
    const shown = this.#shownLive()?.turn ?? this.#entries.at(-1)?.turn ?? null;
    this.#gauge.show(shown);
    this.#gauge.session(sessionFigures(this.#entries.map((entry) => entry.turn)));
    this.#composer.isBusy = this.#shownLive() !== null || this.#entries.some(({ race }) => race?.isOpen);
    this.#showRunning();
    this.#showTitle();
  }

  #showRunning() {
    const ids = [...this.#running.values()].filter((entry) => entry.live.isOpen).map((entry) => entry.live.conversationId);
    this.#history.running = new Set(ids);
  }

  // Who looks at another tab sees the place, and that the turn has come.
  #showTitle() {
    const live = this.#shownLive();
    document.title = titleMark(live?.turn) + SITE;
  }

  #notice(text) {
    const line = find("#notice");
    line.hidden = text === "";
    setText(line, text);
  }
}

// What stands in the conversation for an entry.
function elementOf({ view, race }) {
  return race?.element ?? view.element;
}

function titleMark(turn) {
  if (!turn || turn.phase === null) return "";
  if (turn.phase === "claim") return `${t("notify.title")} · `;
  if (turn.phase !== "waiting") return "▶ ";
  return turn.state.rank === null ? "" : `${t("queue.place_short", { n: turn.state.rank })} · `;
}

function idInAddress() {
  return new URLSearchParams(location.search).get("c");
}

new Chat().start();
