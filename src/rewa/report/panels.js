(() => {
  const { data, svg, element, swatch, compact, power, fitted, explore, lineChart, legendButtons, responsive } = charts;
  const CELL = 96, STRIP = 0.3;
  const wide = (text, size) => text.length * size * 0.58;

  // ---- heat map ----------------------------------------------------------------------------------------------------

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

  // ---- lines -------------------------------------------------------------------------------------------------------

  const onAxis = (axis) => ({ ...axis, format: (value) => {
    const exponent = Math.log10(value);
    return axis.log && Number.isInteger(exponent) && (exponent < -2 || exponent > 1) ? power(exponent) : compact(value);
  } });
  const linesPanel = (figure, chart) => {
    const host = figure.querySelector(".plot");
    const draw = () => {
      const { hidden, hovered } = shown;
      lineChart(host, {
        label: `${chart.title}. The numbers are in the table below.`,
        x: onAxis(chart.x),
        y: onAxis(chart.y),
        references: chart.references,
        series: chart.series.filter((one) => !hidden.has(one)).map((one) => ({ ...one, dim: hovered !== null && hovered !== one })),
        says: (one, point) => point.says,
      });
    };
    const shown = legendButtons(figure.querySelector(".legend"), chart.series, { label: "Lines shown", swatchOf: (one) => swatch(one.style, one.dash, one.markers), draw });
    responsive(host, draw);
  };

  for (const figure of document.querySelectorAll("figure[data-panel]")) {
    const chart = data.panels[figure.dataset.panel];
    if (chart.kind === "lines") linesPanel(figure, chart);
    else {
      heatLegend(figure.querySelector(".legend"), chart, figure.dataset.panel);
      responsive(figure.querySelector(".plot"), () => heatChart(figure.querySelector(".plot"), chart));
    }
  }
})();
