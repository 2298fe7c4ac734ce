// Checks the configuration while it is typed; without this script the button does.
"use strict";

(() => {
  const PAUSE_MS = 400;
  const PATIENCE_MS = 15000;
  const form = document.getElementById("create");
  const text = document.getElementById("text");
  const answer = document.getElementById("answer");
  let timer = null;
  let asking = null;

  async function check() {
    asking?.abort();
    const mine = (asking = new AbortController());
    const alarm = setTimeout(() => mine.abort(), PATIENCE_MS);
    const body = new URLSearchParams({ text: text.value, do: "check" });
    try {
      const found = await fetch(form.action, { method: "POST", body, signal: mine.signal, headers: { Accept: "text/html" } });
      const page = new DOMParser().parseFromString(await found.text(), "text/html");
      const words = page.getElementById("answer");
      if (mine !== asking) return; // typed on meanwhile
      if (words) answer.replaceChildren(...[...words.childNodes].map((node) => document.importNode(node, true)));
      else sayUnchecked();
    } catch {
      if (mine === asking) sayUnchecked();
    }
    clearTimeout(alarm);
  }

  // The coordinator is away, or the session is over: what stands here was of another text.
  function sayUnchecked() {
    const words = document.createElement("p");
    words.className = "quiet";
    words.textContent = "Not checked: the coordinator gives no answer. The button says why.";
    answer.replaceChildren(words);
  }

  text.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(check, PAUSE_MS);
  });
})();
