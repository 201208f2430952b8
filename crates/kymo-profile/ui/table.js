"use strict";
// The table of functions. Only the rows in sight are in the document, so a hundred thousand functions scroll smoothly.

const ROW_HEIGHT = 26;
/** What a comparison says of a function, in the order of the table. */
const VERDICTS = ["regression", "improvement", "moved", "undecided", "no difference", "not tested"];

class FunctionTable {
  /** on: {choose(function), sort(key)} */
  constructor(box, profile, palette, on) {
    this.box = box;
    this.profile = profile;
    this.palette = palette;
    this.on = on;
    this.rows = [];
    this.chosen = -1;
    this.columns = profile.comparison ? this.columnsOfComparison() : [
      { key: "own", title: "Self", css: "wide", col: "number wide", number: true },
      { key: "own", title: "Self %", css: "", col: "share", share: true },
      { key: "total", title: "Total", css: "wide", col: "number wide", number: true },
      { key: "total", title: "Total %", css: "", col: "share", share: true },
      { key: "name", title: "Function", css: "text", col: "" },
      { key: "module", title: "Module", css: "text", col: "module" },
    ];
    this.build();
    box.addEventListener("scroll", () => this.fill());
    box.addEventListener("click", (event) => {
      const row = event.target.closest("tr.row");
      if (row) this.on.choose(Number(row.dataset.fn));
    });
    box.addEventListener("keydown", (event) => this.key(event));
  }

  /** Self is that of the side that is shown; the change and the verdict are those of the function itself. */
  columnsOfComparison() {
    return [
      { key: "own", title: "Self", css: "wide", col: "number wide", number: true },
      { key: "own", title: "Self %", css: "", col: "share", share: true },
      { key: "total", title: "Total", css: "wide", col: "number wide", number: true },
      { key: "change", title: "Change of self", css: "wide", col: "change", words: (fn) => this.changeOf(fn) },
      { key: "verdict", title: "Verdict", css: "text", col: "verdict", words: (fn) => this.verdictOf(fn) },
      { key: "name", title: "Function", css: "text", col: "" },
      { key: "module", title: "Module", css: "text", col: "module" },
    ];
  }

  verdictOf(fn) {
    return this.profile.comparison.found.get(fn)?.verdict ?? "not tested";
  }

  changeOf(fn) {
    return this.profile.comparison.found.get(fn)?.change ?? formatChange(this.profile.comparison.change(fn));
  }

  build() {
    const table = document.createElement("table");
    const cols = document.createElement("colgroup");
    const head = document.createElement("tr");
    this.heads = this.columns.map((column) => {
      const col = document.createElement("col");
      col.className = column.col;
      cols.append(col);
      const th = document.createElement("th");
      th.className = column.css;
      th.scope = "col";
      const button = document.createElement("button");
      button.type = "button";
      button.append(column.title);
      button.addEventListener("click", () => this.on.sort(column.key));
      th.append(button);
      head.append(th);
      return th;
    });
    const thead = document.createElement("thead");
    thead.append(head);
    this.body = document.createElement("tbody");
    table.append(cols, thead, this.body);
    this.box.append(table);
  }

