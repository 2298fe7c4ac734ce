// Keeps a page true: on each event of the coordinator the page is fetched again and the differences are
// put into the one that is shown, so that focus, scroll position, selection and open details stay.
"use strict";

(() => {
  const SILENCE_MS = 45000; // the coordinator says something every 15 s
  const SLOW_MS = 5000; // a page that is longer on its way is not up to date
  const PATIENCE_MS = 30000; // and is asked for again after this time
  const RETRY_MS = [1000, 2000, 4000, 8000, 15000];
  const GONE = { 403: "You may no longer see this page", 404: "This page is no longer there", 410: "This page is no longer there" };
  const main = document.getElementById("main");
  const connection = document.getElementById("connection");
  let stream = null;
  let failures = 0;
  let following = false; // the stream is there
  let refusals = 0; // refetches in a row without a page
  let lastFetch = 0; // when the page was asked for, by performance.now()
  let etag = null;
  let timer = null;
  let busy = false;
  let slow = false; // the answer is long in coming
  let again = false;
  let missed = false;
  let wake = null; // goes on with the stream of a page that is seen again
  let skew = Date.parse(main.dataset.now) - Date.now();

  function say(state, words) {
    if (connection.dataset.state === state) return;
    connection.dataset.state = state;
    connection.querySelector("span").textContent = words;
  }

  // Only a page that was fetched since the last event is true.
  function sayLive() {
    if (following && !refusals && !slow && main.dataset.events) say("live", "Live");
  }

  const backoff = (times) => RETRY_MS[Math.min(times, RETRY_MS.length - 1)] * (0.75 + Math.random() / 2);

  // ------------------------------------------------------------- differences

  // A section is known by its heading: one that comes or goes must not be taken for its neighbour.
  const keyOf = (node) => {
    if (node.nodeType !== Node.ELEMENT_NODE) return "";
    return node.id || node.dataset.key || (node.nodeName === "SECTION" && node.getAttribute("aria-labelledby")) || "";
  };

  const alike = (a, b) => a.nodeName === b.nodeName && keyOf(a) === keyOf(b);

  function morph(shown, wanted) {
    if (shown.nodeType !== Node.ELEMENT_NODE) {
      if (shown.nodeValue !== wanted.nodeValue) shown.nodeValue = wanted.nodeValue;
      return;
    }
    const isKept = (name) => name === "open" && shown.nodeName === "DETAILS";
    for (const { name, value } of wanted.attributes) {
      if (!isKept(name) && shown.getAttribute(name) !== value) shown.setAttribute(name, value);
    }
    for (const { name } of [...shown.attributes]) {
      if (!isKept(name) && !wanted.hasAttribute(name)) shown.removeAttribute(name);
    }
    morphChildren(shown, wanted);
  }

  function morphChildren(shown, wanted) {
    const keyed = new Map([...shown.childNodes].filter(keyOf).map((node) => [keyOf(node), node]));
    let at = shown.firstChild;
    for (const child of wanted.childNodes) {
      const candidate = keyOf(child) ? keyed.get(keyOf(child)) : at;
      if (!candidate || !alike(candidate, child)) {
        shown.insertBefore(document.importNode(child, true), at);
        continue;
      }
      if (candidate === at) at = at.nextSibling;
      else shown.insertBefore(candidate, at);
      morph(candidate, child);
    }
    while (at) {
      const next = at.nextSibling;
      at.remove();
      at = next;
    }
  }

  // ------------------------------------------------------------- fetching

  function refresh() {
    if (!main.dataset.events) return;
    if (document.hidden) {
      missed = true;
      return;
    }
    if (busy) {
      again = true;
      return;
    }
    if (timer === null) timer = setTimeout(update, Math.max(0, lastFetch + pause() - performance.now()));
  }

  // The coordinator says how often: the more pages are open, the less often each asks for itself.
  const pause = () => 1000 * Number(main.dataset.pace);

  async function update() {
    timer = null;
    busy = true;
    lastFetch = performance.now();
    let patience = null; // milliseconds until the next try; null: there is a page
    const limit = new AbortController();
    const alarms = [
      setTimeout(() => {
        slow = true;
        say("waiting", "This page is not up to date, waiting for the coordinator…");
      }, SLOW_MS),
      setTimeout(() => limit.abort(), PATIENCE_MS),
    ];
    try {
      const headers = { Accept: "text/html", "Feddisco-Refetch": "1" };
      if (etag) headers["If-None-Match"] = etag;
      const answer = await fetch(location.href, { headers, cache: "no-store", signal: limit.signal });
      if (answer.status === 401) signIn();
      else if (answer.status in GONE) end(GONE[answer.status]);
      else if (answer.ok) {
        show(new DOMParser().parseFromString(await answer.text(), "text/html"));
        etag = answer.headers.get("ETag");
      } else if (answer.status !== 304) patience = 1000 * Number(answer.headers.get("Retry-After")) || 0;
    } catch {
      patience = 0;
    }
    alarms.forEach(clearTimeout);
    slow = busy = false;
    if (patience !== null && main.dataset.events) {
      say("waiting", "This page is not up to date, trying again…");
      again = false;
      timer = setTimeout(update, Math.max(patience, backoff(refusals)));
      refusals += 1;
      return;
    }
    refusals = 0;
    sayLive();
    if (again) {
      again = false;
      refresh();
    }
  }

  // Nothing more will come, and what is shown stays.
  function end(words) {
    delete main.dataset.events;
    stream?.abort();
    say("final", words);
  }

  // The session is over: the coordinator asks for the token in place of this page.
  function signIn() {
    delete main.dataset.events;
    location.reload();
  }

  // A page may hang on a wall for weeks: when the coordinator has a new style or script, it is loaded anew.
  const isOutdated = (page) =>
    ["link[rel=stylesheet]", "script[src]"].some((file) => {
      const [shown, wanted] = [document.head.querySelector(file), page.head.querySelector(file)];
      return wanted && !wanted.isEqualNode(shown);
    });

  // What is in the middle of the window is what is read: it stays there when something grows above it.
  function holdInView() {
    const middle = document.elementFromPoint(window.innerWidth / 2, window.innerHeight / 2);
    const held = window.scrollY > 0 && middle?.closest("#main > *");
    const before = held && held.getBoundingClientRect().top;
    return () => {
      if (held && held.isConnected) window.scrollBy(0, held.getBoundingClientRect().top - before);
    };
  }

  function show(page) {
    if (isOutdated(page)) {
      delete main.dataset.events; // this page follows no more
      stream?.abort();
      location.reload();
      return;
    }
    const stay = holdInView();
    const ticked = [...main.querySelectorAll("input[type=checkbox]:checked")].map((box) => `${box.name} ${box.value}`);
    morph(main, page.getElementById("main"));
    for (const box of main.querySelectorAll("input[type=checkbox]")) {
      if (ticked.includes(`${box.name} ${box.value}`)) box.checked = true; // its row may have moved
    }
    stay();
    document.title = page.title;
    skew = Date.parse(main.dataset.now) - Date.now();
    tick();
    if (!main.dataset.events) end("Ended; nothing more will change");
  }

  // ------------------------------------------------------------- the stream

  // The stream is read with fetch, not EventSource: the page wants to know *that* something happened, whatever
  // the event's name, and a connection that has died without a word must be noticed.
  async function follow(signal) {
    const headers = { Accept: "text/event-stream" };
    const answer = await within(SILENCE_MS, fetch(main.dataset.events, { headers, signal }));
    if (answer.status === 401) signIn();
    if (answer.status in GONE) refresh(); // which finds out whether the page is
    if (!answer.ok) throw new Error(`${answer.status}`);
    following = true;
    sayLive();
    if (failures) refresh();
    failures = 0;
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await within(SILENCE_MS, reader.read());
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      if (lines.some((line) => line.startsWith("data:"))) refresh();
    }
  }

  const within = (milliseconds, promise) => {
    let alarm;
    const silence = new Promise((_, refuse) => {
      alarm = setTimeout(() => refuse(new Error("silence")), milliseconds);
    });
    return Promise.race([promise, silence]).finally(() => clearTimeout(alarm));
  };

  async function listen() {
    while (main.dataset.events) {
      // Browsers hold six connections to a coordinator, for all their tabs: those that nobody sees do without.
      if (document.hidden) await new Promise((go) => (wake = go));
      stream = new AbortController();
      try {
        await follow(stream.signal);
      } catch {
        // Refused, cut or silent: all are answered by trying again.
      }
      stream.abort();
      following = false;
      if (!main.dataset.events) return;
      if (document.hidden) continue;
      say("waiting", "Connection lost, reconnecting…");
      const wait = backoff(failures);
      failures += 1;
      await new Promise((go) => setTimeout(go, wait));
    }
  }

  // ------------------------------------------------------------- clocks

  function written(seconds) {
    const two = (value) => String(value).padStart(2, "0");
    const [s, m, h] = [seconds, Math.floor(seconds / 60), Math.floor(seconds / 3600)];
    if (s < 60) return `${s}\u202fs`;
    if (m < 60) return `${m}\u202fmin ${two(s % 60)}\u202fs`;
    if (h < 24) return `${h}\u202fh ${two(m % 60)}\u202fmin`;
    return `${Math.floor(h / 24)}\u202fd ${h % 24}\u202fh`;
  }

  function tick() {
    const now = Date.now() + skew;
    for (const time of document.querySelectorAll("time[data-clock]")) {
      const seconds = Math.round((Date.parse(time.dateTime) - now) / 1000);
      const text = seconds > 0 ? `in ${written(seconds)}` : `${written(-seconds)} ago`;
      if (time.textContent !== text) time.textContent = text;
    }
  }

  document.addEventListener("visibilitychange", () => {
    if (!main.dataset.events) return;
    if (document.hidden) {
      missed = true; // whatever happens until it is seen again
      stream?.abort();
      say("waiting", "Catching up…");
      return;
    }
    wake?.();
    wake = null;
    if (missed) {
      missed = false;
      refresh();
    }
  });
  window.addEventListener("pageshow", (event) => {
    if (event.persisted) location.reload();
  });
  setInterval(tick, 1000);
  listen();
})();
