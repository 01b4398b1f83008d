// The page at work: plots follow light and dark, tables sort, pictures can be taken away. Nothing is fetched.
"use strict";
(() => {
  const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const config = { responsive: true, displaylogo: false, displayModeBar: false };

  /** The layout of a figure in given colours and a given width: the legend below, with as much room as it needs. */
  function dressed({ data, layout }, width, ink, line, paper) {
    const worn = structuredClone(layout);
    worn.font = { ...worn.font, color: ink };
    worn.hoverlabel = { ...worn.hoverlabel, bgcolor: paper, bordercolor: line, font: { color: ink } };
    for (const name of Object.keys(worn).filter(name => /^[xy]axis/.test(name)))
      worn[name] = { ...worn[name], gridcolor: line, zerolinecolor: line, linecolor: line, tickcolor: line };
    const phone = width < 640, margin = { ...worn.margin, ...(phone && { l: 48, r: 8 }) };
    const axes = Object.keys(worn).filter(name => /^[xy]axis/.test(name));
    for (const name of new Set(["xaxis", "yaxis", ...axes]))
      worn[name] = { ...worn[name], title: { ...worn[name]?.title, standoff: 12 }, automargin: true };
    for (const axis of axes.filter(name => name[0] === "x").map(name => worn[name]))
      if (phone && axis.tickvals?.length > 4)
        for (const ticks of ["tickvals", "ticktext"]) axis[ticks] = axis[ticks].filter((_, i) => i % 2 === 0);
    let below = 60;
    if (worn.showlegend) {
      const named = data.filter(trace => trace.showlegend !== false).map(trace => trace.name ?? "");
      const entry = Math.min(width - margin.l - margin.r, 60 + 7 * Math.max(...named.map(name => name.length), 6));
      const columns = Math.max(1, Math.floor((width - margin.l - margin.r) / entry));
      below += 22 * Math.ceil(named.length / columns);
      worn.legend = { orientation: "h", x: 0, xref: "paper", y: 0, yref: "container", yanchor: "bottom", entrywidth: entry - 40 };
    }
    return { ...worn, margin: { ...margin, b: below }, height: (worn.height ?? 340) + below };
  }

  function draw(box) {
    const figure = JSON.parse(document.getElementById(box.dataset.figure).textContent);
    const layout = () => dressed(figure, box.clientWidth, colour("--ink"), colour("--line"), colour("--paper"));
    Plotly.newPlot(box, figure.data, layout(), config);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
      Plotly.react(box, figure.data, layout(), config));
    document.querySelector(`button[data-png="${box.id}"]`)?.addEventListener("click", () => {
      const light = { ...dressed(figure, 1000, "#1b1f24", "#d7dce1", "#ffffff"), paper_bgcolor: "#ffffff", plot_bgcolor: "#ffffff" };
      Plotly.downloadImage({ data: figure.data, layout: light },
        { format: "png", width: 1000, height: light.height, scale: 2, filename: box.id });
    });
  }

  /** Numbers by size, words by the alphabet; what has no value goes last either way. */
  function sort(table, column, descending) {
    const value = row => row.cells[column].dataset.value ?? row.cells[column].textContent.trim();
    const compare = (a, b) => {
      const [one, other] = [value(a), value(b)];
      if (one === "" || other === "") return (one === "") - (other === "");
      const order = isNaN(one) || isNaN(other) ? one.localeCompare(other, undefined, { numeric: true }) : one - other;
      return descending ? -order : order;
    };
    table.tBodies[0].append(...[...table.tBodies[0].rows].sort(compare));
    [...table.tHead.rows[0].cells].forEach((head, i) => {
      if (i === column) head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
  }

  for (const table of document.querySelectorAll("table.sortable"))
    [...table.tHead.rows[0].cells].forEach((head, column) =>
      head.querySelector("button")?.addEventListener("click", () =>
        sort(table, column, head.getAttribute("aria-sort") === "ascending")));
  for (const box of document.querySelectorAll(".plot")) draw(box);
})();
