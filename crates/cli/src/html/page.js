"use strict";
// A click on the head of a column sorts its table; a second one turns it round. The order stands
// in the address, so that a page can be shared as it is seen.
const tables = [...document.querySelectorAll("table.sortable")];

function value(body, column) {
  const cell = body.rows[0].cells[column];
  const key = cell.dataset.key;
  return key === undefined ? null : Number(key);
}

function sort(table, column, descending) {
  const sign = descending ? -1 : 1;
  const bodies = [...table.tBodies];
  const text = (body) => body.rows[0].cells[column].textContent;
  const numbers = bodies.some((body) => value(body, column) !== null);
  bodies.sort((one, two) => {
    if (!numbers) return sign * text(one).localeCompare(text(two), "en", { numeric: true });
    const [a, b] = [value(one, column), value(two, column)];
    // What was not measured stands at the end, whichever way.
    if (a === null || b === null) return (a === null) - (b === null);
    return sign * (a - b);
  });
  table.append(...bodies);
  [...table.tHead.rows[0].cells].forEach((head, at) => {
    if (at === column) head.setAttribute("aria-sort", descending ? "descending" : "ascending");
    else head.removeAttribute("aria-sort");
  });
}

tables.forEach((table, number) => {
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const first = head.classList.contains("number") ? "descending" : "ascending";
      const now = head.getAttribute("aria-sort");
      const way = now === null ? first : now === "ascending" ? "descending" : "ascending";
      sort(table, column, way === "descending");
      try { history.replaceState(null, "", `#sort=${number}.${column}.${way}`); } catch { /* a page from a file may not */ }
    });
  });
});

const asked = /^#sort=(\d+)\.(\d+)\.(ascending|descending)$/.exec(location.hash);
if (asked) {
  const table = tables[Number(asked[1])];
  const column = Number(asked[2]);
  if (table && column < table.tHead.rows[0].cells.length) sort(table, column, asked[3] === "descending");
}
