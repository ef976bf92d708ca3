// The visitor of an embedded chat: a short-lived token, held in this object and nowhere else.

import { errorFrom, HttpError } from "./stream.js";
import { t } from "./i18n.js";

// renewed when this share of its life is over
const RENEW_AT = 0.7;

export class Visitor {
  #key;
  #token = null;
  #freshUntilMs = 0;
  #timer = null;

  constructor(key) {
    this.#key = key;
  }

  // Read at each request, so that a renewed token is used by a connection that returns.
  get headers() {
    const authorization = () => `Bearer ${this.#token}`;
    return {
      get Authorization() {
        return authorization();
      },
    };
  }

  // Have a token that is good for a while; throws HttpError.
  async ready() {
    if (this.#token === null || performance.now() > this.#freshUntilMs) await this.renew();
  }

  // Get a token, as the same visitor where there was one.
  async renew() {
    const answer = await this.#post("session", { key: this.#key });
    if (!answer.ok) throw await errorFrom(answer);
    const { token, expires_seconds: seconds } = await answer.json();
    const freshMs = seconds * 1000 * RENEW_AT;
    this.#token = token;
    this.#freshUntilMs = performance.now() + freshMs;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#renewQuietly(), freshMs);
  }

  // End an answer; while the page is going away, nobody waits for it.
  async stop(generation, { isLeaving = false } = {}) {
    await this.#post(`turns/${generation}/stop`, null, isLeaving).catch((fault) => {
      if (!(fault instanceof HttpError)) throw fault;
    });
  }

  // Say whether the page is in front; where that fails, the next state of the turn says it again.
  async presence(isHidden) {
    await this.#post("line/presence", { hidden: isHidden }).catch((fault) => {
      if (!(fault instanceof HttpError)) throw fault;
    });
  }

  async #renewQuietly() {
    try {
      await this.renew();
    } catch (fault) {
      // the next question renews again and shows what is wrong
      if (!(fault instanceof HttpError)) throw fault;
    }
  }

  async #post(path, body, keepalive = false) {
    const headers = this.#token === null ? {} : { ...this.headers };
    if (body !== null) headers["Content-Type"] = "application/json";
    try {
      return await fetch(`/api/embed/${path}`, {
        method: "POST",
        headers,
        body: body === null ? null : JSON.stringify(body),
        credentials: "omit",
        cache: "no-store",
        keepalive,
      });
    } catch (fault) {
      if (!(fault instanceof TypeError)) throw fault;
      throw new HttpError({ status: 0, code: "offline", message: t("error.offline") });
    }
  }
}
