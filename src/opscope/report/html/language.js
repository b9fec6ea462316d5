// The other language: each element with text of its own is one message, the elements in it are its places.
(() => {
  const root = document.documentElement;
  const button = document.getElementById("language");
  const words = JSON.parse(document.getElementById("words").textContent);
  const first = 0xe000;
  const english = new WeakMap(); // of an element: its message, and the elements in it
  const attributes = ["aria-label", "placeholder"];
  const message = (element) => {
    let at = 0;
    return [...element.childNodes].map((node) => (node.nodeType === 1 ? String.fromCharCode(first + at++) : node.data ?? "")).join("");
  };
  const said = (element) => {
    if (!english.has(element)) {
      const values = attributes.map((name) => element.getAttribute(name));
      english.set(element, { message: message(element), children: [...element.children], values });
    }
    return english.get(element);
  };
  const write = (element, text, children) => {
    const parts = text.split(/([\ue000-\uf8ff])/).filter((part) => part);
    element.replaceChildren(...parts.map((part) => {
      const child = children[part.charCodeAt(0) - first];
      return part.length === 1 && child ? child : part;
    }));
  };
  // What scripts write later is English: legends of pictures, sorted rows, another theme's button.
  const later = new MutationObserver((changes) => {
    if (root.lang !== "en" && changes.some(({ target }) => !target.closest?.(".chart"))) show(true);
  });
  const show = (other) => {
    later.disconnect();
    for (const element of [...document.body.querySelectorAll(":not(code, code *, pre, pre *, script, style, .chart *)")].reverse()) {
      const known = english.get(element);
      const now = message(element);
      // What a script wrote since is English again.
      if (known && known.message !== now && known.shown !== now) english.delete(element);
      const own = said(element);
      own.shown = other && Object.hasOwn(words, own.message) ? words[own.message] : own.message;
      if (own.shown !== now) write(element, own.shown, own.children);
      own.shown = message(element);
      attributes.forEach((name, index) => {
        const value = own.values[index];
        if (value && Object.hasOwn(words, value)) element.setAttribute(name, other ? words[value] : value);
      });
    }
    const changed = root.lang !== (other ? button.lang : "en");
    root.lang = other ? button.lang : "en";
    button.textContent = other ? "English" : button.dataset.name;
    if (changed) root.dispatchEvent(new Event("spoken")); // pictures ask for the titles of their axes
    later.observe(document.body, { childList: true, subtree: true });
  };
  root.said = (text) => (root.lang !== "en" && Object.hasOwn(words, text) ? words[text] : text);
  button.addEventListener("click", () => show(root.lang === "en"));
  if (root.dataset.language === button.lang) show(true);
})();
