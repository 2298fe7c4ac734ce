// Reads a chart out: the values of a round under the pointer, or by the arrow keys where the chart has the focus,
// with the change since the round before; and saves a chart as PNG. Without it charts are drawn all the same.
"use strict";

(() => {
  const active = new Map(); // by chart: which of its rounds is read out

  const curvesOf = (plot) =>
    [...plot.querySelectorAll("g[data-readings]")].map((group) => ({
      name: group.dataset.name,
      points: JSON.parse(group.dataset.readings),
    }));

  function roundsOf(curves) {
    const places = new Map();
    for (const { points } of curves) for (const [round, x] of points) places.set(round, x);
    return [...places].sort(([one], [other]) => one - other);
  }

  const signed = (value) => (value < 0 ? "\u2212" : "+") + Number(Math.abs(value).toPrecision(3));

  function describe({ name, points }, round) {
    const at = points.findIndex(([number]) => number === round);
    if (at < 0) return "";
    const [, , , words, value] = points[at];
    const before = points[at - 1];
    const inCents = words.endsWith("%");
    const change = before ? (value - before[4]) * (inCents ? 100 : 1) : 0;
    return `${name} ${words}` + (before ? ` (${signed(change)} since ${before[0]})` : "");
  }

  function read(figure, round) {
    const plot = figure.querySelector(".plot");
    const curves = curvesOf(plot);
    const place = roundsOf(curves).find(([number]) => number === round);
    if (!place) return clear(figure);
    active.set(figure.dataset.key, round);
    const cursor = plot.querySelector(".cursor");
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, `${place[1]}%`);
    cursor.setAttribute("visibility", "visible");
    const said = curves.map((curve) => describe(curve, round)).filter(Boolean);
    const text = `Round ${round}: ${said.join("; ")}`;
    const reading = figure.querySelector(".reading");
    if (reading.textContent !== text) reading.textContent = text;
  }

  function clear(figure) {
    active.delete(figure.dataset.key);
    figure.querySelector(".cursor").setAttribute("visibility", "hidden");
    figure.querySelector(".reading").textContent = "";
  }

  const figureOf = (node) => node instanceof Element && node.closest(".plot") && node.closest("figure.chart[data-key]");

  document.addEventListener("pointermove", (event) => {
    const figure = figureOf(event.target);
    if (!figure) return;
    const box = figure.querySelector(".plot").getBoundingClientRect();
    const at = (100 * (event.clientX - box.left)) / box.width;
    const nearest = roundsOf(curvesOf(figure.querySelector(".plot"))).reduce((best, place) =>
      Math.abs(place[1] - at) < Math.abs(best[1] - at) ? place : best,
    );
    read(figure, nearest[0]);
  });
  document.addEventListener("pointerout", (event) => {
    const figure = figureOf(event.target);
    if (figure && figureOf(event.relatedTarget) !== figure && !figure.contains(document.activeElement)) clear(figure);
  });
  document.addEventListener("focusout", (event) => {
    const figure = figureOf(event.target);
    if (figure) clear(figure);
  });
  document.addEventListener("keydown", (event) => {
    const figure = figureOf(event.target);
    if (!figure || event.ctrlKey || event.altKey || event.metaKey) return;
    const rounds = roundsOf(curvesOf(event.target)).map(([round]) => round);
    const at = rounds.indexOf(active.get(figure.dataset.key));
    const last = rounds.length - 1;
    const to = { ArrowLeft: at < 0 ? last : at - 1, ArrowRight: at + 1, Home: 0, End: last }[event.key];
    if (event.key === "Escape") clear(figure);
    if (to === undefined) return;
    event.preventDefault();
    read(figure, rounds[Math.min(Math.max(to, 0), last)]);
  });

  // A page that was brought up to date has lost what was read out.
  new MutationObserver(() => {
    offerPictures();
    for (const [key, round] of active) {
      const figure = document.querySelector(`figure.chart[data-key="${CSS.escape(key)}"]`);
      if (figure && figure.querySelector(".cursor").getAttribute("visibility") === "hidden") read(figure, round);
    }
  }).observe(document.getElementById("main"), { childList: true, subtree: true, attributeFilter: ["visibility", "hidden"] });

  function offerPictures() {
    for (const button of document.querySelectorAll("button[data-png][hidden]")) button.hidden = false;
  }

  document.addEventListener("click", async (event) => {
    const button = event.target instanceof Element && event.target.closest("button[data-png]");
    if (!button) return;
    const link = button.closest(".downloads").querySelector("a[href*='.svg']");
    const image = new Image();
    image.src = link.href;
    await image.decode();
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [2 * image.width, 2 * image.height];
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    const saved = document.createElement("a");
    saved.href = canvas.toDataURL("image/png");
    saved.download = `${link.pathname.split("/").at(-1).replace(".svg", "")}.png`;
    saved.click();
  });

  offerPictures();
})();
