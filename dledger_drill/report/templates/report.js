"use strict";
for (const svg of document.querySelectorAll("svg.timeline")) {
  const { bin, left, seconds, rates, latencies } = svg.dataset;
  const box = svg.viewBox.baseVal, width = box.width, start = Number(left), total = Number(seconds);
  const groups = rates ? rates.split("|").map((each) => { const at = each.lastIndexOf(":"); return [each.slice(0, at), each.slice(at + 1).split(",").map(Number)]; }) : [];
  const waits = latencies.split(",");
  const told = svg.parentElement.querySelector("output");
  const cursor = document.createElementNS("http://www.w3.org/2000/svg", "line");
  cursor.setAttribute("class", "cursor");
  cursor.setAttribute("y1", "0");
  cursor.setAttribute("y2", String(box.height));
  let at = null;

  const show = (x) => {
    at = Math.min(width, Math.max(start, x));
    const second = ((at - start) / (width - start)) * total, number = Math.floor(second / Number(bin));
    const parts = groups.map(([name, counts]) => `${name} ${Math.round((counts[number] || 0) / Number(bin))} acknowledged/s`);
    if (waits[number]) parts.push(`p99 ${waits[number]} ms`);
    told.textContent = `${second.toFixed(2)} s: ${parts.join(", ")}`;
    cursor.setAttribute("x1", String(at));
    cursor.setAttribute("x2", String(at));
    svg.append(cursor);
  };
  const look = (x, wide) => {
    const most = Math.min(width, Math.max(width / 40, wide));
    svg.setAttribute("viewBox", `${Math.min(width - most, Math.max(0, x))} 0 ${most} ${box.height}`);
    svg.setAttribute("preserveAspectRatio", most < width ? "none" : "xMidYMid");
  };
  const zoom = (by, around) => {
    const now = svg.viewBox.baseVal, wide = now.width * by;
    look(around - ((around - now.x) * Math.min(width, wide)) / now.width, wide);
  };
  const place = (event) => {
    const now = svg.viewBox.baseVal, area = svg.getBoundingClientRect();
    return now.x + ((event.clientX - area.left) / area.width) * now.width;
  };
  svg.style.aspectRatio = `${width} / ${box.height}`;
  svg.addEventListener("pointermove", (event) => show(place(event)));
  svg.addEventListener("wheel", (event) => {
    if (document.activeElement !== svg) return;
    event.preventDefault();
    zoom(event.deltaY < 0 ? 0.8 : 1.25, place(event));
  }, { passive: false });
  svg.addEventListener("keydown", (event) => {
    const now = svg.viewBox.baseVal, middle = at === null ? now.x + now.width / 2 : at;
    const moves = {
      "+": () => zoom(0.7, middle), "=": () => zoom(0.7, middle), "-": () => zoom(1.4, middle), 0: () => look(0, width),
      ArrowRight: () => show(middle + now.width / 50), ArrowLeft: () => show(middle - now.width / 50),
    };
    if (!(event.key in moves)) return;
    event.preventDefault();
    moves[event.key]();
    const view = svg.viewBox.baseVal;
    if (at !== null && (at < view.x || at > view.x + view.width)) look(at - view.width / 2, view.width);
  });
}
