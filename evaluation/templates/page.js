// What a reader may do with a page: sort tables by a column, filter rows, copy them as CSV, point at figures, and leave
// methods out of both; and on the page of a run at work, how long it has been silent. Without scripts a page shows the same tables and figures. Nothing is fetched, sent or stored.
"use strict";

const MANY_ROWS = 8; // from so many rows on a table has a filter
const NOTHING = "–";

// A column of each cell of a row: a cell may span several.
function listCells(row) {
  return [...row.cells].flatMap((cell) => Array(cell.colSpan).fill(cell));
}

const UNITS = { B: 1, kB: 1e3, MB: 1e6, GB: 1e9, s: 1, min: 60, h: 3600 };
const UNBOUNDED = "no formal guarantee";

// A text with plain signs: 1 234 · −0.5 become 1234 · -0.5.
function writePlainly(text) {
  return text.replaceAll("\u2212", "-").replace(/(\d)[\u202f\u00a0](?=\d{3})/g, "$1");
}

// The number that a text begins with, in its unit; NaN if there is none, or if it is a part of a name or a date. 1 234 · −0.5 · 95 % · 2 × gap · 3 min 05 s · 1.2 MB
function readNumber(text) {
  if (text.startsWith("∞") || text.startsWith(UNBOUNDED)) return Infinity;
  const plain = writePlainly(text).replace(/^[<>≈=\s]+/, "");
  const parts = [...plain.matchAll(/([\d.]+)\s*(GB|MB|kB|B|min|s|h)(?=\s|$)/g)];
  if (parts.length && parts[0].index === 0) {
    return parts.reduce((sum, [, number, unit]) => sum + Number(number) * UNITS[unit], 0);
  }
  const match = plain.match(/^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?(?![\w-])/i);
  return match ? Number(match[0]) : NaN;
}

// What a cell is sorted by: its value, or its first line.
function readCell(cell) {
  if (!cell) return "";
  const value = cell.querySelector(".value") ?? [...cell.childNodes].find((node) => node.textContent.trim());
  return value ? value.textContent.trim() : "";
}

// Rows in the order of a column. Cells without a value come last; the order of equal ones stays.
function sortRows(rows, column, direction) {
  const keys = new Map(rows.map((row) => [row, readCell(listCells(row)[column])]));
  const filled = rows.filter((row) => !["", NOTHING].includes(keys.get(row)));
  const numeric = filled.every((row) => !Number.isNaN(readNumber(keys.get(row))));
  const compare = numeric
    ? (a, b) => readNumber(keys.get(a)) - readNumber(keys.get(b))
    : (a, b) => keys.get(a).localeCompare(keys.get(b), undefined, { numeric: true });
  filled.sort((a, b) => direction * compare(a, b));
  return [...filled, ...rows.filter((row) => !filled.includes(row))];
}

// Each click on a column's name sorts upwards, then downwards, then as the page came.
function addSorting(table, body) {
  const original = [...body.rows];
  const heads = listCells(table.tHead.rows[table.tHead.rows.length - 1]);
  for (const head of new Set(heads)) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "sort";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const next = { ascending: "descending", descending: "none" }[head.ariaSort] ?? "ascending";
      for (const other of heads) other.ariaSort = null;
      head.ariaSort = next;
      const direction = next === "descending" ? -1 : 1;
      body.append(...(next === "none" ? original : sortRows(original, heads.indexOf(head), direction)));
    });
  }
}

// Words of a cell, in one line.
function readWords(cell) {
  return writePlainly(cell.innerText).replace(/\s+/g, " ").trim();
}

// A text that a spreadsheet would compute is kept a text.
function guard(text) {
  const isNumber = /^[+-]?[\d.]+(e[+-]?\d+)?( ?%)?$/i.test(text);
  return /^[=@\t\r+-]/.test(text) && !isNumber ? `'${text}` : text;
}

