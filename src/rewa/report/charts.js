"use strict";
// The charts of a page, each drawn into its place from what Python wrote into #data. page.js wires them up.
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
  // The colour of a line: grey for one that is there for comparison, until it is pointed at.
  const stroke = (one) => one.muted ? "var(--other)" : `var(--c${one.color})`;
  const marker = (one, x, y, size = one.muted ? 2.7 : 3.7) => svg("path", {
    class: "marker", d: data.markers[one.marker], transform: `translate(${x.toFixed(1)},${y.toFixed(1)}) scale(${size})`,
    fill: one.full ? stroke(one) : "var(--paper)", stroke: stroke(one), "stroke-width": (one.muted ? 1 : 1.5) / size,
  });
  const swatch = (one) => svg("svg", { width: 30, height: 12, "aria-hidden": "true" },
    svg("line", { x1: 1, x2: 29, y1: 6, y2: 6, stroke: stroke(one), "stroke-width": one.muted ? 1.2 : 2.4, "stroke-dasharray": one.dash }),
    ...(one.markers ? [marker(one, 15, 6)] : []));
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
  // series: [{color, marker, full, dash, faint, muted, dim, markers, bars, points: [{x, y, low, high}]}], low and high the ends of
  // a band or an error bar; says(series, point) gives the lines of the tooltip; references: [{y, label}], level lines.
  const lineChart = (host, { x, y, series, says, label, shade, references = [] }) => {
    const width = Math.max(280, host.clientWidth), narrow = width < 560;
    const height = Math.round(Math.min(460, Math.max(290, width * 0.46)));
    const ticks = (axis, room) => axis.log ? [...(axis.zero ? [0] : []), ...logTicks([axis.zero || axis.domain[0], axis.domain[1]], room)] : linearTicks(axis.domain, room);
    const yTicks = ticks(y, y.log ? 6 : narrow ? 6 : 7);
    const longest = Math.max(...yTicks.map((tick) => y.format(tick).length), 2);
    const left = 14 + 7.2 * longest, right = width - 14, top = 30, bottom = height - 46;
    const px = scale(x, left + 8, right - 6), py = scale(y, bottom, top);
    const xTicks = ticks(x, (right - left) / (x.log ? 42 : 70));
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
      fitted(x.label, right, { class: "title", x: right, y: height - 6, "text-anchor": "end" }));
    const inside = svg("g", { "clip-path": `url(#${clip})` });
    root.append(inside);
    if (shade) {
      const from = px(shade.from), to = px(x.domain[1]);
      inside.append(svg("rect", { class: "phase", x: from, y: top, width: Math.max(0, to - from), height: bottom - top }));
      root.append(svg("text", { x: Math.min(from + 6, right - 60), y: top + 12 }, shade.label));
    }
    const low = (point) => py(point.low ?? point.y), high = (point) => py(point.high ?? point.y);
    const spread = (points) => points.some((point) => point.low !== point.high);
    for (const one of series) {
      if (one.bars || one.muted) continue;
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
      put(svg("path", { class: `line${one.faint ? " faint" : ""}${one.muted ? " muted" : ""}${one.dim ? " dim" : ""}`, d, stroke: one.faint ? null : stroke(one), "stroke-dasharray": one.dash ?? null }));
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
        if (one.markers || one.points.length === 1) marks.append(marker(one, at.x, at.y));
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

  // ---- heat map ----------------------------------------------------------------------------------------------------

  const CELL = 96, STRIP = 0.3;
  const wide = (text, size) => text.length * size * 0.58;
  // Lines of text in the middle of a box, as large as fits; nothing where it would not be read.
  const boxed = (lines, fill, x, y, width, height, most) => {
    const longest = lines.reduce((a, b) => a.length >= b.length ? a : b, "");
    const size = Math.min(most, (width - 4) / Math.max(wide(longest, 1), 0.1), (height - 3) / (1.25 * Math.max(lines.length, 1)));
    if (!lines.length || size < 7) return [];
    return lines.map((line, index) => svg("text", {
      class: "inside", x: x + width / 2, y: y + height / 2 + 1.2 * size * (index - (lines.length - 1) / 2) + 0.35 * size, "text-anchor": "middle",
      style: `font-size:${size.toFixed(1)}px${fill ? `;fill:${fill}` : ""}`,
    }, line));
  };
  const heatChart = (host, chart) => {
    const width = Math.max(260, host.clientWidth), rows = chart.y.ticks.length, columns = chart.x.ticks.length;
    const longest = Math.max(...chart.y.ticks.map((tick) => tick.length), 1);
    const left = Math.min(14 + 7.2 * longest, 0.35 * width), top = 26;
    const across = Math.min(CELL, (width - left - 2) / columns), down = Math.max(chart.overlay === null ? 38 : 48, Math.min(64, 0.72 * across));
    const right = left + across * columns, bottom = top + down * rows;
    // Numbers that have no place are left out; words are set aslant.
    const most = Math.max(...chart.x.ticks.map((tick) => wide(tick, 12)), 1), stride = Math.ceil((most + 6) / across);
    const aslant = chart.x.words && stride > 1, room = (left + across / 2) / 0.82;
    const height = bottom + 46 + (aslant ? 0.57 * Math.min(most, room) : 0);
    const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: 0, "aria-label": `${chart.title}. The numbers are in the table below.` });
    root.append(fitted(chart.y.label, width, { class: "title", x: 2, y: 14 }),
      fitted(chart.x.label, right, { class: "title", x: right, y: height - 6, "text-anchor": "end" }));
    chart.y.ticks.forEach((tick, row) => root.append(fitted(tick, left, { x: left - 8, y: top + down * (row + 0.5) + 4, "text-anchor": "end" })));
    chart.x.ticks.forEach((tick, column) => {
      const x = left + across * (column + 0.5);
      if (aslant) root.append(fitted(tick, room, { x, y: bottom + 14, "text-anchor": "end", transform: `rotate(-35 ${x} ${bottom + 14})` }));
      else if (column % stride === 0) root.append(svg("text", { x, y: bottom + 18, "text-anchor": "middle" }, tick));
    });
    const grid = chart.cells.map((cells, row) => cells.map((cell, column) => {
      // The gap between cells is wider than that above a strip, which thus belongs to its cell.
      const gap = chart.overlay === null ? 1 : 2;
      const x = left + across * column + gap, y = top + down * row + gap, w = across - 2 * gap, h = down - 2 * gap;
      const strip = cell.over ? Math.round(STRIP * h) : 0;
      if (cell.fill) root.append(svg("rect", { class: "cell", x, y, width: w, height: h - (strip ? strip + 1 : 0), fill: cell.fill }));
      root.append(...boxed(cell.lines, cell.ink, x, y, w, h - strip, 12.5));
      if (cell.mark) root.append(svg("text", { class: "inside", x: x + w - 3, y: y + 11, "text-anchor": "end", style: `font-size:10px${cell.ink ? `;fill:${cell.ink}` : ""}` }, cell.mark));
      if (cell.over) {
        root.append(svg("rect", { class: "over", x, y: y + h - strip, width: w, height: strip, fill: cell.over.fill }),
          ...boxed([cell.over.text], cell.over.ink, x, y + h - strip, w, strip, 11));
      }
      return cell.says.length ? { row, column, x: x + w / 2, y: y + h / 2, says: () => cell.says } : null;
    }));
    const frame = svg("rect", { class: "ring", width: across, height: down, visibility: "hidden" });
    root.append(frame);
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    explore(root, width, {
      find: (x, y) => grid[Math.floor((y - top) / down)]?.[Math.floor((x - left) / across)] ?? null,
      step: (current, key) => {
        if (!current) return grid.flat().find((target) => target) ?? null;
        const [dy, dx] = moves[key];
        for (let row = current.row + dy, column = current.column + dx; grid[row]?.[column] !== undefined; row += dy, column += dx) {
          if (grid[row][column]) return grid[row][column];
        }
        return current;
      },
      show: (target, visible) => {
        frame.setAttribute("x", left + across * target.column);
        frame.setAttribute("y", top + down * target.row);
        frame.setAttribute("visibility", visible ? "visible" : "hidden");
      },
    });
    host.replaceChildren(root);
  };
  const heatLegend = (legend, chart, index) => {
    const size = 200, shades = svg("linearGradient", { id: `shades${index}` });
    chart.stops.forEach((color, at) => shades.append(svg("stop", { offset: at / (chart.stops.length - 1), "stop-color": color })));
    const bar = svg("svg", { class: "shades", width: size, height: 30, "aria-hidden": "true" }, svg("defs", {}, shades),
      svg("rect", { width: size, height: 11, rx: 2, fill: `url(#shades${index})` }),
      ...chart.ends.map((end, at) => svg("text", { x: at * size / 2, y: 26, "text-anchor": ["start", "middle", "end"][at] }, end)));
    legend.append(element("span", { class: "key" }, bar, chart.label));
    if (chart.overlay) {
      const glyph = svg("svg", { width: 26, height: 20, "aria-hidden": "true" },
        svg("rect", { class: "above", width: 26, height: 13 }), svg("rect", { class: "strip", y: 14, width: 26, height: 6 }));
      legend.append(element("span", { class: "key" }, glyph, `lower strip: ${chart.overlay}`));
    }
  };

  // ---- bars --------------------------------------------------------------------------------------------------------

  const barChart = (host, chart) => {
    const width = Math.max(260, host.clientWidth), row = 38;
    const most = Math.max(...chart.bars.map((bar) => bar.value), 1e-9), fits = Math.floor((width - 150) / 6.6);
    const root = svg("svg", { viewBox: `0 0 ${width} ${chart.bars.length * row + 4}`, role: "img", "aria-label": chart.title });
    chart.bars.forEach((bar, index) => {
      const y = index * row, name = bar.label.length > fits ? `…${bar.label.slice(1 - fits)}` : bar.label;
      root.append(
        svg("text", { class: "name", x: 0, y: y + 14 }, name),
        svg("text", { x: width, y: y + 14, "text-anchor": "end" }, bar.text),
        svg("rect", { class: "track", x: 0, y: y + 20, width, height: 8, rx: 4 }),
        svg("rect", { class: "bar", x: 0, y: y + 20, width: bar.value ? Math.max(2, width * bar.value / most) : 0, height: 8, rx: 4 },
          svg("title", {}, bar.says)));
    });
    host.replaceChildren(root);
  };
  const histogramChart = (host, chart) => {
    const edges = data.shared[chart.edges], { counts, cut } = chart, at = cut === null ? null : Math.log10(cut.at);
    let low = edges[0], high = edges[edges.length - 1];
    if (at !== null) { low = Math.min(low, at); high = Math.max(high, at); }
    const width = Math.max(260, host.clientWidth), height = 300, top = 30, bottom = height - 46;
    const most = Math.max(...counts, 1), ticks = logTicks([1, most * 1.6], 5);
    const left = 14 + 7.2 * Math.max(...ticks.map((tick) => whole(tick).length)), right = width - 10;
    const px = scale({ domain: [low, high] }, left, right), py = scale({ log: true, domain: [0.5, most * 1.6] }, bottom, top);
    const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": chart.title });
    for (const tick of ticks) {
      root.append(svg("line", { class: "grid", x1: left, x2: right, y1: py(tick), y2: py(tick) }),
        svg("text", { x: left - 7, y: py(tick) + 4, "text-anchor": "end" }, whole(tick)));
    }
    const gap = px(edges[1]) - px(edges[0]) > 4 ? 1 : 0;
    counts.forEach((count, index) => {
      if (!count) return;
      const from = px(edges[index]), to = px(edges[index + 1]);
      root.append(svg("rect", { class: "bar", x: from, y: py(count), width: Math.max(0.5, to - from - gap), height: bottom - py(count) },
        svg("title", {}, `from ${compact(10 ** edges[index])} to ${compact(10 ** edges[index + 1])}: ${whole(count)}`)));
    });
    root.append(svg("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }),
      svg("text", { class: "title", x: 2, y: 14 }, chart.y),
      svg("text", { class: "title", x: right, y: height - 6, "text-anchor": "end" }, chart.x));
    for (const tick of linearTicks([low, high], (right - left) / 52).filter(Number.isInteger)) {
      root.append(svg("line", { class: "axis", x1: px(tick), x2: px(tick), y1: bottom, y2: bottom + 5 }),
        svg("text", { x: px(tick), y: bottom + 19, "text-anchor": "middle" }, power(tick)));
    }
    if (at !== null) {
      const x = px(at), late = x > (left + right) / 2;
      root.append(svg("line", { class: "mark", x1: x, x2: x, y1: top - 6, y2: bottom }),
        svg("text", { class: "marktext", x: x + (late ? -7 : 7), y: top + 4, "text-anchor": late ? "end" : "start" }, cut.label));
    }
    host.replaceChildren(root);
  };

  return { data, svg, element, swatch, compact, power, lineChart, heatChart, heatLegend, barChart, histogramChart };
})();
