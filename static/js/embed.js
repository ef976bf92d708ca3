// The one line that other sites put into their pages:
//   <script src="https://baton.example/embed.js" data-key="pk-baton-..."></script>
// data-lang: en, zh (else the page's); data-mode: inline (default), bubble; data-height: of the
// inline chat, in pixels. It sets no cookie, stores nothing, and leaves no global name behind.
(() => {
  const script = document.currentScript;
  const base = new URL(script.src).origin;
  const { key = "", mode = "inline", height } = script.dataset;
  const language = script.dataset.lang || document.documentElement.lang || navigator.language || "en";
  const isChinese = /^zh\b/i.test(language);
  const TEXTS = isChinese
    ? { chat: "聊天", open: "打开聊天", close: "关闭聊天", unreachable: `无法连接 ${base}。` }
    : { chat: "Chat", open: "Open the chat", close: "Close the chat", unreachable: `${base} cannot be reached.` };
  const DEFAULT_HEIGHT_PX = 520;
  const FONT = "system-ui, sans-serif";

  // Styles go through CSSOM: a page's policy may forbid style attributes.
  function made(tag, style, attributes = {}) {
    const node = document.createElement(tag);
    Object.assign(node.style, style);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    return node;
  }

  // What is wrong, or null. The answer is readable from every origin, so that it can be shown.
  async function fault() {
    try {
      const url = `${base}/api/embed/check?key=${encodeURIComponent(key)}`;
      const answer = await fetch(url, { credentials: "omit", cache: "no-store", referrerPolicy: "origin" });
      if (answer.ok) return null;
      return (await answer.json()).error.message;
    } catch (error) {
      // TypeError: nothing was reached; SyntaxError: something else answered
      if (error instanceof TypeError || error instanceof SyntaxError) return TEXTS.unreachable;
      throw error;
    }
  }

  // Visible on purpose: a blank corner would tell nobody what to change.
  function complaint(sentence) {
    const node = made("p", {
      margin: "8px 0", padding: "12px 16px", border: "1px solid #b3261e", borderRadius: "10px",
      background: "#fbe9e7", color: "#7a120c", font: `14px/1.5 ${FONT}`, overflowWrap: "anywhere",
    }, { role: "alert", "data-baton": "fault" });
    node.textContent = `Baton: ${sentence}`;
    return node;
  }

  function frame(style) {
    const url = `${base}/embed?key=${encodeURIComponent(key)}&lang=${encodeURIComponent(language)}`;
    return made("iframe", { border: "0", colorScheme: "normal", ...style }, {
      src: url, title: TEXTS.chat, allow: "clipboard-write", referrerpolicy: "origin", "data-baton": "chat",
    });
  }

  function inline() {
    const pixels = Number.parseInt(height, 10) || DEFAULT_HEIGHT_PX;
    return frame({ display: "block", width: "100%", height: `${pixels}px`, borderRadius: "14px" });
  }

  function bubble() {
    const corner = { position: "fixed", right: "16px", zIndex: "2147483000" };
    const button = made("button", {
      ...corner, bottom: "16px", height: "52px", padding: "0 20px", border: "0", borderRadius: "26px",
      background: "#0e7a5f", color: "#fff", font: `600 16px ${FONT}`, cursor: "pointer",
      boxShadow: "0 4px 16px rgb(0 0 0 / 25%)",
    }, { type: "button", "aria-expanded": "false", "aria-label": TEXTS.open, "data-baton": "bubble" });
    button.textContent = TEXTS.chat;
    let panel = null;
    const show = (isOpen) => {
      // made at the first opening; kept after closing, with its conversation
      if (isOpen && !panel) {
        panel = frame({
          ...corner, bottom: "80px", width: "min(400px, calc(100vw - 32px))",
          height: "min(600px, calc(100vh - 96px))", borderRadius: "16px",
          boxShadow: "0 8px 32px rgb(0 0 0 / 25%)",
        });
        document.body.append(panel);
      }
      if (panel) panel.style.display = isOpen ? "block" : "none";
      button.setAttribute("aria-expanded", String(isOpen));
      button.setAttribute("aria-label", isOpen ? TEXTS.close : TEXTS.open);
      button.textContent = isOpen ? "✕" : TEXTS.chat;
    };
    const isShown = () => button.getAttribute("aria-expanded") === "true";
    button.addEventListener("click", () => show(!isShown()));
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && isShown()) show(false);
    });
    return button;
  }

  // In bubble mode or from the head, the script's own place is no place to show anything.
  function place(node) {
    const isInPage = document.body?.contains(script);
    if (isInPage && mode !== "bubble") script.after(node);
    else document.body.append(node);
  }

  async function start() {
    const sentence = await fault();
    if (sentence) place(complaint(sentence));
    else place(mode === "bubble" ? bubble() : inline());
  }

  if (document.body) start();
  else document.addEventListener("DOMContentLoaded", start);
})();