// A cell of a CSV file.
function quote(text) {
  return /[",\t\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

// Whether a row or a cell is shown, be its table folded or not.
function isShown(element) {
  return getComputedStyle(element).display !== "none";
}

// The texts of a table as it is shown, hidden rows left out.
function listTexts(table) {
  const rows = [...table.rows].filter(isShown);
  return rows.map((row) => listCells(row).filter(isShown).map((cell) => guard(readWords(cell))));
}

function writeCsv(table) {
  return listTexts(table).map((row) => row.map(quote).join(",")).join("\r\n");
}

const HAS_COMMA = new Intl.NumberFormat().format(0.5).includes(","); // the browser's language writes 0,5
const DECIMAL = /(?<![\w.,])([+-]?\d+)\.(\d+(?:e[+-]?\d+)?)(?!\w|\.\d)/gi;

// For pasting into a spreadsheet whose language writes 0,5: it takes columns by tabs, and 0.5 for a text or a date.
function writeWithCommas(table) {
  return listTexts(table).map((row) => row.map((text) => quote(text.replace(DECIMAL, "$1,$2"))).join("\t")).join("\r\n");
}

async function copyText(text) {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
    return;
  }
  const area = document.createElement("textarea"); // a page that a server shows without encryption has no clipboard
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

// A button that copies what `write` returns, and says whether it did.
function makeCopyButton(words, name, write) {
  const copy = document.createElement("button");
  copy.type = "button";
  copy.textContent = words;
  copy.ariaLabel = `${words}: ${name}`;
  copy.addEventListener("click", async () => {
    let outcome = "copied";
    try {
      await copyText(write());
    } catch {
      outcome = "not copied: the browser refuses";
    }
    copy.textContent = outcome;
    setTimeout(() => (copy.textContent = words), 1500);
  });
  return copy;
}

function addTools(table, body) {
  const tools = document.createElement("div");
  tools.className = "tools";
  const name = table.caption?.innerText.split(/[.:]/)[0] ?? "table";
  if (body.rows.length >= MANY_ROWS) {
    const filter = document.createElement("input");
    filter.type = "search";
    filter.placeholder = "filter";
    filter.ariaLabel = `filter rows: ${name}`;
    filter.addEventListener("input", () => {
      const wanted = filter.value.toLowerCase();
      for (const row of body.rows) row.classList.toggle("unmatched", !row.textContent.toLowerCase().includes(wanted));
    });
    tools.append(filter);
  }
  tools.append(makeCopyButton("copy as CSV", name, () => writeCsv(table)));
  if (HAS_COMMA) tools.append(makeCopyButton("copy with 0,5", name, () => writeWithCommas(table)));
  (table.closest(".scroll") ?? table).before(tools);
}

// Hides the columns of runs that are not ticked, and settings on which all others agree.
function hideRuns() {
  for (const cell of document.querySelectorAll("[data-run]")) cell.classList.toggle("left-out", unticked.has(cell.dataset.run));
  for (const row of document.querySelectorAll("tr:has([data-run])")) {
    const shown = [...row.cells].filter((cell) => cell.dataset.run && !unticked.has(cell.dataset.run));
    const isSame = unticked.size > 0 && new Set(shown.map((cell) => cell.textContent)).size < 2;
    row.classList.toggle("same", isSame && row.closest("thead") === null);
  }
}

const WORDS = "h2, h3, h4, summary, caption, figcaption, .panel > p, .note, .keys, .key-list, .tools"; // beside what a box is for

// What is of a method that is left out goes, and every box in which nothing but words remains. In keys its name is struck out.
function hideMethods() {
  const isOut = (element) => element.classList.contains("left-out");
  for (const part of document.querySelectorAll("[data-method]")) part.classList.toggle("left-out", leftOut.has(part.dataset.method));
  for (const entry of document.querySelectorAll("[data-key]")) entry.classList.toggle("struck", leftOut.has(entry.dataset.key));
  for (const whole of document.querySelectorAll("main :is(svg, tbody, table, .sheet):not([data-method])")) {
    const parts = [...whole.querySelectorAll("[data-method]")];
    whole.classList.toggle("left-out", parts.length > 0 && parts.every(isOut));
  }
  for (const box of [...document.querySelectorAll(":is(.panel, .panels, figure, .picture, .pictures, .scroll, details, section):not([data-method])")].reverse()) {
    const parts = [...box.children].filter((child) => !child.matches(WORDS));
    box.classList.toggle("left-out", parts.length > 0 && parts.every(isOut)); // from the innermost one outwards
  }
  for (const link of document.querySelectorAll("nav a")) {
    const section = document.getElementById(link.hash.slice(1))?.closest("section");
    link.classList.toggle("left-out", section != null && isOut(section)); // it would lead nowhere
  }
  for (const sheet of document.querySelectorAll(".sheet.rows")) {
    const first = [...sheet.children].slice(0, sheet.dataset.columns);
    sheet.style.setProperty("--shown", first.filter((tile) => !isOut(tile)).length);
  }
}

const leftOut = new Set(); // methods
const unticked = new Set(); // runs, of those whose settings are compared

// One switch for each run whose settings are compared: of two runs only the settings stay in which these two differ.
function addRuns() {
  const heads = [...document.querySelectorAll("th[data-run]")];
  if (heads.length < 3) return;
  const box = document.createElement("fieldset");
  box.className = "methods";
  box.append(Object.assign(document.createElement("legend"), { textContent: "Runs compared" }));
  for (const head of heads) {
    const label = document.createElement("label");
    const tick = Object.assign(document.createElement("input"), { type: "checkbox", checked: true });
    tick.addEventListener("change", () => {
      unticked[tick.checked ? "delete" : "add"](head.dataset.run);
      hideRuns();
    });
    label.append(tick, head.textContent);
    box.append(label);
  }
  heads[0].closest(".scroll").before(box);
}

// One switch for each method of which something is shown.
function addMethods() {
  const methods = [...new Set([...document.querySelectorAll("[data-method]")].map((part) => part.dataset.method))];
  const place = document.querySelector("main");
  if (methods.length < 2 || !place) return;
  const box = document.createElement("fieldset");
  box.className = "methods";
  box.append(Object.assign(document.createElement("legend"), { textContent: "Methods shown" }));
  for (const method of methods) {
    const label = document.createElement("label");
    const tick = Object.assign(document.createElement("input"), { type: "checkbox", checked: true, value: method });
    tick.addEventListener("change", () => {
      leftOut[tick.checked ? "delete" : "add"](method);
      hideMethods();
    });
    const keys = [...document.querySelectorAll("[data-key]")].filter((entry) => entry.dataset.key === method);
    for (const entry of keys) entry.addEventListener("click", () => tick.click());
    for (const entry of keys) entry.classList.add("switch");
    const sample = keys[0]?.querySelector("svg").cloneNode(true);
    label.append(tick, ...(sample ? [sample] : []), method);
    box.append(label);
  }
  const section = document.querySelector("[data-method]").closest("section");
  (section.closest(".first") ?? section).before(box);
}

const NEAR = 24; // pixels; a point answers from so far away

// The point of a panel that is nearest to a place on the screen; nothing where none is near.
function findPoint(panel, points, x, y) {
  const toScreen = panel.getScreenCTM();
  let [nearest, least] = [null, NEAR];
  for (const point of points) {
    if (point.mark.classList.contains("left-out")) continue;
    const place = new DOMPoint(point.x, point.y).matrixTransform(toScreen);
    const far = Math.hypot(place.x - x, place.y - y);
    if (far < least) [nearest, least] = [{ text: point.text, x: place.x, y: place.y }, far];
  }
  return nearest;
}

// Where a pointer is near a point of a figure, a box says what that point is.
function addPointing() {
  const box = Object.assign(document.createElement("div"), { className: "tip", hidden: true, ariaHidden: "true" });
  document.body.append(box);
  for (const panel of document.querySelectorAll(".panel svg")) {
    const marks = [...panel.querySelectorAll("[data-points]")];
    for (const title of panel.querySelectorAll("title")) title.remove(); // the box says more
    const points = marks.flatMap((mark) => JSON.parse(mark.dataset.points).map(([x, y, text]) => ({ x, y, text: mark.dataset.lead + text, mark })));
    const show = (event) => {
      const point = findPoint(panel, points, event.clientX, event.clientY);
      box.hidden = point === null;
      if (!point) return;
      box.textContent = point.text;
      const right = document.documentElement.clientWidth - box.offsetWidth - 8;
      box.style.left = `${Math.max(8, Math.min(point.x + 10, right))}px`;
      box.style.top = `${point.y > box.offsetHeight + 16 ? point.y - box.offsetHeight - 10 : point.y + 14}px`;
    };
    for (const kind of ["pointermove", "pointerdown"]) panel.addEventListener(kind, show);
    panel.addEventListener("pointerleave", () => (box.hidden = true));
  }
  addEventListener("scroll", () => (box.hidden = true), { passive: true });
}

const SILENT_S = 120; // a run at work writes its page every few seconds

// The page of a run at work that has not been written for long says so, because a killed run cannot say it.
function addSilence() {
  const notice = document.querySelector("#silent");
  const seconds = notice ? (Date.now() - Date.parse(notice.dataset.written)) / 1000 : 0;
  if (!(seconds >= SILENT_S)) return;
  const minutes = Math.floor(seconds / 60);
  const age = minutes < 120 ? `${minutes} min` : `${Math.floor(minutes / 60)} h`;
  notice.hidden = false;
  notice.textContent = `Nothing has been written for ${age}: a step takes long, or the run was ended from outside. The overview of the folder tells which.`;
  document.title = document.title.replace(/at work$/, `silent for ${age}`);
}

// A case with several images shows one, the worst first, and a slider leads through them in their order.
function addSlider(box) {
  const worst = box.querySelector("[data-slice]");
  const views = [...box.querySelectorAll("[data-slice]")].sort((a, b) => a.dataset.slice - b.dataset.slice);
  if (views.length < 2) return;
  box.querySelector(".rest").remove();
  box.append(...views);
  const name = Object.assign(document.createElement("span"), { ariaHidden: "true" });
  const range = { type: "range", min: 1, max: views.length, value: views.indexOf(worst) + 1, ariaLabel: `images of ${box.dataset.of}` };
  const slider = Object.assign(document.createElement("input"), range);
  const show = () => {
    const shown = views[slider.value - 1];
    for (const view of views) view.hidden = view !== shown;
    const title = shown.dataset.name; // "slice 3": the number is its place too, unless slices before it are left out
    const place = `${title}${title.endsWith(` ${slider.value}`) ? "" : `, ${slider.value}`} of ${views.length}`;
    name.textContent = slider.ariaValueText = shown === worst ? `${place}, the worst` : place;
  };
  slider.addEventListener("input", show);
  const line = Object.assign(document.createElement("div"), { className: "slide" });
  line.append(slider, name);
  box.prepend(line);
  show();
}

addRuns(); // before columns get their buttons
for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0];
  const isGrouped = table.querySelector("[rowspan], [scope=rowgroup]") !== null; // rows that belong together
  if (!table.tHead || table.tBodies.length !== 1 || body.rows.length < 2 || isGrouped) continue;
  addSorting(table, body);
  addTools(table, body);
}
for (const box of document.querySelectorAll(".slices")) addSlider(box);
addMethods();
addPointing();
addSilence();
