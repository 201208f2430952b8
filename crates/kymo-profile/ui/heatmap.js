"use strict";
// The heat map: seconds from left to right, parts of a second from the top down, darker with more
// samples. Below it is how many samples a colour means. What happens once a second, or at one moment only, is seen at a glance, and can be
// selected.

const HEAT_ROWS = 50;
const HEAT_AXIS = 22;
const CELL = 6;
const HEAT_LEGEND = 26;

class HeatMap {
  /** on: {range([fromNs, toNs] or null), hover(lines, x, y) or hover(null)} */
  constructor(box, palette, on) {
    this.box = box;
    this.canvas = box.querySelector("canvas");
    this.context = this.canvas.getContext("2d");
    this.palette = palette;
    this.on = on;
    this.cursor = 0;
    this.anchor = -1;
    this.canvas.addEventListener("pointerdown", (event) => this.press(event));
    this.canvas.addEventListener("pointermove", (event) => this.move(event));
    this.canvas.addEventListener("pointerup", () => this.release());
    this.canvas.addEventListener("pointerleave", () => on.hover(null));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    for (const name of ["focus", "blur"]) this.canvas.addEventListener(name, () => this.paint());
  }

  /** heat: {columns, rows, column_ns, row_ns, values}; unit: what values count; range: what is selected. */
  show(heat, unit, range) {
    Object.assign(this, { heat, unit, range });
    this.most = heat.values.reduce((a, b) => Math.max(a, b), 0);
    this.width = this.box.clientWidth;
    this.cell = Math.max(1, (this.width - 70) / Math.max(1, heat.columns));
    this.height = HEAT_AXIS + heat.rows * CELL + HEAT_LEGEND;
    this.box.style.height = this.height + "px";
    sizeCanvas(this.canvas, this.width, this.height);
    this.paint();
  }

  /** Cells are numbered in the order of time: down a column, then the next one. */
  cellFrom(cell) {
    return Math.floor(cell / this.heat.rows) * this.heat.column_ns + (cell % this.heat.rows) * this.heat.row_ns;
  }

  cellOf(ns) {
    const { rows, row_ns, column_ns } = this.heat;
    const column = Math.floor(ns / column_ns);
    return column * rows + Math.min(rows - 1, Math.floor((ns - column * column_ns) / row_ns));
  }

  place(cell) {
    return [60 + Math.floor(cell / this.heat.rows) * this.cell, HEAT_AXIS + (cell % this.heat.rows) * CELL];
  }

  colour(share) {
    const { dark } = this.palette;
    const t = Math.sqrt(share);
    return dark ? `oklch(${(0.27 + 0.58 * t).toFixed(3)} ${(0.02 + 0.15 * t).toFixed(3)} ${(265 - 205 * t).toFixed(0)})`
      : `oklch(${(0.97 - 0.5 * t).toFixed(3)} ${(0.01 + 0.18 * t).toFixed(3)} ${(90 - 65 * t).toFixed(0)})`;
  }

  paint() {
    if (!this.heat) return;
    const { heat } = this;
    const g = this.context;
    const colour = emptyCanvas(g, this.width, this.height);
    heat.values.forEach((value, cell) => {
      if (!value) return;
      const [x, y] = this.place(cell);
      g.fillStyle = this.colour(value / this.most);
      g.fillRect(x, y, Math.max(1, this.cell - 0.5), CELL - 0.5);
    });
    this.paintAxes(g, colour);
    this.paintLegend(g, colour);
    const shown = this.anchor >= 0 ? this.span() : this.range && [this.cellOf(this.range[0]), this.cellOf(this.range[1] - 1)];
    g.fillStyle = colour("--accent");
    if (shown) {
      g.globalAlpha = 0.35;
      for (let cell = shown[0]; cell <= shown[1] && cell < heat.values.length; cell++) g.fillRect(...this.place(cell), this.cell, CELL);
      g.globalAlpha = 1;
    }
    if (document.activeElement === this.canvas) {
      const [x, y] = this.place(this.cursor);
      g.strokeStyle = colour("--ink");
      g.lineWidth = 2;
      g.strokeRect(x, y, Math.max(4, this.cell), CELL);
    }
  }

  paintAxes(g, colour) {
    const { heat } = this;
    g.fillStyle = colour("--dim");
    g.font = "11.5px system-ui, sans-serif";
    g.textBaseline = "middle";
    const each = Math.max(1, Math.ceil(70 / this.cell));
    for (let column = 0; column < heat.columns; column += each) {
      const [x] = this.place(column * heat.rows);
      g.fillRect(x, HEAT_AXIS - 4, 1, 4);
      const text = column ? formatMoment(column * heat.column_ns, each * heat.column_ns) : "0";
      if (x + g.measureText(text).width < this.width) g.fillText(text, x + 2, HEAT_AXIS / 2 - 1);
    }
    for (let row = 0; row < heat.rows; row += 10) g.fillText(row ? formatNs(row * heat.row_ns) : "0", 8, HEAT_AXIS + row * CELL + 3);
  }

