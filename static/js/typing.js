// Input methods (Chinese, Japanese, Korean): Enter that confirms a composition is not Enter.

// Follows compositions in `field`; returns a function that tells whether a key event is part of one.
export function watchComposition(field) {
  let isComposing = false;
  field.addEventListener("compositionstart", () => {
    isComposing = true;
  });
  field.addEventListener("compositionend", () => {
    isComposing = false;
  });
  // Safari sends the confirming keydown after compositionend, marked only by key code 229.
  return (event) => isComposing || event.isComposing || event.keyCode === 229;
}

export function isTypingPlace(node) {
  return node instanceof HTMLElement && (node.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(node.tagName));
}
