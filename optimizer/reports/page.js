"use strict";
(() => {
  const data = JSON.parse(document.getElementById("report-data").textContent);

  /* Nothing to sort by comes last, whichever way the others go. */
  const compare = (a, b, sign) => {
    if (a === null || b === null) return (a === null) - (b === null);
    if (typeof a === "number" && typeof b === "number") return sign * (a - b);
    return sign * String(a).localeCompare(String(b), "en", { numeric: true });
  };

  const makeSortable = (table, keys) => {
    const body = table.tBodies[0];
    const rows = Array.from(body.rows, (row, n) => ({ row, keys: keys[n], n }));
    const headings = Array.from(table.tHead.rows[0].cells);
    headings.forEach((heading, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = heading.textContent;
      heading.textContent = "";
      heading.append(button);
      button.addEventListener("click", () => {
        const falls = heading.getAttribute("aria-sort") === "ascending";
        const sign = falls ? -1 : 1;
        headings.forEach((other) => other.removeAttribute("aria-sort"));
        heading.setAttribute("aria-sort", falls ? "descending" : "ascending");
        rows.sort((a, b) => compare(a.keys[column], b.keys[column], sign) || a.n - b.n);
        body.append(...rows.map((entry) => entry.row));
      });
    });
  };

  const makeFilterable = (block, table, id) => {
    const rows = Array.from(table.tBodies[0].rows);
    const texts = rows.map((row) =>
      Array.from(row.cells, (cell) => cell.textContent).join(" ").toLowerCase());
    const box = document.createElement("div");
    const label = document.createElement("label");
    const input = document.createElement("input");
    const count = document.createElement("output");
    box.className = "filter";
    input.type = "search";
    input.id = `filter-${id}`;
    label.htmlFor = input.id;
    label.textContent = "Filter";
    count.htmlFor = input.id;
    box.append(label, input, count);
    block.querySelector(".bar").append(box);
    const show = () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      rows.forEach((row, n) => {
        row.hidden = !words.every((word) => texts[n].includes(word));
        shown += row.hidden ? 0 : 1;
      });
      count.textContent = `${shown} of ${rows.length} shown`;
    };
    input.addEventListener("input", show);
    show();
  };

  for (const [id, found] of Object.entries(data.tables)) {
    const block = document.getElementById(id);
    const table = block.querySelector("table");
    if (found.keys.length > 1) makeSortable(table, found.keys);
    if (found.keys.length > 3) makeFilterable(block, table, id);
  }

  /* A mark's title beside the pointer, also where it is touched. */
  const tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  document.body.append(tip);
  for (const title of document.querySelectorAll(".chart title")) {
    title.parentNode.dataset.tip = title.textContent;
    title.remove();
  }
  const showTip = (event) => {
    const mark = event.target.closest ? event.target.closest("[data-tip]") : null;
    tip.hidden = mark === null;
    if (mark === null) return;
    tip.textContent = mark.dataset.tip;
    const x = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8);
    const below = event.clientY + 18;
    const fits = below + tip.offsetHeight < window.innerHeight;
    tip.style.left = `${Math.max(8, x)}px`;
    tip.style.top = `${fits ? below : event.clientY - tip.offsetHeight - 12}px`;
  };
  document.addEventListener("pointermove", showTip);
  document.addEventListener("pointerdown", showTip);
  document.addEventListener("scroll", () => { tip.hidden = true; }, true);
})();
