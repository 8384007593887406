// On a phone each row is a block, in which every cell is named after its column.
document.addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll("article table.docutils")) {
    const columns = [...table.querySelectorAll("thead th")].map((column) => column.textContent.trim());
    for (const row of table.querySelectorAll("tbody tr")) {
      [...row.cells].forEach((cell, number) => (cell.dataset.column = columns[number] ?? ""));
    }
  }
});
