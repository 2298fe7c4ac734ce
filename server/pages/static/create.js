// Checks the configuration while it is typed; without this script the button does.
"use strict";

(() => {
  const PAUSE_MS = 400;
  const form = document.getElementById("create");
  const text = document.getElementById("text");
  const answer = document.getElementById("answer");
  let timer = null;
  let asking = null;

  async function check() {
    asking?.abort();
    asking = new AbortController();
    const body = new URLSearchParams({ text: text.value, do: "check" });
    try {
      const found = await fetch(form.action, { method: "POST", body, signal: asking.signal, headers: { Accept: "text/html" } });
      const page = new DOMParser().parseFromString(await found.text(), "text/html");
      const words = page.getElementById("answer");
      if (words) answer.replaceChildren(...[...words.childNodes].map((node) => document.importNode(node, true)));
    } catch {
      // Asked again, or the coordinator is away: the button says what is wrong.
    }
  }

  text.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(check, PAUSE_MS);
  });
})();