  /** What the axes are, and what the colours mean. */
  paintLegend(g, colour) {
    const { heat } = this;
    const y = HEAT_AXIS + heat.rows * CELL + HEAT_LEGEND / 2;
    g.fillStyle = colour("--dim");
    g.fillText(`across: time, a column for ${formatNs(heat.column_ns)}; down: the time within a column`, 60, y);
    const amount = (value) => (this.unit === "ns" ? formatNs(value) : formatCount(value) + " samples");
    const words = `${amount(this.most)} a cell`;
    const steps = 8;
    const right = this.width - 12 - g.measureText(words).width;
    // In a narrow window the line about the axes comes first.
    if (right - steps * 10 - 20 < 60 + g.measureText("across: time, a column for 1000 ms; down: the time within a column").width) return;
    g.fillText(words, right, y);
    g.fillText("0", right - steps * 10 - 16, y);
    for (let step = 0; step < steps; step++) {
      g.fillStyle = this.colour((step + 1) / steps);
      g.fillRect(right - (steps - step) * 10 - 4, y - 5, 10, 10);
    }
  }

  span() {
    return [Math.min(this.anchor, this.cursor), Math.max(this.anchor, this.cursor)];
  }

  at(event) {
    const area = this.canvas.getBoundingClientRect();
    const clamp = (value, most) => Math.max(0, Math.min(most - 1, value));
    const column = clamp(Math.floor((event.clientX - area.left - 60) / this.cell), this.heat.columns);
    return column * this.heat.rows + clamp(Math.floor((event.clientY - area.top - HEAT_AXIS) / CELL), this.heat.rows);
  }

  press(event) {
    if (event.button !== 0 || !this.heat?.columns) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.anchor = this.cursor = this.at(event);
    this.paint();
  }

  move(event) {
    if (!this.heat?.columns) return;
    const cell = this.at(event);
    const from = this.cellFrom(cell);
    this.on.hover([`${this.unit === "ns" ? formatNs(this.heat.values[cell]) : formatCount(this.heat.values[cell]) + " samples"}`,
      `${formatMoment(from, this.heat.row_ns)} to ${formatMoment(from + this.heat.row_ns, this.heat.row_ns)}`], event.clientX, event.clientY);
    if (this.anchor < 0) return;
    this.cursor = cell;
    this.paint();
  }

  release() {
    if (this.anchor >= 0) this.select();
  }

  /** Everything from the first cell to the last one, as time passes. */
  select() {
    const [first, last] = this.span();
    this.anchor = -1;
    this.on.range([this.cellFrom(first), this.cellFrom(last) + this.heat.row_ns]);
  }

  key(event) {
    // The server may not have answered yet.
    if (!this.heat?.columns) return;
    const step = { ArrowUp: -1, ArrowDown: 1, ArrowLeft: -this.heat.rows, ArrowRight: this.heat.rows }[event.key];
    if (step) {
      const next = this.cursor + step;
      if (next >= 0 && next < this.heat.values.length) {
        if (event.shiftKey && this.anchor < 0) this.anchor = this.cursor;
        if (!event.shiftKey) this.anchor = -1;
        this.cursor = next;
      }
    } else if (event.key === "Enter") {
      if (this.anchor < 0) this.anchor = this.cursor;
      this.select();
    } else return;
    event.preventDefault();
    event.stopPropagation();
    this.paint();
  }
}

/** A heat map of what a page knows by itself, in the form of the server's answer. */
function heatOf(event, threads, bySamples, columnNs) {
  const { entries, spanNs } = event;
  const columns = Math.max(1, Math.ceil(spanNs / columnNs));
  const values = new Float64Array(columns * HEAT_ROWS);
  const rowNs = columnNs / HEAT_ROWS;
  const amounts = bySamples ? entries.samples : entries.period;
  for (let i = 0; i < entries.count; i++) {
    if (threads && !threads[entries.thread[i]]) continue;
    const column = Math.floor(entries.time[i] / columnNs);
    values[column * HEAT_ROWS + Math.min(HEAT_ROWS - 1, Math.floor((entries.time[i] - column * columnNs) / rowNs))] += amounts[i];
  }
  return { columns, rows: HEAT_ROWS, column_ns: columnNs, row_ns: rowNs, values };
}
