"use strict";
const all = (selector, from = document) => [...from.querySelectorAll(selector)];
for (const hint of all("#rounds > [hidden]")) hint.hidden = false;
document.getElementById("no-scripts").hidden = true; // noscript says nothing where a policy stops scripts

// Which rounds are shown ("=a" has fault a alone, "a" has it at all), and the one that the address names.
const rounds = all(".round"), select = document.getElementById("show");
const tests = {
  "": () => true,
  "!bad": (round) => round.classList.contains("bad"),
  "!not-struck": (round) => "notStruck" in round.dataset,
  "=two at once": (round) => round.dataset.faults.includes(" + "),
};
const shows = (round, value) =>
  Object.hasOwn(tests, value) ? tests[value](round)
  : value.startsWith("=") ? round.dataset.faults === value.slice(1)
  : round.dataset.faults.split(" + ").includes(value);
const filter = (value) => {
  if (!all("option", select).some((option) => option.value === value)) select.add(new Option(`only ${value.slice(1)}`, value));
  select.value = value;
  for (const round of rounds) round.hidden = !shows(round, value);
  for (const block of all(".block")) {
    block.hidden = all(".round:not([hidden])", block).length === 0;
    if (value !== "") block.open = true;
  }
  document.getElementById("shown").textContent = value === "" ? "" : `${rounds.filter((round) => !round.hidden).length} of ${rounds.length}`;
};
select.addEventListener("change", () => filter(select.value));
const follow = () => {
  const round = location.hash.startsWith("#round-") && document.getElementById(location.hash.slice(1));
  if (!round) return;
  if (round.hidden) filter("");
  for (let each = round; each; each = each.parentElement) if (each.tagName === "DETAILS") each.open = true;
  round.scrollIntoView();
};
addEventListener("hashchange", follow);
document.addEventListener("click", (event) => {
  const link = event.target.closest("a[href^='#round-']");
  if (!link) return;
  if (link.dataset.show) {
    event.preventDefault();
    filter(`=${link.dataset.show}`);
    document.getElementById("rounds").scrollIntoView();
  } else if (link.hash === location.hash) follow();
});
follow();

// A timeline: what was at the time that is pointed at, and a zoom, which is a wider box in the same window.
for (const picture of all(".picture")) {
  const plot = picture.querySelector(".plot"), wide = picture.querySelector(".wide"), caption = picture.querySelector("output");
  const seconds = Number(picture.dataset.seconds), bin = Number(picture.dataset.bin), fingers = new Map();
  const cursor = document.createElement("div");
  cursor.className = "cursor";
  let factor = 1, at = 0;

  const show = (second) => {
    at = Math.min(seconds, Math.max(0, second));
    const place = (100 * at) / seconds, number = Math.floor(at / bin), parts = [];
    for (const bar of all("b", wide)) {
      const left = parseFloat(bar.style.left);
      if (left <= place && place <= left + parseFloat(bar.style.width)) parts.push(bar.title);
    }
    for (const chart of all(".chart", wide)) {
      const value = chart.dataset.values.split(",")[number];
      if (value) parts.push(`${chart.dataset.name} ${value} ${chart.dataset.unit}`);
    }
    caption.textContent = `${at.toFixed(2)} s: ${parts.join("; ")}`;
    cursor.style.left = `${place}%`;
    wide.append(cursor);
  };
  const zoom = (by, x = plot.clientWidth / 2) => {
    const part = (plot.scrollLeft + x) / wide.clientWidth;
    factor = Math.min(40, Math.max(1, factor * by));
    wide.style.width = `${100 * factor}%`;
    plot.scrollLeft = part * wide.clientWidth - x;
  };
  const reveal = () => {
    const x = (at / seconds) * wide.clientWidth;
    if (x < plot.scrollLeft || x > plot.scrollLeft + plot.clientWidth) plot.scrollLeft = x - plot.clientWidth / 2;
  };
  const step = (by) => { show(at + (by * seconds) / factor / 50); reveal(); };
  const spread = () => { const [a, b] = [...fingers.values()]; return Math.hypot(a[0] - b[0], a[1] - b[1]); };
  const point = (event) => {
    const before = fingers.size === 2 && fingers.has(event.pointerId) ? spread() : 0;
    if (fingers.has(event.pointerId)) fingers.set(event.pointerId, [event.clientX, event.clientY]);
    if (before) return zoom(spread() / before, event.clientX - plot.getBoundingClientRect().left);
    const area = wide.getBoundingClientRect();
    show(((event.clientX - area.left) / area.width) * seconds);
  };
  const lift = (event) => fingers.delete(event.pointerId);

  plot.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "touch") fingers.set(event.pointerId, [event.clientX, event.clientY]);
    point(event);
  });
  plot.addEventListener("pointermove", point);
  for (const name of ["pointerup", "pointercancel", "pointerleave"]) plot.addEventListener(name, lift);
  plot.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    zoom(event.deltaY < 0 ? 1.25 : 0.8, event.clientX - plot.getBoundingClientRect().left);
  }, { passive: false });
  const keys = { "+": () => zoom(1.5), "=": () => zoom(1.5), "-": () => zoom(1 / 1.5), 0: () => zoom(0), ArrowRight: () => step(1), ArrowLeft: () => step(-1) };
  plot.addEventListener("keydown", (event) => {
    if (!(event.key in keys) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    keys[event.key]();
  });
  const buttons = document.createElement("div");
  buttons.className = "zoom";
  for (const [text, label, by] of [["+", "zoom in", 2], ["−", "zoom out", 0.5], ["all", "the whole round", 0]]) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = text;
    button.setAttribute("aria-label", label);
    button.addEventListener("click", () => zoom(by));
    buttons.append(button);
  }
  picture.prepend(buttons);
}
