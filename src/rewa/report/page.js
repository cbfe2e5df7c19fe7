"use strict";
(() => {
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
  const marker = (style, x, y, size = 3.6) => {
    const s = size, path = (d) => svg("path", { d, fill: color(style) });
    switch (style % 5) {
      case 0: return svg("circle", { cx: x, cy: y, r: s, fill: color(style) });
      case 1: return path(`M${x - s},${y - s}h${2 * s}v${2 * s}h${-2 * s}z`);
      case 2: return path(`M${x},${y - 1.35 * s}l${1.35 * s},${1.35 * s}l${-1.35 * s},${1.35 * s}l${-1.35 * s},${-1.35 * s}z`);
      case 3: return path(`M${x},${y - 1.25 * s}l${1.2 * s},${2.2 * s}h${-2.4 * s}z`);
      default: return path(`M${x},${y + 1.25 * s}l${1.2 * s},${-2.2 * s}h${-2.4 * s}z`);
    }
  };
  const swatch = (style) => svg("svg", { width: 30, height: 12, "aria-hidden": "true" },
    svg("line", { x1: 1, x2: 29, y1: 6, y2: 6, stroke: color(style), "stroke-width": 2.2, "stroke-dasharray": dash(style) }),
    marker(style, 15, 6));
  const compact = (value) => {
    if (value === 0) return "0";
    const size = Math.abs(value);
    return size >= 1e5 || size < 1e-3 ? value.toExponential(1).replace(".0e", "e").replace("e+", "e") : String(Number(value.toPrecision(4)));
  };
  const power = (exponent) => "10" + (exponent < 0 ? "⁻" : "") + [...String(Math.abs(exponent))].map((digit) => SUPERSCRIPT[digit]).join("");
  const whole = (value) => value.toLocaleString("en");

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
  const scale = ({ log, domain }, start, end) => {
    const map = log ? Math.log10 : (value) => value;
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

  // ---- line chart --------------------------------------------------------------------------------------------------

  let clips = 0;
  // series: [{style, dash, faint, dim, band, points: [{x, y, sd}]}]; says(series, point) gives the lines of the tooltip.
  const lineChart = (host, { x, y, series, says, label, phase, markers }) => {
    const width = Math.max(280, host.clientWidth), narrow = width < 560;
    const height = Math.round(Math.min(460, Math.max(290, width * 0.46)));
    const yTicks = y.log ? logTicks(y.domain, 6) : linearTicks(y.domain, narrow ? 5 : 7);
    const longest = Math.max(...yTicks.map((tick) => y.format(tick).length), 2);
    const left = 14 + 7.2 * longest, right = width - 14, top = 30, bottom = height - 46;
    const px = scale(x, left + 8, right - 6), py = scale(y, bottom, top);
    const xTicks = x.log ? logTicks(x.domain, (right - left) / 42) : linearTicks(x.domain, (right - left) / 70).filter(x.whole ? Number.isInteger : () => true);
    const clip = `clip${clips++}`;
    const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: 0, "aria-label": label });
    root.append(svg("clipPath", { id: clip }, svg("rect", { x: left, y: top - 5, width: right - left + 5, height: bottom - top + 5 })));
    for (const tick of yTicks) {
      root.append(svg("line", { class: "grid", x1: left, x2: right, y1: py(tick), y2: py(tick) }),
        svg("text", { x: left - 7, y: py(tick) + 4, "text-anchor": "end" }, y.format(tick)));
    }
    for (const tick of xTicks) {
      root.append(svg("line", { class: "axis", x1: px(tick), x2: px(tick), y1: bottom, y2: bottom + 5 }),
        svg("text", { x: px(tick), y: bottom + 19, "text-anchor": "middle" }, x.format(tick)));
    }
    root.append(svg("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }),
      svg("text", { class: "title", x: 2, y: 14 }, y.label),
      svg("text", { class: "title", x: right, y: height - 6, "text-anchor": "end" }, narrow && x.short ? x.short : x.label));
    const inside = svg("g", { "clip-path": `url(#${clip})` });
    root.append(inside);
    if (phase) {
      const from = px(phase.from), to = px(x.domain[1]);
      inside.append(svg("rect", { class: "phase", x: from, y: top, width: Math.max(0, to - from), height: bottom - top }));
      root.append(svg("text", { x: Math.min(from + 6, right - 60), y: top + 12 }, phase.label));
    }
    for (const one of series) {
      if (one.band && one.points.some((point) => point.sd)) {
        const edge = (sign, points) => points.map((point) => `${px(point.x)},${py(point.y + sign * (point.sd || 0))}`).join("L");
        inside.append(svg("path", { class: `band${one.dim ? " dim" : ""}`, fill: color(one.style), d: `M${edge(1, one.points)}L${edge(-1, [...one.points].reverse())}Z` }));
      }
    }
    const targets = [];
    for (const one of series) {
      if (!one.points.length) continue;
      const d = "M" + one.points.map((point) => `${px(point.x).toFixed(1)},${py(point.y).toFixed(1)}`).join("L");
      inside.append(svg("path", { class: `line${one.faint ? " faint" : ""}${one.dim ? " dim" : ""}`, d, stroke: one.faint ? null : color(one.style), "stroke-dasharray": one.dash ?? null }));
      if (one.faint) continue;
      const marks = svg("g", one.dim ? { class: "dim" } : {});
      for (const point of one.points) {
        const at = { one, point, x: px(point.x), y: py(point.y) };
        if (at.y > bottom + 1 || at.y < top - 5) continue;
        targets.push(at);
        if (markers || one.points.length === 1) marks.append(marker(one.style, at.x, at.y));
      }
      inside.append(marks);
    }
    const ring = svg("circle", { class: "ring", r: 7, visibility: "hidden" });
    root.append(ring);
    const pick = (target) => {
      ring.setAttribute("cx", target.x);
      ring.setAttribute("cy", target.y);
      ring.setAttribute("visibility", "visible");
      const box = root.getBoundingClientRect(), zoom = box.width / width;
      showTip(says(target.one, target.point), box.left + window.scrollX + target.x * zoom, box.top + window.scrollY + target.y * zoom);
    };
    const leave = () => { ring.setAttribute("visibility", "hidden"); hideTip(); };
    let current = null;
    const near = (event) => {
      const box = root.getBoundingClientRect(), zoom = width / box.width;
      const mx = (event.clientX - box.left) * zoom, my = (event.clientY - box.top) * zoom;
      let best = null, least = 60 ** 2;
      for (const target of targets) {
        const distance = (target.x - mx) ** 2 + (target.y - my) ** 2;
        if (distance < least) { best = target; least = distance; }
      }
      if (best) pick(current = best); else leave();
    };
    root.addEventListener("pointermove", near);
    root.addEventListener("pointerdown", near);
    root.addEventListener("pointerleave", leave);
    root.addEventListener("blur", leave);
    root.addEventListener("keydown", (event) => {
      if (event.key === "Escape") return leave();
      if (!["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"].includes(event.key) || !targets.length) return;
      event.preventDefault();
      if (!current) return pick(current = targets[0]);
      const forward = event.key === "ArrowRight" || event.key === "ArrowDown" ? 1 : -1;
      if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
        const own = targets.filter((target) => target.one === current.one);
        current = own[Math.max(0, Math.min(own.length - 1, own.indexOf(current) + forward))];
      } else {
        const lines = [...new Set(targets.map((target) => target.one))];
        const next = lines[(lines.indexOf(current.one) + forward + lines.length) % lines.length];
        current = targets.filter((target) => target.one === next).reduce((a, b) => Math.abs(a.x - current.x) <= Math.abs(b.x - current.x) ? a : b);
      }
      pick(current);
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

  // ---- metric against compression ----------------------------------------------------------------------------------

  const comparisonChart = (figure) => {
    const chart = data.comparisons[figure.dataset.comparison];
    const host = figure.querySelector(".plot"), legend = figure.querySelector(".legend");
    const hidden = new Set();
    let zoom = "top", hovered = null;
    const percent = chart.metric === "accuracy" ? " %" : "";
    const furthest = Math.max(2, ...chart.series.flatMap((one) => one.points.map((point) => point.x)));
    const draw = () => {
      const visible = chart.series.filter((one) => !hidden.has(one));
      lineChart(host, {
        label: `${chart.title}. The numbers are in the table below.`,
        x: { log: true, domain: [1, furthest], format: (value) => `${compact(value)}x`, label: "compression of the prunable weights (all / nonzero), at least", short: "compression (all / nonzero), at least" },
        y: { domain: chart[zoom], format: compact, label: chart.unit },
        markers: true,
        series: visible.map((one) => ({ ...one, dash: dash(one.style), band: visible.length <= data.bands || one === hovered, dim: hovered !== null && hovered !== one })),
        says: (one, point) => [
          one.label,
          `${chart.unit.replace(", %", "")} ${point.text}${percent}`,
          `compressed at least ${compact(point.x)}x`,
          `chosen: ${point.prunable} of prunable weights, ${point.model} of the model`,
          `n = ${point.n} seed${point.n > 1 ? "s" : ""}`,
          `strength: ${point.chosen.slice(0, 8).map(([seed, strength]) => `${strength === null ? "–" : compact(strength)} (seed ${seed})`).join(", ")}${point.chosen.length > 8 ? ", …" : ""}`,
        ],
      });
    };
    const update = () => {
      buttons.forEach((button, one) => button.setAttribute("aria-pressed", String(!hidden.has(one))));
      if (every) every.textContent = hidden.size ? "show all" : "hide all";
      draw();
    };
    const buttons = new Map();
    for (const one of chart.series) {
      const button = element("button", { type: "button", "aria-pressed": "true" }, swatch(one.style), one.label);
      button.addEventListener("click", () => { if (!hidden.delete(one)) hidden.add(one); update(); });
      const hover = (value) => () => { hovered = value; draw(); };
      button.addEventListener("pointerenter", hover(one));
      button.addEventListener("pointerleave", hover(null));
      buttons.set(one, button);
      legend.append(button);
    }
    legend.setAttribute("role", "group");
    legend.setAttribute("aria-label", "Methods shown");
    let every = null;
    if (chart.series.length > 6) {
      every = element("button", { type: "button" }, "hide all");
      every.addEventListener("click", () => {
        if (hidden.size) hidden.clear(); else chart.series.forEach((one) => hidden.add(one));
        update();
      });
      legend.append(every);
    }
    const group = element("div", { class: "zoom", role: "group", "aria-label": "Range of the vertical axis" });
    for (const which of ["top", "all"]) {
      const button = element("button", { type: "button", "aria-pressed": String(which === zoom) }, which);
      button.addEventListener("click", () => {
        zoom = which;
        for (const other of group.children) other.setAttribute("aria-pressed", String(other === button));
        draw();
      });
      group.append(button);
    }
    figure.prepend(element("div", { class: "bar-top" }, element("span", { class: "zoomlabel" }, "Vertical range"), group));
    responsive(host, draw);
  };

  // ---- one run -----------------------------------------------------------------------------------------------------

  const CONTEXT = 60;
  const bounds = (values, log) => {
    let low = Infinity, high = -Infinity;
    for (const value of values) { low = Math.min(low, value); high = Math.max(high, value); }
    if (low > high) return [log ? 0.1 : 0, 1];
    if (log) return [low / 1.15, high * 1.15];
    const margin = 0.06 * (high - low) || Math.abs(high) * 0.1 || 1;
    return [low - margin, high + margin];
  };
  const trainingChart = (figure, run, quantity) => {
    const host = figure.querySelector(".plot"), legend = figure.querySelector(".legend"), caption = figure.querySelector("figcaption");
    const columns = quantity === "compression" ? ["compression"] : [`train_${quantity}`, `validation_${quantity}`];
    const points = (other, column) => other.curve.epoch.map((epoch, index) => ({ x: epoch, y: other.curve[column][index] })).filter((point) => point.y !== null);
    const looks = [{ style: 0, dash: null }, { style: 1, dash: "6 3" }];
    const series = columns.map((column, index) => ({ ...looks[index], label: column.replace("_", " "), points: points(run, column) }));
    const siblings = data.runs.filter((other) => other !== run && other.comparison === run.comparison);
    const shown = siblings.slice(0, CONTEXT).map((other) => ({ faint: true, points: points(other, columns[columns.length - 1]) }));
    legend.replaceChildren(...series.map((one) => element("span", { class: "key" }, svg("svg", { width: 30, height: 12, "aria-hidden": "true" },
      svg("line", { x1: 1, x2: 29, y1: 6, y2: 6, stroke: color(one.style), "stroke-width": 2.2, "stroke-dasharray": one.dash })), one.label)));
    if (!series.some((one) => one.points.length)) {
      host.replaceChildren(element("p", {}, `This run has no ${quantity === "compression" ? "compression" : quantity} of any epoch yet.`));
      caption.textContent = "";
      return;
    }
    const all = [...shown, ...series].flatMap((one) => one.points.map((point) => point.y));
    const [low, high] = bounds(all, false);
    const log = quantity === "compression" || (quantity === "loss" && Math.min(...all) > 0 && Math.max(...all) > 30 * Math.min(...all));
    const last = Math.max(2, ...[...shown, ...series].flatMap((one) => one.points.map((point) => point.x)));
    lineChart(host, {
      label: `Training of ${run.name}: ${columns.join(" and ").replaceAll("_", " ")} by epoch`,
      x: { domain: [1, last], format: compact, label: "epoch", whole: true },
      y: { log, domain: log ? bounds(all, true) : [low, high], format: quantity === "compression" ? (value) => `${compact(value)}x` : compact,
        label: quantity === "accuracy" ? "accuracy, %" : quantity === "loss" ? `loss${log ? " (log)" : ""}` : "compression now, weights up to 0.001 as zeros (log)" },
      series: [...shown, ...series],
      phase: run.curve.finetune === null ? null : { from: run.curve.finetune, label: "fine-tune" },
      says: (one, point) => [`${one.label} ${compact(point.y)}${quantity === "accuracy" ? " %" : quantity === "compression" ? "x" : ""}`, `epoch ${point.x}`],
    });
    const word = columns[columns.length - 1].replace("_", " ");
    const some = siblings.length > CONTEXT ? `${CONTEXT} of the ${siblings.length} other runs` : siblings.length === 1 ? "the other run" : `the ${siblings.length} other runs`;
    caption.textContent = `${run.name}, ${run.status}.${siblings.length ? ` Thin grey: ${word} of ${some} of this comparison.` : ""}`;
  };

  const layerChart = (figure, run) => {
    const host = figure.querySelector(".plot"), caption = figure.querySelector("figcaption");
    if (run.layout === undefined) {
      host.replaceChildren(element("p", {}, "Only a finished run has final weights."));
      caption.textContent = "";
      return;
    }
    const { names, totals } = data.layouts[run.layout];
    const width = Math.max(260, host.clientWidth), row = 38;
    const shares = totals.map((total, index) => total ? run.nonzero[index] / total : 0);
    const most = Math.max(...shares, 1e-9);
    const root = svg("svg", { viewBox: `0 0 ${width} ${names.length * row + 4}`, role: "img", "aria-label": `Weights left in each layer of ${run.name}` });
    const fits = Math.floor((width - 150) / 6.6);
    names.forEach((name, index) => {
      const y = index * row, share = shares[index], zeros = 100 * (1 - share);
      const cut = name.length > fits ? `…${name.slice(1 - fits)}` : name;
      root.append(
        svg("text", { class: "name", x: 0, y: y + 14 }, cut),
        svg("text", { x: width, y: y + 14, "text-anchor": "end" }, `${whole(run.nonzero[index])} of ${whole(totals[index])}`),
        svg("rect", { class: "track", x: 0, y: y + 20, width, height: 8, rx: 4 }),
        svg("rect", { class: "bar", x: 0, y: y + 20, width: share ? Math.max(2, width * share / most) : 0, height: 8, rx: 4 },
          svg("title", {}, `${name}: ${zeros.toFixed(zeros > 99 ? 2 : 1)} % zeros`)));
    });
    host.replaceChildren(root);
    const left = run.nonzero.reduce((sum, each) => sum + each, 0), total = totals.reduce((sum, each) => sum + each, 0);
    caption.textContent = `A full bar is ${compact(100 * most)} % of a layer's weights left, the most of any layer. In all ${whole(left)} of ${whole(total)} are left: ${(100 * (1 - left / total)).toFixed(2)} % zeros.`;
  };

  const histogramChart = (figure, run) => {
    const host = figure.querySelector(".plot"), caption = figure.querySelector("figcaption");
    if (run.counts === undefined) {
      host.replaceChildren(element("p", {}, "Only a finished run has final weights."));
      caption.textContent = "";
      return;
    }
    const edges = data.edges[run.edges], counts = run.counts;
    const cut = run.threshold > 0 ? Math.log10(run.threshold) : null;
    let low = edges[0], high = edges[edges.length - 1];
    if (cut !== null) { low = Math.min(low, cut); high = Math.max(high, cut); }
    const width = Math.max(260, host.clientWidth), height = 300, top = 30, bottom = height - 46;
    const most = Math.max(...counts, 1);
    const y = { log: true, domain: [0.5, most * 1.6] };
    const ticks = logTicks([1, most * 1.6], 5);
    const left = 14 + 7.2 * Math.max(...ticks.map((tick) => whole(tick).length)), right = width - 10;
    const px = scale({ domain: [low, high] }, left, right), py = scale(y, bottom, top);
    const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Histogram of the weights of ${run.name}` });
    for (const tick of ticks) {
      root.append(svg("line", { class: "grid", x1: left, x2: right, y1: py(tick), y2: py(tick) }),
        svg("text", { x: left - 7, y: py(tick) + 4, "text-anchor": "end" }, whole(tick)));
    }
    const gap = px(edges[1]) - px(edges[0]) > 4 ? 1 : 0;
    counts.forEach((count, index) => {
      if (!count) return;
      const from = px(edges[index]), to = px(edges[index + 1]);
      root.append(svg("rect", { class: "bar", x: from, y: py(count), width: Math.max(0.5, to - from - gap), height: bottom - py(count) },
        svg("title", {}, `|x| from ${compact(10 ** edges[index])} to ${compact(10 ** edges[index + 1])}: ${whole(count)} weights`)));
    });
    root.append(svg("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }),
      svg("text", { class: "title", x: 2, y: 14 }, "weights (log)"),
      svg("text", { class: "title", x: right, y: height - 6, "text-anchor": "end" }, "size |x| (log)"));
    for (const tick of linearTicks([low, high], (right - left) / 52).filter(Number.isInteger)) {
      root.append(svg("line", { class: "axis", x1: px(tick), x2: px(tick), y1: bottom, y2: bottom + 5 }),
        svg("text", { x: px(tick), y: bottom + 19, "text-anchor": "middle" }, power(tick)));
    }
    if (cut !== null) {
      const x = px(cut), late = x > (left + right) / 2;
      root.append(svg("line", { class: "mark", x1: x, x2: x, y1: top - 6, y2: bottom }),
        svg("text", { class: "marktext", x: x + (late ? -7 : 7), y: top + 4, "text-anchor": late ? "end" : "start" }, `threshold ${compact(run.threshold)}`));
    }
    host.replaceChildren(root);
    const exact = run.zeros ? `${whole(run.zeros)} weights are exactly zero and not in the plot. ` : "No weight is exactly zero. ";
    caption.textContent = exact + (cut === null ? "The threshold is 0: nothing was cut." : "What lies left of the threshold is set to zero in the final model.");
  };

  const detail = () => {
    const select = document.getElementById("run"), quantity = document.getElementById("quantity");
    const groups = new Map();
    data.runs.forEach((run, index) => {
      const key = `${data.comparisons.length > 1 ? `${run.comparison + 1}. ` : ""}${run.method}`;
      if (!groups.has(key)) groups.set(key, element("optgroup", { label: key }));
      groups.get(key).append(element("option", { value: index }, run.status === "finished" ? run.name : `${run.name} (${run.status})`));
    });
    select.append(...groups.values());
    select.value = String(data.start);
    const figures = ["training", "layers", "histogram"].map((id) => document.getElementById(id));
    const charts = [
      () => trainingChart(figures[0], data.runs[select.value], quantity.value),
      () => layerChart(figures[1], data.runs[select.value]),
      () => histogramChart(figures[2], data.runs[select.value]),
    ];
    const first = data.comparisons[data.runs[data.start].comparison];
    quantity.value = first.metric;
    charts.forEach((chart, index) => responsive(figures[index].querySelector(".plot"), chart));
    select.addEventListener("change", () => charts.forEach((chart) => chart()));
    quantity.addEventListener("change", charts[0]);
  };

  for (const figure of document.querySelectorAll("figure[data-comparison]")) comparisonChart(figure);
  detail();
  window.addEventListener("beforeprint", () => { for (const each of document.querySelectorAll("details")) each.open = true; });
})();
