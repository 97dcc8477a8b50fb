"use strict";
// Draws the charts from the data in the page. Colours come from the style sheet, so that dark mode and print have theirs.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const group = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
  const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
  const markColour = {
    engine_lost: "--red", close_failed: "--red", degraded: "--red", holder_expired: "--orange", lease_expired: "--orange",
    settings: "--purple", engine_joined: "--green", leader: "--grey", pool_deleted: "--grey",
  };
  const hidden = new Set(["engine_joined", "lease_expired"]); // in the list only
  const palette = ["--sky", "--purple", "--yellow", "--red"];
  const decisionColour = {
    "admitted at once": "--green", "admitted after waiting": "--blue", "queued: older_waiter": "--grey",
    "queued: capacity_exhausted": "--orange", "queued: pressure_guard": "--purple", "let go: aged": "--red", "let go: degraded": "--yellow",
  };
  const sync = uPlot.sync("time");
  let charts = [];

  // drawMarks puts bands behind the lines of a chart, or lines over them.
  function drawMarks(bands) {
    return (u) => {
      const { ctx, bbox } = u;
      ctx.save();
      ctx.beginPath();
      ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
      ctx.clip();
      for (const m of data.marks) {
        const x = u.valToPos(m.t, "x", true);
        if (m.kind === "degraded") {
          if (!bands) continue;
          const end = m.end === null ? bbox.left + bbox.width : u.valToPos(m.end, "x", true);
          ctx.fillStyle = css("--band");
          ctx.fillRect(x, bbox.top, Math.max(end - x, 2), bbox.height);
          continue;
        }
        if (bands || hidden.has(m.kind)) continue;
        ctx.strokeStyle = css(markColour[m.kind] || "--grey");
        ctx.lineWidth = 1.5 * devicePixelRatio;
        ctx.setLineDash([5 * devicePixelRatio, 4 * devicePixelRatio]);
        ctx.beginPath();
        ctx.moveTo(x, bbox.top);
        ctx.lineTo(x, bbox.top + bbox.height);
        ctx.stroke();
      }
      ctx.restore();
      if (!bands) drawNumbers(u);
    };
  }

  // drawNumbers puts the numbers of the incidents over the marks, as far as there is room.
  function drawNumbers(u) {
    const { ctx, bbox } = u;
    const dpr = devicePixelRatio, size = 13 * dpr;
    let free = -Infinity;
    ctx.save();
    ctx.font = `600 ${10 * dpr}px system-ui, 'DejaVu Sans', sans-serif`;
    ctx.textAlign = "center";
    ctx.textBaseline = "middle";
    data.marks.forEach((m, i) => {
      const x = Math.max(u.valToPos(m.t, "x", true), bbox.left);
      const width = Math.max(size, ctx.measureText(i + 1).width + 6 * dpr);
      if (hidden.has(m.kind) || x > bbox.left + bbox.width || m.t < u.scales.x.min && m.end === null || x - width / 2 < free) return;
      free = x + width / 2 + dpr;
      ctx.fillStyle = css(markColour[m.kind] || "--grey");
      ctx.fillRect(x - width / 2, bbox.top - size - dpr, width, size);
      ctx.fillStyle = css("--bg");
      ctx.fillText(i + 1, x, bbox.top - size / 2 - dpr / 2);
    });
    ctx.restore();
  }

  const axis = (more) => Object.assign({
    stroke: css("--soft"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line"), width: 1, size: 5 },
    font: "12px system-ui, 'DejaVu Sans', sans-serif",
  }, more);

  // clock labels the time axis in the report's zone: the day where it changes, seconds only where they matter.
  const clock = (_, ticks, __, ___, step) => ticks.map((t, i) => {
    const iso = new Date((t + data.offset) * 1e3).toISOString();
    const time = iso.slice(11, step < 1 ? 23 : step < 60 ? 19 : 16);
    const day = iso.slice(0, 10);
    const before = i > 0 && new Date((ticks[i - 1] + data.offset) * 1e3).toISOString().slice(0, 10);
    return day === before ? time : time + "\n" + day;
  });

  function plot(id, series, values, axes, scales) {
    const at = document.getElementById(id);
    const options = {
      width: at.clientWidth || 680, height: 200, padding: [18, axes.length > 1 || at.clientWidth < 640 ? null : 62, null, null],
      tzDate: (t) => uPlot.tzDate(new Date((t + data.offset) * 1e3), "Etc/UTC"),
      cursor: { sync: { key: sync.key }, drag: { x: true, y: false } },
      legend: { live: true },
      scales: Object.assign({ x: { time: true } }, scales),
      axes: [axis({ space: 80, values: clock })].concat(axes),
      series: [{ label: "time", value: "{YYYY}-{MM}-{DD} {HH}:{mm}:{ss}" }].concat(series),
      hooks: { drawClear: [drawMarks(true)], draw: [drawMarks(false)] },
    };
    charts.push([at, new uPlot(options, [data.t].concat(values), at)]);
  }

  const stepped = uPlot.paths.stepped({ align: 1 });
  const line = (label, colour, more) => Object.assign({
    label, stroke: css(colour), width: 1.75, points: { show: false }, value: (_, v) => (v === null || v === undefined ? "–" : group.format(v)),
  }, more);
  const left = (scale, format, more) => axis(Object.assign({ scale, size: 62, values: (_, ticks) => ticks.map(format) }, more));
  const right = (scale, format) => left(scale, format, { side: 1, grid: { show: false } });
  const fromZero = { range: (_, lo, hi) => [0, hi > 0 ? hi * 1.08 : 1] };

  // stack adds each series to those before it; the tallest is drawn first.
  function stack(decisions) {
    const total = new Array(data.t.length).fill(0);
    return decisions.map((d, i) => {
      const sum = d.rate.slice(0, total.length).map((v, j) => (total[j] += v));
      const colour = css(decisionColour[d.name] || palette[i % palette.length]);
      return [{
        label: d.name, stroke: colour, fill: colour, width: 0, points: { show: false }, scale: "y",
        paths: stepped, value: (u, _, __, at) => (at === null || at === undefined ? "–" : group.format(d.rate[at])),
      }, sum];
    }).reverse();
  }

  function draw() {
    for (const [, u] of charts) u.destroy();
    charts = [];
    plot("c-budget", [
      line("reserved", "--blue", { paths: stepped, fill: css("--fill"), scale: "y" }),
      line("ceiling", "--red", { paths: stepped, scale: "y", dash: [8, 4] }),
    ], [data.reserved, data.ceiling], [left("y", (v) => short.format(v))], { y: fromZero });
    plot("c-queue", [
      line("waiting", "--orange", { paths: stepped, scale: "y", fill: css("--fill") }),
      line("oldest wait, s", "--purple", { scale: "s", dash: [4, 3] }),
    ], [data.waiting, data.oldest], [left("y", (v) => short.format(v)), right("s", (v) => short.format(v) + " s")], { y: fromZero, s: fromZero });
    const layers = stack(data.decisions || []);
    plot("c-decisions", layers.map((l) => l[0]), layers.map((l) => l[1]), [left("y", (v) => short.format(v))], { y: fromZero });
    plot("c-pressure", [
      line("pressure, %", "--blue", { scale: "y" }), line("threshold, %", "--red", { paths: stepped, scale: "y", dash: [8, 4] }),
      line("evictable share, %", "--green", { scale: "y", dash: [4, 3] }),
    ], [data.pressure, data.threshold, data.evictable], [left("y", (v) => v + " %")], { y: { range: [0, 105] } });
    plot("c-eviction", [line("evicted tokens/s", "--purple", { scale: "y", fill: css("--fill") })], [data.evictionRate], [left("y", (v) => short.format(v))], { y: fromZero });
  }

  let onPaperNow = false;
  function resize() {
    for (const [at, u] of charts) {
      const w = onPaperNow ? 680 : at.clientWidth;
      if (w > 0 && w !== u.width) u.setSize({ width: w, height: 200 });
    }
  }

  draw();
  new ResizeObserver(resize).observe(document.querySelector("main"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  const paper = matchMedia("print");
  const onPaper = (printing) => {
    for (const d of document.querySelectorAll("details.worst")) d.open = printing || d.open;
    onPaperNow = printing;
    draw();
    resize();
  };
  // Before the page is laid out for paper: charts as wide as the window would have all of it shrunk.
  addEventListener("beforeprint", () => onPaper(true));
  addEventListener("afterprint", () => onPaper(false));
  paper.addEventListener("change", (e) => onPaper(e.matches));
  document.documentElement.dataset.ready = "yes";
})();
