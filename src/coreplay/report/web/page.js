"use strict";
// Draws the figures, and again whenever a reader chooses another view, another group, or dark mode.
(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const settings = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["lasso2d", "select2d"] };
  const shown = new Map(); // the number of the view that each figure shows

  function theme() {
    const style = getComputedStyle(root);
    const colour = (name) => style.getPropertyValue("--" + name).trim();
    return { "@ink": colour("ink"), "@muted": colour("muted"), "@grid": colour("grid"), "@panel": colour("panel") };
  }

  // Colours that begin with "@" depend on the theme. Only keys that are colours: a text may begin so too.
  function themed(value, colours) {
    if (Array.isArray(value)) {
      return value.map((item) => (item !== null && typeof item === "object" ? themed(item, colours) : item));
    }
    const made = {};
    for (const [key, item] of Object.entries(value)) {
      if (item !== null && typeof item === "object") made[key] = themed(item, colours);
      else made[key] = key === "color" && colours[item] ? colours[item] : item;
    }
    return made;
  }

  function layout(view, colours, width) {
    const axis = {
      automargin: true, gridcolor: colours["@grid"], linecolor: colours["@muted"], zerolinecolor: colours["@muted"],
      tickcolor: colours["@muted"], fixedrange: width < 480,
    };
    return Object.assign({}, view.layout, {
      autosize: true,
      height: width < 480 ? 460 : 440,
      margin: { l: 55, r: 15, t: 32, b: 45 },
      paper_bgcolor: colours["@panel"],
      plot_bgcolor: colours["@panel"],
      font: { color: colours["@ink"], size: 12, family: "system-ui, Liberation Sans, sans-serif" },
      hoverlabel: { align: "left", bgcolor: colours["@panel"], bordercolor: colours["@muted"],
        font: { color: colours["@ink"] } },
      hovermode: "closest",
      dragmode: false, // a finger that scrolls the page shall not zoom
      legend: { orientation: "h", yref: "container", y: 0, yanchor: "bottom", x: 0 },
      xaxis: Object.assign({}, view.layout.xaxis, axis),
      yaxis: Object.assign({}, view.layout.yaxis, axis),
    });
  }

  function draw(figure) {
    const place = document.getElementById(figure.id);
    const view = figure.views[shown.get(figure.id) || 0];
    const colours = theme();
    const made = layout(view, colours, place.clientWidth);
    place.style.height = made.height + "px"; // a responsive plot takes the height of its place
    return Plotly.react(place, themed(view.traces, colours), made, settings);
  }

  function selects(id) {
    return Array.from(document.querySelectorAll("select[data-figure]")).filter((box) => box.dataset.figure === id);
  }

  // The view that has what was chosen just now, and as much as possible of the rest.
  function choose(figure, changed) {
    const boxes = selects(figure.id);
    let best = 0, most = -1;
    figure.views.forEach((view, number) => {
      let agree = 0;
      for (const box of boxes) {
        if (view.choice[box.dataset.key] === box.value) agree += box === changed ? 100 : 1;
      }
      if (agree > most) { most = agree; best = number; }
    });
    shown.set(figure.id, best);
    for (const box of boxes) box.value = figure.views[best].choice[box.dataset.key];
    draw(figure);
  }

  function current() {
    return data.figures.filter((figure) => !document.getElementById(figure.id).closest("[hidden]"));
  }

  function inWindow(figure) {
    const box = document.getElementById(figure.id).getBoundingClientRect();
    return box.bottom > 0 && box.top < window.innerHeight;
  }

  // First what is in the window; then the others, one at a time, so that the page can be read and used meanwhile.
  let turn = 0;
  async function drawAll() {
    const mine = ++turn;
    root.dataset.drawn = "no";
    const figures = current();
    const first = figures.filter(inWindow);
    for (const figure of first) await draw(figure);
    performance.mark("seen");
    for (const figure of figures) {
      if (first.includes(figure)) continue;
      await new Promise((resolve) => setTimeout(resolve));
      if (turn !== mine) return; // another theme or group: all are being drawn again
      await draw(figure);
    }
    root.dataset.drawn = "yes";
    performance.mark("drawn");
  }

  for (const figure of data.figures) {
    for (const box of selects(figure.id)) box.addEventListener("change", () => choose(figure, box));
  }
  for (const box of document.querySelectorAll("select[data-table]")) {
    box.addEventListener("change", () => {
      for (const row of document.querySelectorAll("#" + box.dataset.table + " tbody tr")) {
        row.hidden = box.value !== "" && row.dataset.by !== box.value;
      }
    });
  }
  const chooser = document.getElementById("group");
  if (chooser) {
    chooser.addEventListener("change", () => {
      for (const part of document.querySelectorAll("[data-group]")) part.hidden = part.dataset.group !== chooser.value;
      drawAll();
    });
  }
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  window.matchMedia("print").addEventListener("change", drawAll);
  drawAll();
})();
