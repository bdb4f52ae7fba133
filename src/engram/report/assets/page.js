"use strict";
// Folds that open for a link, sorting and hiding rows, values under the pointer, and, where the page is served, a look
// for news. Nothing here is needed to read the page.

// A link may lead into a fold that is closed: open it and all around it
function reveal() {
  const target = document.querySelector(":target");
  if (!target) return;
  for (let fold = target.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
  target.scrollIntoView();
}
addEventListener("load", () => {
  // a page that is loaded again stays where it was
  if (performance.getEntriesByType("navigation")[0].type !== "reload") reveal();
});
addEventListener("hashchange", reveal);
for (const link of document.querySelectorAll('a[href^="#"]'))
  link.addEventListener("click", () => setTimeout(reveal)); // the same link once more changes no address

const folds = [...document.querySelectorAll("main details")];
const everything = document.getElementById("open-all");
everything.hidden = false;
everything.addEventListener("click", () => {
  const open = folds.some((fold) => !fold.open);
  for (const fold of folds) fold.open = open;
  everything.textContent = open ? "Close all sections" : "Open all sections";
});

// For browsers whose style sheets cannot open a fold on paper
let closed = [];
addEventListener("beforeprint", () => {
  closed = folds.filter((fold) => !fold.open);
  for (const fold of closed) fold.open = true;
});
addEventListener("afterprint", () => { for (const fold of closed) fold.open = false; });

for (const table of document.querySelectorAll("table")) {
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => sort(table, head, column));
  });
}

function sort(table, head, column) {
  const numeric = head.classList.contains("number");
  const first = numeric ? "descending" : "ascending";
  const now = head.getAttribute("aria-sort");
  const direction = !now ? first : now === "ascending" ? "descending" : "ascending";
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", direction);
  const sign = direction === "ascending" ? 1 : -1;
  const number = (row) => parseFloat(row.cells[column].dataset.number ?? "NaN");
  const text = (row) => row.cells[column].textContent;
  for (const body of table.tBodies) {
    const rows = [...body.rows].filter((row) => !row.classList.contains("section"));
    rows.sort((a, b) => {
      const x = number(a), y = number(b);
      if (isNaN(x) && isNaN(y)) return sign * text(a).localeCompare(text(b), "en", { numeric: true });
      if (isNaN(x) || isNaN(y)) return isNaN(x) ? 1 : -1; // what is not known stands last
      return sign * (x - y);
    });
    body.append(...rows);
  }
}

const methods = new Set([...document.querySelectorAll("tr[data-method]")].map((row) => row.dataset.method));
if (methods.size > 1) {
  const methodsFold = document.getElementById("methods");
  const box = methodsFold.querySelector("div");
  for (const method of methods) {
    const label = document.createElement("label");
    const tick = document.createElement("input");
    tick.type = "checkbox";
    tick.checked = true;
    tick.addEventListener("change", () => {
      for (const row of document.querySelectorAll("tr[data-method]"))
        if (row.dataset.method === method) row.hidden = !tick.checked;
    });
    label.append(tick, " ", method);
    box.append(label);
  }
  methodsFold.hidden = false;
}

// Vega writes the values of a mark into its aria-label: show the nearest one's
const tip = document.getElementById("tip");
for (const plot of document.querySelectorAll(".plot")) {
  const marks = [...plot.querySelectorAll('[role="graphics-symbol"][aria-label]')].filter(
    (mark) => !mark.closest(".role-axis, .role-legend, .role-title")
  );
  if (!marks.length) continue;
  const centre = (mark) => {
    const box = mark.getBoundingClientRect();
    return [box.left + box.width / 2, box.top + box.height / 2];
  };
  const show = (mark, x, y) => {
    tip.textContent = mark.getAttribute("aria-label");
    tip.hidden = false;
    tip.style.left = Math.max(4, Math.min(x + 14, innerWidth - tip.offsetWidth - 4)) + "px";
    tip.style.top = Math.max(4, y - tip.offsetHeight - 12) + "px";
  };
  const hide = () => { tip.hidden = true; };
  plot.addEventListener("pointermove", (event) => {
    let nearest = event.target.closest('[role="graphics-symbol"][aria-label]');
    if (!marks.includes(nearest)) {
      let least = 24;
      nearest = null;
      for (const mark of marks) {
        const [x, y] = centre(mark);
        const away = Math.hypot(x - event.clientX, y - event.clientY);
        if (away < least) [nearest, least] = [mark, away];
      }
    }
    if (nearest) show(nearest, event.clientX, event.clientY);
    else hide();
  });
  plot.addEventListener("pointerleave", hide);
  plot.addEventListener("blur", hide);
  plot.tabIndex = 0;
  plot.setAttribute("aria-label", "Figure; left and right arrow keys read its values");
  plot.setAttribute("role", "group");
  let at = -1;
  plot.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    at = (at + step + marks.length) % marks.length;
    show(marks[at], ...centre(marks[at]));
  });
}

// A page that is loaded anew for news keeps what the reader has opened
const version = document.documentElement.dataset.version;
if (version) {
  const kept = sessionStorage.getItem("open");
  if (kept) for (const fold of folds) fold.open = JSON.parse(kept).includes(fold.id);
  addEventListener("pagehide", () => {
    sessionStorage.setItem("open", JSON.stringify(folds.filter((fold) => fold.open).map((fold) => fold.id)));
  });
  setInterval(async () => {
    try {
      const answer = await fetch("version", { cache: "no-store" });
      if (answer.ok && (await answer.text()) !== version) location.reload();
    } catch {
      // the server has ended: what is shown stays
    }
  }, 3000);
}
