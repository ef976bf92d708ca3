// Runs before the first paint: colours and language as this browser was told.
(() => {
  const read = (name) => {
    try {
      return localStorage.getItem(name);
    } catch {
      return null; // storage is switched off
    }
  };
  const theme = read("baton.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;

  const address = new URL(location.href);
  const language = read("baton.language");
  const isAsked = address.searchParams.has("lang");
  if (!isAsked && /^[a-z]{2}$/.test(language ?? "") && language !== document.documentElement.lang) {
    address.searchParams.set("lang", language);
    location.replace(address); // the fragment goes along
  }
})();
