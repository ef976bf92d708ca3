// What this browser remembers. Storage may be full or switched off; then nothing is remembered.

const PREFIX = "baton.";

export function recall(name) {
  try {
    return localStorage.getItem(PREFIX + name);
  } catch (fault) {
    if (fault instanceof DOMException) return null;
    throw fault;
  }
}

export function remember(name, value) {
  try {
    if (value === null) localStorage.removeItem(PREFIX + name);
    else localStorage.setItem(PREFIX + name, value);
  } catch (fault) {
    if (!(fault instanceof DOMException)) throw fault;
  }
}

export function forgetAll() {
  try {
    const names = Object.keys(localStorage).filter((name) => name.startsWith(PREFIX));
    for (const name of names) localStorage.removeItem(name);
  } catch (fault) {
    if (!(fault instanceof DOMException)) throw fault;
  }
}
