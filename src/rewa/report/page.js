(() => {
  const { data, svg, element, dash, swatch, compact, power, whole, linearTicks, logTicks, scale, lineChart, legendButtons, responsive, stroke } = charts;

  // ---- metric against compression ----------------------------------------------------------------------------------

  const comparisonChart = (figure) => {
    const chart = data.comparisons[figure.dataset.comparison];
    const host = figure.querySelector(".plot"), legend = figure.querySelector(".legend");
    let zoom = "top";
    const percent = chart.metric === "accuracy" ? " %" : "";
    const series = chart.series.map((one) => ({ ...one, points: one.points.map((point) => ({ ...point, low: point.y - (point.sd || 0), high: point.y + (point.sd || 0) })) }));
    const furthest = Math.max(2, ...chart.series.flatMap((one) => one.points.map((point) => point.x)));
    const draw = () => {
      const visible = series.filter((one) => !shown.hidden.has(one)), hovered = shown.hovered;
      lineChart(host, {
        label: `${chart.title}. The numbers are in the table below.`,
        x: { log: true, domain: [1, furthest], format: (value) => `${compact(value)}x`, label: "compression of the prunable weights (all / nonzero), at least", short: "compression (all / nonzero), at least" },
        y: { domain: chart[zoom], format: compact, label: chart.unit },
        series: visible.map((one) => ({ ...one, markers: true, dash: dash(one.style), muted: one.muted && hovered !== one, band: visible.length <= data.bands || one === hovered, dim: hovered !== null && hovered !== one })),
        says: (one, point) => [
          one.label,
          `${chart.unit.replace(", %", "")} ${point.text}${percent}`,
          `compressed at least ${compact(point.x)}x`,
          `chosen: ${point.prunable} of prunable weights, ${point.model} of the model`,
          `n = ${point.n} seed${point.n > 1 ? "s" : ""}`,
          `strength: ${point.chosen.slice(0, 8).map(([seed, strength]) => `${strength === null ? "–" : compact(strength)} (seed ${seed})`).join(", ")}${point.chosen.length > 8 ? ", …" : ""}`,
        ],
      });
      // A line that has no point in the range has a legend entry all the same, which must say why.
      for (const [one, button] of shown.buttons || []) {
        const [low, high] = chart[zoom], out = one.points.every((point) => point.y < low || point.y > high);
        button.classList.toggle("out", out);
        button.lastChild.textContent = out ? `${one.label} (${one.points[0].y < low ? "below" : "above"} the range)` : one.label;
      }
    };
    const shown = legendButtons(legend, series, { label: "Methods shown", swatchOf: (one) => swatch(one.style, dash(one.style), true, stroke(one)), draw });
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
    legend.replaceChildren(...series.filter((one) => one.points.length).map((one) => element("span", { class: "key" }, swatch(one.style, one.dash, false), one.label)));
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
})();
