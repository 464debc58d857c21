"use strict";
// Sorting of tables, edges of a box, opening of what a link points to, and copying. The page can be
// read without.
for (const root of document.querySelectorAll("main.thunder-fuser")) {
  for (const button of root.querySelectorAll("th button")) {
    button.addEventListener("click", () => {
      const head = button.parentElement, row = head.parentElement;
      const body = head.closest("table").tBodies[0], k = [...row.children].indexOf(head);
      const up = head.getAttribute("aria-sort") === "descending";
      for (const other of row.children) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const value = (line) => {
        const cell = line.children[k];
        return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
      };
      const lines = [...body.rows].sort((a, b) => {
        const x = value(a), y = value(b);
        return typeof x === "number" ? y - x : String(x).localeCompare(String(y));
      });
      body.append(...(up ? lines.reverse() : lines));
    });
  }
  for (const button of root.querySelectorAll("button.copy")) {
    button.hidden = false;
    button.addEventListener("click", () => {
      const pre = button.nextElementSibling, done = () => { button.textContent = "copied"; };
      // Select it, so that it can be copied by hand where a browser lets no page do it.
      getSelection().selectAllChildren(pre);
      if (navigator.clipboard) navigator.clipboard.writeText(pre.textContent).then(done, () => {});
      else if (document.execCommand("copy")) done();
    });
  }
  // A box shows its edges, and what they lead to.
  for (const graph of root.querySelectorAll("svg.graph")) {
    const edges = [...graph.querySelectorAll(".edge")];
    for (const box of graph.querySelectorAll("a.step")) {
      const light = (on) => {
        graph.classList.toggle("lit", on);
        for (const edge of edges)
          edge.classList.toggle("on", on && edge.dataset.ends.split(" ").includes(box.dataset.step));
      };
      for (const event of ["mouseenter", "focus"]) box.addEventListener(event, () => light(true));
      for (const event of ["mouseleave", "blur"]) box.addEventListener(event, () => light(false));
    }
  }
}
function openTarget() {
  const target = location.hash ? document.getElementById(location.hash.slice(1)) : null;
  for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
  target?.scrollIntoView();
}
addEventListener("hashchange", openTarget);
openTarget();
