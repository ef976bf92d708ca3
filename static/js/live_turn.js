// One running turn: its stream read to the end, whatever page or conversation is shown meanwhile.

import { followTurn, HttpError } from "./stream.js";
import { disconnect, reduceTurn, refuse } from "./state.js";

export function newGenerationId() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export class LiveTurn {
  #abort = new AbortController();
  #onChange;
  #onOpen;

  // `onChange(live, message)` after every event; message is null when only the connection changed.
  // `onOpen(response)` when the server took the question.
  constructor(turn, { conversationId, onChange, onOpen = () => {} }) {
    this.turn = turn;
    this.conversationId = conversationId;
    this.isConnected = true;
    this.#onChange = onChange;
    this.#onOpen = onOpen;
  }

  get isOpen() {
    return this.turn.status === "open";
  }

  // Resolves after the last event. `ask` is the body of a new question, null to resume. Throws
  // HttpError where the server refused; the turn has been marked then.
  async run(ask) {
    const options = {
      ask,
      signal: this.#abort.signal,
      onConnection: (isUp) => this.#connection(isUp),
      onOpen: (response) => this.#onOpen(response),
    };
    try {
      for await (const message of followTurn(this.turn.generation, options)) {
        this.turn = reduceTurn(this.turn, message, performance.now());
        this.#onChange(this, message);
      }
    } catch (fault) {
      if (this.#abort.signal.aborted) return;
      if (!(fault instanceof HttpError)) throw fault;
      this.turn = refuse(this.turn, { code: fault.code, message: fault.message, retry: fault.status !== 404 });
      this.#onChange(this, null);
      throw fault;
    }
  }

  // Stop reading. The turn itself goes on in the server.
  detach() {
    this.#abort.abort();
  }

  #connection(isUp) {
    if (isUp === this.isConnected) return;
    this.isConnected = isUp;
    if (!isUp) this.turn = disconnect(this.turn);
    this.#onChange(this, null);
  }
}
