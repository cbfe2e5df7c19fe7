"use strict";
// What every page of charts shares. The page's own script comes after it.
const charts = (() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const tip = document.getElementById("tip");
  const SUPERSCRIPT = "⁰¹²³⁴⁵⁶⁷⁸⁹";

  // ---- small tools -------------------------------------------------------------------------------------------------

  const svg = (name, attributes = {}, ...children) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) if (value !== null && value !== undefined) node.setAttribute(key, value);
    node.append(...children);
    return node;
  };
  const element = (name, attributes = {}, ...children) => {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  };
  const color = (style) => `var(--c${style % 7})`;
  const dash = (style) => data.dashes[Math.floor(style / 7) % data.dashes.length] || null;
  const marker = (style, x, y, fill = color(style), size = 3.6) => {
    const s = size, path = (d) => svg("path", { d, fill });
    switch (style % 5) {
      case 0: return svg("circle", { cx: x, cy: y, r: s, fill });
      case 1: return path(`M${x - s},${y - s}h${2 * s}v${2 * s}h${-2 * s}z`);
      case 2: return path(`M${x},${y - 1.35 * s}l${1.35 * s},${1.35 * s}l${-1.35 * s},${1.35 * s}l${-1.35 * s},${-1.35 * s}z`);
      case 3: return path(`M${x},${y - 1.25 * s}l${1.2 * s},${2.2 * s}h${-2.4 * s}z`);
      default: return path(`M${x},${y + 1.25 * s}l${1.2 * s},${-2.2 * s}h${-2.4 * s}z`);
    }
  };
  const swatch = (style, line = dash(style), marked = true, stroke = color(style)) => svg("svg", { width: 30, height: 12, "aria-hidden": "true" },
    svg("line", { x1: 1, x2: 29, y1: 6, y2: 6, stroke, "stroke-width": 2.2, "stroke-dasharray": line }),
    ...(marked ? [marker(style, 15, 6, stroke)] : []));
  // The colour of a line: grey for one that has none of its own, until it is pointed at.
  const stroke = (one) => one.muted ? "var(--other)" : color(one.style);
  const compact = (value) => {
    if (value === 0) return "0";
    const size = Math.abs(value);
    return size >= 1e5 || size < 1e-3 ? value.toExponential(1).replace(".0e", "e").replace("e+", "e") : String(Number(value.toPrecision(4)));
  };
  const power = (exponent) => "10" + (exponent < 0 ? "⁻" : "") + [...String(Math.abs(exponent))].map((digit) => SUPERSCRIPT[digit]).join("");
  const whole = (value) => value.toLocaleString("en");
  // Text that is at most so wide; what is cut away is in its title.
  const fitted = (text, width, attributes) => {
    const most = Math.max(4, Math.floor(width / 6.3));
    return text.length <= most ? svg("text", attributes, text) : svg("text", attributes, svg("title", {}, text), `${text.slice(0, most - 1)}…`);
  };

  // ---- scales ------------------------------------------------------------------------------------------------------

  const linearTicks = ([low, high], count) => {
    const raw = (high - low) / Math.max(count, 1), magnitude = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].find((each) => each * magnitude >= raw) * magnitude;
    const ticks = [];
    for (let index = Math.ceil(low / step - 1e-9); index * step <= high + step * 1e-9; index++) ticks.push(Number((index * step).toPrecision(12)));
    return ticks;
  };
  const logTicks = ([low, high], room) => {
    const from = Math.floor(Math.log10(low)), to = Math.ceil(Math.log10(high));
    const inside = (value) => value >= low * 0.999 && value <= high * 1.001;
    for (const steps of [[1, 2, 5], [1, 3], [1]]) {
      const ticks = [];
      for (let exponent = from; exponent <= to; exponent++) for (const step of steps) ticks.push(Number((step * 10 ** exponent).toPrecision(6)));
      const kept = ticks.filter(inside);
      if (kept.length <= room) return kept;
    }
    const decades = [], stride = Math.ceil((to - from + 1) / Math.max(room, 1));
    for (let exponent = from; exponent <= to; exponent += stride) decades.push(10 ** exponent);
    return decades.filter(inside);
  };
  // A logarithm has no zero: where an axis needs one, what lies below `zero` is linear and takes 0.6 of a decade.
  const scale = ({ log, domain, zero }, start, end) => {
    const bent = (value) => value > zero ? 0.6 + Math.log10(value / zero) : 0.6 * Math.max(0, value) / zero;
    const map = !log ? (value) => value : zero ? bent : Math.log10;
    const low = map(domain[0]), span = map(domain[1]) - low || 1;
    return (value) => start + (map(value) - low) / span * (end - start);
  };

  // ---- tooltip -----------------------------------------------------------------------------------------------------

  const showTip = (lines, x, y) => {
    tip.replaceChildren(...lines.map((line, index) => element(index ? "span" : "b", {}, line)));
    tip.hidden = false;
    const width = tip.offsetWidth, page = document.documentElement.clientWidth;
    tip.style.left = `${Math.max(8, Math.min(x + 14, page - width - 8))}px`;
    const above = y - tip.offsetHeight - 14;
    tip.style.top = `${above > window.scrollY + 4 ? above : y + 16}px`;
  };
  const hideTip = () => { tip.hidden = true; };

  // ---- pointing ----------------------------------------------------------------------------------------------------

  // A chart that is pointed at or walked through with the arrow keys. find(x, y) gives a target or null; step(target, key) the
  // next one, the first for null; show(target, visible) marks it. A target has x, y and the lines that the tooltip says.
  const explore = (root, width, { find, step, show }) => {
    let current = null;
    const leave = () => { if (current) show(current, false); hideTip(); };
    const pick = (target) => {
      leave();
      current = target;
      show(target, true);
      const box = root.getBoundingClientRect(), zoom = box.width / width;
      showTip(target.says(), box.left + window.scrollX + target.x * zoom, box.top + window.scrollY + target.y * zoom);
    };
    const near = (event) => {
      const box = root.getBoundingClientRect(), zoom = width / box.width;
      const target = find((event.clientX - box.left) * zoom, (event.clientY - box.top) * zoom);
      if (target) pick(target); else leave();
    };
    root.addEventListener("pointermove", near);
    root.addEventListener("pointerdown", near);
    root.addEventListener("pointerleave", leave);
    root.addEventListener("blur", leave);
    root.addEventListener("keydown", (event) => {
      if (event.key === "Escape") return leave();
      if (!["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"].includes(event.key)) return;
      event.preventDefault();
      const target = step(current, event.key);
      if (target) pick(target);
    });
  };

  // ---- line chart --------------------------------------------------------------------------------------------------

  let clips = 0;
  // Runs of points that have a value: a missing one breaks the line.
  const pieces = (points) => {
    const all = [[]];
    for (const point of points) if (point.y === null) all.push([]); else all[all.length - 1].push(point);
    return all.filter((piece) => piece.length);
  };
  // series: [{style, dash, faint, dim, markers, band, bars, points: [{x, y, low, high}]}], low and high the ends of a band or an
  // error bar; says(series, point) gives the lines of the tooltip; references: [{y, label}], level lines.
  const lineChart = (host, { x, y, series, says, label, phase, references = [] }) => {
    const width = Math.max(280, host.clientWidth), narrow = width < 560;
    const height = Math.round(Math.min(460, Math.max(290, width * 0.46)));
    const ticks = (axis, room) => axis.log ? [...(axis.zero ? [0] : []), ...logTicks([axis.zero || axis.domain[0], axis.domain[1]], room)] : linearTicks(axis.domain, room);
    const yTicks = ticks(y, y.log ? 6 : narrow ? 6 : 7);
    const longest = Math.max(...yTicks.map((tick) => y.format(tick).length), 2);
    const left = 14 + 7.2 * longest, right = width - 14, top = 30, bottom = height - 46;
    const px = scale(x, left + 8, right - 6), py = scale(y, bottom, top);
    const xTicks = ticks(x, (right - left) / (x.log ? 42 : 70)).filter(x.whole ? Number.isInteger : () => true);
    const clip = `clip${clips++}`;
    const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: 0, "aria-label": label });
    root.append(svg("clipPath", { id: clip }, svg("rect", { x: left, y: top - 5, width: right - left + 5, height: bottom - top + 10 })));
    for (const tick of yTicks) {
      root.append(svg("line", { class: "grid", x1: left, x2: right, y1: py(tick), y2: py(tick) }),
        svg("text", { x: left - 7, y: py(tick) + 4, "text-anchor": "end" }, y.format(tick)));
    }
    for (const tick of xTicks) {
      root.append(svg("line", { class: "axis", x1: px(tick), x2: px(tick), y1: bottom, y2: bottom + 5 }),
        svg("text", { x: px(tick), y: bottom + 19, "text-anchor": "middle" }, x.format(tick)));
    }
    root.append(svg("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }),
      fitted(y.label, width, { class: "title", x: 2, y: 14 }),
      fitted(narrow && x.short ? x.short : x.label, right, { class: "title", x: right, y: height - 6, "text-anchor": "end" }));
    const inside = svg("g", { "clip-path": `url(#${clip})` });
    root.append(inside);
    if (phase) {
      const from = px(phase.from), to = px(x.domain[1]);
      inside.append(svg("rect", { class: "phase", x: from, y: top, width: Math.max(0, to - from), height: bottom - top }));
      root.append(svg("text", { x: Math.min(from + 6, right - 60), y: top + 12 }, phase.label));
    }
    const low = (point) => py(point.low ?? point.y), high = (point) => py(point.high ?? point.y);
    const spread = (points) => points.some((point) => point.low !== point.high);
    for (const one of series) {
      if (!one.band) continue;
      for (const points of pieces(one.points).filter(spread)) {
        const edge = (end, some) => some.map((point) => `${px(point.x)},${end(point)}`).join("L");
        inside.append(svg("path", { class: `band${one.dim ? " dim" : ""}`, fill: stroke(one), d: `M${edge(high, points)}L${edge(low, [...points].reverse())}Z` }));
      }
    }
    let taken = -Infinity;
    for (const { y: level, label: name } of [...references].sort((a, b) => b.y - a.y)) {
      const at = py(level), below = at - taken < 14 || at < top + 10;
      taken = at;
      inside.append(svg("line", { class: "reference", x1: left, x2: right, y1: at, y2: at }));
      root.append(fitted(name, right - left, { class: "referencetext", x: right - 2, y: at + (below ? 13 : -5), "text-anchor": "end" }));
    }
    const targets = [];
    for (const one of series) {
      if (!one.points.some((point) => point.y !== null)) continue;
      const d = pieces(one.points).map((points) => "M" + points.map((point) => `${px(point.x).toFixed(1)},${py(point.y).toFixed(1)}`).join("L")).join("");
      const put = (...nodes) => one.muted ? inside.prepend(...nodes) : inside.append(...nodes);  // grey lies below colour
      put(svg("path", { class: `line${one.faint ? " faint" : ""}${one.dim ? " dim" : ""}`, d, stroke: one.faint ? null : stroke(one), "stroke-dasharray": one.dash ?? null }));
      if (one.faint) continue;
      const marks = svg("g", one.dim ? { class: "dim" } : {});
      for (const point of one.points) {
        if (point.y === null) continue;
        const at = { one, x: px(point.x), y: py(point.y), says: () => says(one, point) };
        if (at.y > bottom + 1 || at.y < top - 5) continue;
        targets.push(at);
        if (one.bars && spread([point])) {
          const [from, to] = [low(point), high(point)];
          marks.append(svg("path", { class: "whisker", stroke: stroke(one), d: `M${at.x - 4},${from}h8M${at.x - 4},${to}h8M${at.x},${from}V${to}` }));
        }
        if (one.markers || one.points.length === 1) marks.append(marker(one.style, at.x, at.y, stroke(one)));
      }
      put(marks);
    }
    const ring = svg("circle", { class: "ring", r: 7, visibility: "hidden" });
    root.append(ring);
    explore(root, width, {
      find: (mx, my) => {
        let best = null, least = 60 ** 2;
        for (const target of targets) {
          const distance = (target.x - mx) ** 2 + (target.y - my) ** 2;
          if (distance < least) { best = target; least = distance; }
        }
        return best;
      },
      step: (current, key) => {
        if (!current) return targets[0];
        const forward = key === "ArrowRight" || key === "ArrowDown" ? 1 : -1;
        if (key === "ArrowLeft" || key === "ArrowRight") {
          const own = targets.filter((target) => target.one === current.one);
          return own[Math.max(0, Math.min(own.length - 1, own.indexOf(current) + forward))];
        }
        const lines = [...new Set(targets.map((target) => target.one))];
        const next = lines[(lines.indexOf(current.one) + forward + lines.length) % lines.length];
        return targets.filter((target) => target.one === next).reduce((a, b) => Math.abs(a.x - current.x) <= Math.abs(b.x - current.x) ? a : b);
      },
      show: (target, visible) => {
        ring.setAttribute("cx", target.x);
        ring.setAttribute("cy", target.y);
        ring.setAttribute("visibility", visible ? "visible" : "hidden");
      },
    });
    host.replaceChildren(root);
  };

  // Draws again when the width changes; a chart is as wide as its place, so that text keeps its size.
  const responsive = (host, draw) => {
    let width = host.clientWidth;
    new ResizeObserver(() => {
      if (host.clientWidth !== width) { width = host.clientWidth; draw(); }
    }).observe(host);
    draw();
  };

  // ---- legend ------------------------------------------------------------------------------------------------------

  // A button for each series that hides or shows it; hovering is told, too. Both end in draw().
  const legendButtons = (legend, series, { label, swatchOf, draw }) => {
    const hidden = new Set(), buttons = new Map();
    let every = null;
    const state = { hidden, buttons, hovered: null };
    const update = () => {
      buttons.forEach((button, one) => button.setAttribute("aria-pressed", String(!hidden.has(one))));
      if (every) every.textContent = hidden.size ? "show all" : "hide all";
      draw();
    };
    for (const one of series) {
      const button = element("button", { type: "button", "aria-pressed": "true" }, swatchOf(one), one.label);
      button.addEventListener("click", () => { if (!hidden.delete(one)) hidden.add(one); update(); });
      const hover = (value) => () => { state.hovered = value; draw(); };
      button.addEventListener("pointerenter", hover(one));
      button.addEventListener("pointerleave", hover(null));
      buttons.set(one, button);
      legend.append(button);
    }
    legend.setAttribute("role", "group");
    legend.setAttribute("aria-label", label);
    if (series.length > 6) {
      every = element("button", { type: "button" }, "hide all");
      every.addEventListener("click", () => {
        if (hidden.size) hidden.clear(); else series.forEach((one) => hidden.add(one));
        update();
      });
      legend.append(every);
    }
    return state;
  };

  // ---- tables ------------------------------------------------------------------------------------------------------

  // A table that goes on beyond the screen says so until its last column is in view.
  for (const box of document.querySelectorAll(".scroll")) {
    const hint = element("p", { class: "hint" }, "Scroll sideways for more columns →");
    box.before(hint);
    const look = () => { hint.hidden = box.scrollLeft + box.clientWidth >= box.scrollWidth - 4; };
    box.addEventListener("scroll", look);
    new ResizeObserver(look).observe(box);
    look();
  }

  window.addEventListener("beforeprint", () => { for (const each of document.querySelectorAll("details")) each.open = true; });
  return { data, svg, element, color, dash, marker, swatch, compact, power, whole, fitted, linearTicks, logTicks, scale, explore, lineChart, legendButtons, responsive, stroke };
})();
