// The speedometer: figures in tabular digits and the last 60 seconds on a canvas of its own.

import { find, setText } from "./dom.js";
import { duration, number, rate, t } from "./i18n.js";
import { figuresOf } from "./state.js";

const SPAN_MS = 60_000;
const EVERY_MS = 100;
const NONE = "–";

const SHOWN = {
  peak: (figures) => rate(figures.peak),
  average: (figures) => rate(figures.average),
  e2e: (figures) => t("unit.rate", { n: rate(figures.e2e) }),
  ttftMs: (figures) => duration(figures.ttftMs),
  queueMs: (figures) => duration(figures.queueMs),
  prefillMs: (figures) => duration(figures.prefillMs),
  decodeMs: (figures) => duration(figures.decodeMs),
  promptTokens: ({ promptTokens, cachedTokens }) =>
    cachedTokens
      ? t("gauge.tokens_in_cached", { n: promptTokens, cached: cachedTokens })
      : number(promptTokens),
  tokens: ({ tokens, reasoningTokens }) =>
    reasoningTokens
      ? t("gauge.tokens_out_reasoning", { n: tokens, reasoning: reasoningTokens })
      : number(tokens),
};

export class Gauge {
  #root = find("#gauge");
  #live = find("[data-figure=live]", this.#root);
  #figures = new Map(Object.keys(SHOWN).map((name) => [name, find(`[data-figure=${name}]`, this.#root)]));
  #split = find("#split");
  #spark = new Spark(find("#spark"));
  #turn = null;
  #shownAt = 0;

  // On narrow screens the further figures are a sheet under the line.
  constructor() {
    const more = find("#gauge-more");
    const set = (isOpen) => {
      more.ariaExpanded = String(isOpen);
      this.#root.toggleAttribute("data-open", isOpen);
    };
    more.addEventListener("click", () => set(more.ariaExpanded !== "true"));
    document.addEventListener("pointerdown", (event) => this.#root.contains(event.target) || set(false));
    this.#root.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || more.ariaExpanded !== "true") return;
      event.preventDefault(); // so that Escape does not stop the answer too
      set(false);
      more.focus();
    });
  }

  // The turn whose figures are shown, or null. Cheap: painted at 10 Hz at most, except for changes
  // of the turn itself.
  show(turn) {
    const isOther = turn?.generation !== this.#turn?.generation;
    const isOver = turn?.status !== this.#turn?.status;
    const isNewRate = turn && turn.rates !== (isOther ? 0 : this.#turn.rates);
    if (isNewRate && turn.live !== null) this.#spark.add(turn.live, performance.now());
    this.#turn = turn;
    if (isOther || isOver) this.#paint();
  }

  session(figures) {
    find("#session").hidden = figures.answers === 0;
    const set = (name, text) => setText(find(`[data-session=${name}]`, this.#root), text);
    set("answers", number(figures.answers));
    set("tokens", number(figures.tokens));
    set("average", figures.average === null ? NONE : t("unit.rate", { n: rate(figures.average) }));
    set("peak", figures.peak === null ? NONE : t("unit.rate", { n: rate(figures.peak) }));
  }

  // Called every animation frame.
  tick(nowMs) {
    if (nowMs - this.#shownAt < EVERY_MS) return;
    this.#shownAt = nowMs;
    this.#paint();
    this.#spark.draw(nowMs);
  }

  #paint() {
    const figures = this.#turn ? figuresOf(this.#turn) : {};
    const isRunning = this.#turn?.phase === "answering";
    this.#root.toggleAttribute("data-idle", !isRunning);
    // at rest the speed is a true 0; while it is not measurable yet there is none
    setText(this.#live, isRunning ? (figures.live === null ? NONE : rate(figures.live)) : "0");
    for (const [name, node] of this.#figures) {
      const value = figures[name] ?? null;
      setText(node, value === null ? NONE : SHOWN[name](figures));
    }
    this.#paintSplit(figures);
  }

  #paintSplit(figures) {
    const parts = ["queue", "prefill", "decode"].map((name) => [name, figures[`${name}Ms`] ?? null]);
    const isMeasured = parts.every(([, ms]) => ms !== null);
    this.#split.hidden = !isMeasured;
    if (!isMeasured) return;
    for (const [name, ms] of parts) find(`[data-part=${name}]`, this.#split).style.flexGrow = String(ms);
  }
}

class Spark {
  #canvas;
  #points = [];
  #wasEmpty = false;

  constructor(canvas) {
    this.#canvas = canvas;
  }

  add(live, nowMs) {
    this.#points.push({ live, nowMs });
  }

  draw(nowMs) {
    while (this.#points.length && this.#points[0].nowMs < nowMs - SPAN_MS) this.#points.shift();
    if (this.#points.length === 0 && this.#wasEmpty && !this.#isResized()) return;
    this.#wasEmpty = this.#points.length === 0;
    const { width, height, pen } = this.#prepare();
    const style = getComputedStyle(this.#canvas);
    const line = style.getPropertyValue("--accent");
    pen.clearRect(0, 0, width, height);
    pen.fillStyle = style.getPropertyValue("--line");
    pen.fillRect(0, height - 1, width, 1);
    if (this.#wasEmpty) return;
    const peak = this.#points.reduce((best, point) => (point.live > best.live ? point : best));
    const top = Math.max(peak.live, 1) * 1.12;
    const x = (point) => width * (1 - (nowMs - point.nowMs) / SPAN_MS);
    const y = (point) => height - 1 - (height - 8) * (point.live / top);
    this.#curve(pen, line, height, x, y);
    this.#mark(pen, style.getPropertyValue("--peak"), x(peak), y(peak), width);
  }

  // A pause is a gap in the line, not a slope.
  #curve(pen, colour, height, x, y) {
    pen.strokeStyle = pen.fillStyle = colour;
    pen.lineWidth = 1.6;
    pen.lineJoin = "round";
    let run = [];
    const flush = () => {
      if (run.length > 1) {
        pen.beginPath();
        for (const point of run) pen.lineTo(x(point), y(point));
        pen.stroke();
        pen.lineTo(x(run.at(-1)), height - 1);
        pen.lineTo(x(run[0]), height - 1);
        pen.globalAlpha = 0.14;
        pen.fill();
        pen.globalAlpha = 1;
      }
      run = [];
    };
    for (const point of this.#points) {
      if (run.length && point.nowMs - run.at(-1).nowMs > 1_000) flush();
      run.push(point);
    }
    flush();
  }

  #mark(pen, colour, x, y, width) {
    pen.fillStyle = colour;
    pen.beginPath();
    pen.arc(Math.min(Math.max(x, 3), width - 3), y, 3, 0, 2 * Math.PI);
    pen.fill();
  }

  #isResized() {
    const ratio = globalThis.devicePixelRatio || 1;
    return this.#canvas.width !== Math.round(this.#canvas.clientWidth * ratio);
  }

  #prepare() {
    const ratio = globalThis.devicePixelRatio || 1;
    const { clientWidth: width, clientHeight: height } = this.#canvas;
    if (this.#isResized()) {
      this.#canvas.width = Math.round(width * ratio);
      this.#canvas.height = Math.round(height * ratio);
    }
    const pen = this.#canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    return { width, height, pen };
  }
}
