// Puts each chart into its place on the page, with its legend, its views and the list of what can be picked.
(() => {
  const { data, element, swatch, compact, power, lineChart, heatChart, heatLegend, barChart, histogramChart } = charts;

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
  const legendButtons = (legend, series, draw) => {
    const hidden = new Set(), buttons = new Map();
    let every = null;
    const state = { hidden, buttons, hovered: null };
    const update = () => {
      buttons.forEach((button, one) => button.setAttribute("aria-pressed", String(!hidden.has(one))));
      if (every) every.textContent = hidden.size ? "show all" : "hide all";
      draw();
    };
    for (const one of series) {
      const button = element("button", { type: "button", "aria-pressed": "true", class: one.muted ? "muted" : "" }, swatch(one), one.label);
      button.addEventListener("click", () => { if (!hidden.delete(one)) hidden.add(one); update(); });
      const hover = (value) => () => { state.hovered = value; draw(); };
      button.addEventListener("pointerenter", hover(one));
      button.addEventListener("pointerleave", hover(null));
      buttons.set(one, button);
      legend.append(button);
    }
    legend.setAttribute("role", "group");
    legend.setAttribute("aria-label", "Lines shown");
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

  // ---- lines -------------------------------------------------------------------------------------------------------

  const onAxis = (axis) => ({ ...axis, format: (value) => {
    const exponent = Math.log10(value);
    const shown = axis.log && !axis.unit && Number.isInteger(exponent) && (exponent < -2 || exponent > 1) ? power(exponent) : compact(value);
    return shown + (axis.unit || "");
  } });
  // What many charts share is written once.
  const unfold = (chart) => chart.kind !== "lines" ? chart : { ...chart, x: data.shared[chart.x], views: data.shared[chart.views], series: chart.series.map((one) => (
    { ...data.shared[one.look], points: one.points ?? data.shared[one.xs].map((x, index) => ({ x, y: one.ys[index] })) })) };
  // Four digits, as Python writes them.
  const digits = (value) => Math.abs(value) < 1e-4 && value !== 0 ? value.toExponential(3).replace(/\.?0+e/, "e") : String(Number(value.toPrecision(4)));
  const drawn = (one) => one.points.some((point) => point.y !== null);
  const viewOf = (chart, name) => chart.views.find((view) => view.name === name) ?? chart.views[0];
  const linesOf = (chart, view) => chart.series.filter((one) => view.series === null || view.series.includes(one.label));
  const drawLines = (host, chart, view, series) => lineChart(host, {
    label: `${chart.title}. The numbers are in the table below.`,
    x: onAxis(chart.x), y: onAxis(view.y), references: chart.references, shade: chart.shade, series,
    says: (one, point) => point.says ?? [one.label, `${chart.x.label}: ${digits(point.x)}`, `${view.y.label}: ${digits(point.y)}`],
  });
  // A button for each view; told(name) when another one is taken.
  const viewButtons = (figure, chart, told) => {
    const group = element("div", { class: "zoom", role: "group", "aria-label": chart.viewsLabel });
    chart.views.forEach((view, index) => {
      const button = element("button", { type: "button", "aria-pressed": String(index === 0) }, view.name);
      button.addEventListener("click", () => {
        for (const other of group.children) other.setAttribute("aria-pressed", String(other === button));
        told(view.name);
      });
      group.append(button);
    });
    figure.querySelector(".plot").before(element("div", { class: "bar-top" }, element("span", { class: "zoomlabel" }, chart.viewsLabel), group));
  };
  const linesPanel = (figure, chart) => {
    const host = figure.querySelector(".plot");
    const series = chart.series.filter(drawn);
    let name = chart.views[0].name;
    const draw = () => {
      const { hidden, hovered } = shown, view = viewOf(chart, name);
      const visible = linesOf({ series }, view).filter((one) => !hidden.has(one));
      drawLines(host, chart, view, visible.map((one) => ({ ...one, muted: one.muted && hovered !== one, dim: hovered !== null && hovered !== one })));
      // A line that has no point in the range has a legend entry all the same, which must say why.
      for (const [one, button] of shown.buttons) {
        const [low, high] = view.y.domain, out = one.points.every((point) => point.y === null || point.y < low || point.y > high);
        button.classList.toggle("out", out);
        button.lastChild.textContent = out ? `${one.label} (${one.points[0].y < low ? "below" : "above"} the range)` : one.label;
      }
    };
    const shown = legendButtons(figure.querySelector(".legend"), series, draw);
    if (chart.views.length > 1) viewButtons(figure, chart, (chosen) => { name = chosen; draw(); });
    responsive(host, draw);
  };

  // ---- what is picked ----------------------------------------------------------------------------------------------

  const CONTEXT = 60;  // lines of other options behind those of the one that is picked
  const pick = (box) => {
    const { start, label, ...given } = data.picks[box.dataset.pick], select = box.querySelector("select");
    const figures = [...box.querySelectorAll("figure")], names = figures.map(() => null), groups = new Map();
    const options = given.options.map((option) => ({ ...option, panels: option.panels.map(unfold) }));
    options.forEach((option, index) => {
      if (!groups.has(option.group)) groups.set(option.group, element("optgroup", { label: option.group }));
      groups.get(option.group).append(element("option", { value: index }, option.name));
    });
    select.append(...groups.values());
    select.value = String(start);
    const draw = (place) => {
      const option = options[select.value], chart = option.panels[place], figure = figures[place];
      const host = figure.querySelector(".plot"), legend = figure.querySelector(".legend");
      figure.querySelector("h3").textContent = chart.title;
      figure.querySelector("figcaption").textContent = chart.kind === "text" ? "" : chart.caption;
      legend.replaceChildren();
      if (chart.kind === "bars") barChart(host, chart);
      else if (chart.kind === "histogram") histogramChart(host, chart);
      else if (chart.kind === "lines") pickedLines(host, legend, chart, option, place);
      else host.replaceChildren(element("p", {}, chart.caption));
    };
    const pickedLines = (host, legend, chart, option, place) => {
      const view = viewOf(chart, names[place]), series = linesOf(chart, view).filter(drawn);
      if (!series.length) return host.replaceChildren(element("p", {}, `This ${label} has no ${view.name} of any ${chart.x.label} yet.`));
      const others = options.filter((other) => other !== option && other.among === option.among).map((other) => other.panels[place]).filter((other) => other.kind === "lines");
      const behind = others.slice(0, CONTEXT).map((other) => linesOf(other, viewOf(other, view.name)).at(-1)).filter((one) => one)
        .map((one) => ({ ...one, faint: true, dash: null }));
      legend.replaceChildren(...series.map((one) => element("span", { class: "key" }, swatch(one), one.label)));
      drawLines(host, chart, view, [...behind, ...series]);
    };
    figures.forEach((figure, place) => {
      const first = options[start].panels[place];
      if (first.kind === "lines" && first.views.length > 1) {
        names[place] = first.views[0].name;
        viewButtons(figure, first, (chosen) => { names[place] = chosen; draw(place); });
      }
      responsive(figure.querySelector(".plot"), () => draw(place));
    });
    select.addEventListener("change", () => figures.forEach((_, place) => draw(place)));
  };

  // ---- the page ----------------------------------------------------------------------------------------------------

  for (const figure of document.querySelectorAll("figure[data-panel]")) {
    const chart = unfold(data.panels[figure.dataset.panel]), host = figure.querySelector(".plot");
    if (chart.kind === "lines") linesPanel(figure, chart);
    else if (chart.kind === "bars") responsive(host, () => barChart(host, chart));
    else if (chart.kind === "histogram") responsive(host, () => histogramChart(host, chart));
    else {
      heatLegend(figure.querySelector(".legend"), chart, figure.dataset.panel);
      responsive(host, () => heatChart(host, chart));
    }
  }
  for (const box of document.querySelectorAll("[data-pick]")) pick(box);

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
})();