  /** sums: {own, total} by function; whole: 100 %; hits: search flags or null; sort: {key, up}. */
  show(sums, whole, hits, sort, unit) {
    Object.assign(this, { sums, whole, sort, unit });
    const { own, total } = sums;
    const kinds = this.profile.kinds;
    const rows = [];
    for (let fn = 0; fn < total.length; fn++) {
      if (total[fn] > 0 && kinds[fn] !== "c" && (!hits || hits[fn])) rows.push(fn);
    }
    const names = this.profile.names;
    const text = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
    const order = {
      own: (a, b) => own[a] - own[b] || total[a] - total[b],
      total: (a, b) => total[a] - total[b] || own[a] - own[b],
      name: (a, b) => text(names[a], names[b]),
      // By amounts: what is small changes by large parts of itself.
      change: (a, b) => this.profile.comparison.difference(a) - this.profile.comparison.difference(b) || own[a] - own[b],
      verdict: (a, b) => VERDICTS.indexOf(this.verdictOf(b)) - VERDICTS.indexOf(this.verdictOf(a)) || own[a] - own[b],
      module: (a, b) => text(this.profile.moduleName(a), this.profile.moduleName(b)) || own[b] - own[a],
    }[sort.key];
    rows.sort((a, b) => (sort.up ? order(a, b) : order(b, a)) || text(names[a], names[b]) || a - b);
    this.rows = rows;
    this.heads.forEach((th, index) => {
      const column = this.columns[index];
      const active = column.key === sort.key;
      if (active) th.setAttribute("aria-sort", sort.up ? "ascending" : "descending");
      else th.removeAttribute("aria-sort");
      th.firstChild.textContent = column.title + (active && !column.number ? (sort.up ? " ▲" : " ▼") : "");
    });
    this.drawn = "";
    this.fill();
  }

  choose(fn) {
    this.chosen = fn;
    this.drawn = "";
    this.fill();
  }

  /** Puts the rows in sight, and a few around them, into the document. */
  fill() {
    const from = Math.max(0, Math.floor(this.box.scrollTop / ROW_HEIGHT) - 8);
    const to = Math.min(this.rows.length, from + Math.ceil((this.box.clientHeight || 520) / ROW_HEIGHT) + 16);
    const drawn = `${from} ${to}`;
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    const parts = [this.gap(from)];
    for (let i = from; i < to; i++) parts.push(this.row(this.rows[i]));
    parts.push(this.gap(this.rows.length - to));
    if (!this.rows.length) parts.push(this.none());
    this.body.replaceChildren(...parts);
  }

  gap(rows) {
    const tr = document.createElement("tr");
    tr.className = "gap";
    tr.style.height = rows * ROW_HEIGHT + "px";
    tr.setAttribute("aria-hidden", "true");
    return tr;
  }

  none() {
    const tr = document.createElement("tr");
    const td = document.createElement("td");
    td.colSpan = this.columns.length;
    td.className = "text none";
    td.textContent = "No function matches.";
    tr.append(td);
    return tr;
  }

  row(fn) {
    const tr = document.createElement("tr");
    tr.className = fn === this.chosen ? "row chosen" : "row";
    tr.dataset.fn = fn;
    const values = { own: this.sums.own[fn], total: this.sums.total[fn] };
    for (const column of this.columns) {
      const td = document.createElement("td");
      td.className = column.css;
      if (column.number) td.textContent = values[column.key] ? formatBare(values[column.key], this.unit) : "";
      else if (column.share) {
        td.classList.add("share");
        const part = this.whole ? (100 * values[column.key]) / this.whole : 0;
        td.style.setProperty("--part", part.toFixed(2) + "%");
        td.textContent = values[column.key] ? formatShare(values[column.key], this.whole) : "";
      } else if (column.words) {
        td.textContent = column.words(fn);
        td.title = td.textContent;
      } else if (column.key === "name") {
        td.classList.add("fn");
        const swatch = document.createElement("i");
        swatch.style.background = this.palette.of(fn);
        const place = this.profile.place(fn);
        td.title = this.profile.names[fn] + (place ? "\n" + place : "");
        td.append(swatch, this.profile.names[fn]);
      } else {
        td.textContent = this.profile.moduleName(fn);
        td.title = td.textContent;
      }
      tr.append(td);
    }
    return tr;
  }

  key(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || !this.rows.length || event.target !== this.box) return;
    event.preventDefault();
    const place = this.rows.indexOf(this.chosen);
    const next = Math.min(this.rows.length - 1, Math.max(0, place < 0 ? 0 : place + step));
    const top = next * ROW_HEIGHT;
    const view = this.box.clientHeight - 40;
    if (top < this.box.scrollTop) this.box.scrollTop = top;
    else if (top + ROW_HEIGHT > this.box.scrollTop + view) this.box.scrollTop = top + ROW_HEIGHT - view;
    this.on.choose(this.rows[next]);
  }
}
