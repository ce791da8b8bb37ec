"use strict";

// Sorting: a click on a header sorts its table by the cells' data-value (a missing one stands last).
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const head = button.closest("th");
    const body = head.closest("table").tBodies[0];
    const text = head.dataset.sort === "text";
    const down = head.ariaSort ? head.ariaSort === "ascending" : !text;
    for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = (row) => row.cells[head.cellIndex].dataset.value;
    const compare = (a, b) => (text ? a.localeCompare(b) : parseFloat(a) - parseFloat(b)) * (down ? -1 : 1);
    const rows = [...body.rows].sort((a, b) => (key(a) === "") - (key(b) === "") || compare(key(a), key(b)));
    body.append(...rows);
  });
}

// Copying: where neither the clipboard nor the old command is to be had, the text is shown to be copied by hand.
async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = document.body.appendChild(document.createElement("textarea"));
    area.value = text;
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}

for (const button of document.querySelectorAll("button[data-copy]")) {
  const name = button.textContent;
  button.addEventListener("click", async () => {
    if (await copied(button.dataset.copy)) {
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = name; }, 1500);
      button.focus();
    } else {
      const area = button.parentNode.querySelector("textarea")
        ?? button.parentNode.appendChild(document.createElement("textarea"));
      area.readOnly = true;
      area.value = button.dataset.copy;
      area.select();
    }
  });
}

// Figures: colours of text, grids and scales follow the style sheet, so that both themes have one source.
const specs = JSON.parse(document.getElementById("specs").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
const views = {};

function config() {
  const style = getComputedStyle(document.documentElement);
  const list = (name) => style.getPropertyValue(name).split(",").map((s) => s.trim());
  const font = getComputedStyle(document.body).fontFamily;
  const text = { labelColor: "currentColor", titleColor: "currentColor", labelFontSize: 11, titleFontSize: 11, titleFontWeight: 500 };
  return {
    background: null,
    font,
    view: { stroke: null },
    range: { diverging: list("--diverging"), ramp: list("--ramp"), heatmap: list("--ramp") },
    axis: { ...text, gridColor: "currentColor", gridOpacity: 0.1, domainColor: "currentColor", domainOpacity: 0.35,
      tickColor: "currentColor", tickOpacity: 0.35, labelOpacity: 0.85, titlePadding: 8 },
    axisBand: { grid: false, ticks: false },
    legend: { ...text, labelLimit: 150, gradientStrokeWidth: 0 },
  };
}

async function draw() {
  for (const [id, spec] of Object.entries(specs)) {
    const place = document.getElementById(id);
    try {
      if (views[id]) views[id].finalize();
      const options = { mode: "vega-lite", renderer: "svg", actions: false, ast: true, config: config(),
        tooltip: { theme: dark.matches ? "dark" : "light" } };
      views[id] = await vegaEmbed(place, spec, options);
    } catch (error) {
      console.error(id, error);
      place.textContent = "This figure could not be drawn.";
    }
  }
  document.documentElement.dataset.drawn = dark.matches ? "dark" : "light";
}

let drawing = draw();
dark.addEventListener("change", () => { drawing = drawing.then(draw); });
