// One question with its answer, as elements.

import { copyButton } from "./copy.js";
import { element, icon, setText } from "./dom.js";
import { duration, rate, t } from "./i18n.js";
import { renderInto, StreamRenderer } from "./markdown.js";
import { endKey, figuresOf } from "./state.js";

export class TurnView {
  #turn = null;
  #question = element("div", { class: "question", dir: "auto" });
  #reasoning = element("div", { class: "reasoning-text" });
  #reasoningTitle = element("summary");
  #reasoningFold = element("details", { class: "reasoning", hidden: true }, this.#reasoningTitle, this.#reasoning);
  #note = element("p", { class: "note", hidden: true });
  #answer = element("div", { class: "answer markdown", dir: "auto" });
  #error = element("p", { class: "error", hidden: true });
  #foot = element("footer", { class: "turn-foot", hidden: true });
  #streams = null;
  #onPaint;
  #onRetry;

  // `onPaint()` after streamed text was painted, `onRetry(question)` when asked to try again.
  constructor({ onPaint, onRetry }) {
    this.#onPaint = onPaint;
    this.#onRetry = onRetry;
    this.element = element(
      "article", { class: "turn" },
      element("h2", { class: "offscreen" }, t("chat.you")), this.#question,
      element("h2", { class: "offscreen" }, t("chat.answer")),
      this.#reasoningFold, this.#answer, this.#note, this.#error, this.#foot,
    );
  }

  // Show a turn that is over, or the state of one that is about to stream.
  show(turn) {
    this.#turn = turn;
    this.#question.textContent = turn.question;
    this.element.dataset.generation = turn.generation;
    if (turn.status === "open") {
      this.#streams = {
        answer: new StreamRenderer(this.#answer, this.#onPaint),
        reasoning: new StreamRenderer(this.#reasoning, this.#onPaint),
      };
      this.#streams.answer.push(turn.answer);
      this.#streams.reasoning.push(turn.reasoning);
    } else {
      renderInto(this.#answer, turn.answer);
      renderInto(this.#reasoning, turn.reasoning);
    }
    this.#around();
  }

  // The turn after one more event.
  update(turn) {
    const before = this.#turn;
    this.#turn = turn;
    this.#streams.answer.push(turn.answer.slice(before.answer.length));
    this.#streams.reasoning.push(turn.reasoning.slice(before.reasoning.length));
    if (turn.status !== "open" && before.status === "open") {
      this.#streams.answer.finish();
      this.#streams.reasoning.finish();
    }
    const isSame = before.status === turn.status && before.phase === turn.phase && before.state === turn.state;
    if (!isSame || Boolean(before.reasoning) !== Boolean(turn.reasoning) || Boolean(before.answer) !== Boolean(turn.answer)) {
      this.#around();
    }
    // the footer has come below the text
    if (turn.status !== "open") this.#onPaint();
  }

  #around() {
    const turn = this.#turn;
    this.element.classList.toggle("is-open", turn.status === "open");
    this.element.classList.toggle("is-answering", turn.status === "open" && turn.phase === "answering");
    this.#aroundReasoning(turn);
    const moved = turn.state?.moved ?? turn.moved;
    this.#note.hidden = !moved;
    if (moved) setText(this.#note, t(moved.exact ? "chat.moved_exact" : "chat.moved", { from: moved.from }));
    this.#error.hidden = turn.status !== "failed";
    setText(this.#error, turn.error?.message ?? "");
    this.#foot.hidden = turn.status === "open";
    if (turn.status !== "open") this.#foot.replaceChildren(...this.#footer(turn));
  }

  #aroundReasoning(turn) {
    this.#reasoningFold.hidden = turn.reasoning === "";
    const count = turn.usage?.reasoning_tokens || turn.reasoningTokens;
    const isThinking = turn.status === "open" && turn.answer === "";
    const title = isThinking
      ? t("chat.thinking")
      : count
        ? t("chat.thought", { n: count })
        : t("chat.thought_plain");
    setText(this.#reasoningTitle, title);
  }

  #footer(turn) {
    const buttons = [];
    if (turn.answer) buttons.push(copyButton(() => this.#turn.answer, t("copy.answer")));
    const label = t("chat.retry");
    const retry = element("button", { type: "button", class: "quiet retry", title: label, "aria-label": label }, icon("retry"));
    // where it helps after a failure, it says so
    if (turn.error?.retry) retry.append(label);
    retry.addEventListener("click", () => this.#onRetry(turn.question));
    buttons.push(retry);
    const parts = figureParts(turn).map((part) => element("span", {}, part));
    return [element("div", { class: "foot-buttons" }, ...buttons), element("p", { class: "figures" }, ...parts)];
  }
}

// The figures under an answer; only what was measured.
export function figureParts(turn) {
  const figures = figuresOf(turn);
  const parts = [t(endKey(turn))];
  if (figures.tokens !== null) parts.push(t("figures.tokens", { n: figures.tokens }));
  if (figures.totalMs) parts.push(duration(figures.totalMs));
  if (figures.average !== null) parts.push(t("figures.average", { n: rate(figures.average) }));
  if (figures.peak !== null) parts.push(t("figures.peak", { n: rate(figures.peak) }));
  if (figures.ttftMs !== null) parts.push(t("figures.ttft", { n: duration(figures.ttftMs) }));
  return parts;
}
