"use strict";
// Samples over time: an overview of all, a lane for each thread or CPU, marks for losses and pauses, a brush.

const AXIS = 20;
const OVERVIEW = 46;
const LANE = 17;
const FEW_LANES = 8;
const MANY_LANES = 400;
/** Arrows at once: more would hide what they are about. */
const ARROWS = 30;

class Timeline {
  /** on: {range([fromNs, toNs] or null), thread(index)} */
  constructor(box, profile, palette, on) {
    this.palette = palette;
    this.pointed = -1;
    this.arrows = 0;
    this.box = box;
    this.canvas = box.querySelector("canvas");
    this.context = this.canvas.getContext("2d");
    this.profile = profile;
    this.on = on;
    this.range = null;
    this.byCpu = false;
    this.expanded = false;
    this.threads = null;
    this.under = null;
    this.drag = null;
    this.canvas.addEventListener("pointerdown", (event) => this.press(event));
    this.canvas.addEventListener("pointermove", (event) => this.move(event));
    this.canvas.addEventListener("pointerup", (event) => this.release(event));
    this.canvas.addEventListener("pointercancel", () => (this.drag = null));
    this.canvas.addEventListener("dblclick", () => this.on.range(null));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
  }

  /** Chooses the lanes of an event: the busiest ones first. */
  show(event, byCpu, expanded) {
    this.event = event;
    this.byCpu = byCpu && event.hasCpus;
    this.expanded = expanded;
    const keys = this.byCpu ? event.cpu : event.thread;
    const sums = new Map();
    for (let i = 0; i < event.entryCount; i++) {
      // Threads that have nothing to do come last.
      const idle = event.hasStates && this.profile.names[event.stateOf[event.node[i]]]?.startsWith("idle");
      sums.set(keys[i], (sums.get(keys[i]) || 0) + (idle ? 0 : event.entrySamples[i]));
    }
    const all = [...sums.keys()];
    if (this.byCpu) all.sort((a, b) => a - b);
    else all.sort((a, b) => sums.get(b) - sums.get(a) || a - b);
    this.laneCount = all.length;
    this.lanes = all.slice(0, expanded ? MANY_LANES : FEW_LANES);
    this.layout();
  }

  /** How many lanes are not shown. */
  get hiddenLanes() {
    return this.laneCount - this.lanes.length;
  }

  label(key) {
    return this.byCpu ? (key < 0 ? "CPU ?" : `CPU ${key}`) : this.profile.threadLabel(key);
  }

  layout() {
    if (!this.event) return;
    this.width = this.box.clientWidth;
    this.height = AXIS + OVERVIEW + this.lanes.length * LANE + 6;
    this.gutter = Math.round(Math.min(190, this.width * 0.26));
    this.plot = this.width - this.gutter - 10;
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(this.width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    this.canvas.style.width = this.width + "px";
    this.canvas.style.height = this.height + "px";
    this.count();
    this.paint();
  }

  /** Counts samples per column. A column is a whole number of buckets, so that none counts double. */
  count() {
    const event = this.event;
    const buckets = Math.ceil(event.spanNs / event.bucketNs);
    // Columns of a handful of samples: narrower ones would show the grid of sampling, not the program.
    const most = Math.max(60, Math.min(this.plot / 2, event.samples / 6));
    const each = Math.max(1, Math.ceil(buckets / most));
    const columns = Math.ceil(buckets / each);
    const keys = this.byCpu ? event.cpu : event.thread;
    const lane = new Map(this.lanes.map((key, index) => [key, index]));
    this.columnNs = each * event.bucketNs;
    this.columns = columns;
    this.sums = new Float64Array(columns);
    this.matches = new Float64Array(columns);
    this.cells = new Float64Array(columns * this.lanes.length);
    this.matchCells = new Float64Array(columns * this.lanes.length);
    for (let i = 0; i < event.entryCount; i++) {
      if (this.threads && this.byCpu && !this.threads[event.thread[i]]) continue;
      const column = Math.floor(event.bucket[i] / each);
      const n = event.entrySamples[i];
      const at = lane.get(keys[i]);
      if (at !== undefined) this.cells[at * columns + column] += n;
      const hit = this.under && this.under[event.node[i]];
      if (hit && at !== undefined) this.matchCells[at * columns + column] += n;
      if (this.threads && !this.threads[event.thread[i]]) continue;
      this.sums[column] += n;
      if (hit) this.matches[column] += n;
    }
    this.peak = this.sums.reduce((a, b) => Math.max(a, b), 0);
    this.lanePeak = this.cells.reduce((a, b) => Math.max(a, b), 0);
    this.countStates(each, columns, lane);
  }

  /** The same by what threads did: for each state its sums and cells, running first, idle last. */
  countStates(each, columns, lane) {
    const event = this.event;
    this.states = [];
    if (!event.hasStates) return;
    // A lane is as high as a thread that was there all the time.
    this.lanePeak = Math.min(this.lanePeak, this.columnNs);
    const found = new Map();
    for (let i = 0; i < event.entryCount; i++) {
      const fn = event.stateOf[event.node[i]];
      if (!found.has(fn)) {
        found.set(fn, { fn, sums: new Float64Array(columns), cells: new Float64Array(columns * this.lanes.length) });
      }
      const { sums, cells } = found.get(fn);
      const column = Math.floor(event.bucket[i] / each);
      const at = lane.get(event.thread[i]);
      if (at !== undefined) cells[at * columns + column] += event.entrySamples[i];
      if (!this.threads || this.threads[event.thread[i]]) sums[column] += event.entrySamples[i];
    }
    const order = Object.keys(STATE_HUES);
    const rank = ({ fn }) => {
      const at = order.indexOf(this.profile.names[fn]);
      return at < 0 ? order.length + (this.profile.names[fn]?.startsWith("idle") ? 1 : 0) : at;
    };
    this.states = [...found.values()].sort((a, b) => rank(a) - rank(b) || a.fn - b.fn);
  }

  /** Marks moments whose stack holds a searched function: one flag per node, or null. */
  mark(under) {
    this.under = under;
    if (!this.event) return;
    this.count();
    this.paint();
  }

  x(ns) {
    return this.gutter + (ns / this.event.spanNs) * this.plot;
  }

  ns(x) {
    return Math.min(1, Math.max(0, (x - this.gutter) / this.plot)) * this.event.spanNs;
  }

  paint() {
    const g = this.context;
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const ratio = window.devicePixelRatio || 1;
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.fillStyle = colour("--card");
    g.fillRect(0, 0, this.width, this.height);
    g.font = "11.5px system-ui, sans-serif";
    g.textBaseline = "middle";
    this.paintAxis(g, colour);
    const floor = AXIS + OVERVIEW;
    this.paintStates(g, "sums", 0, floor, OVERVIEW - 6, this.peak);
    this.paintBars(g, this.sums, this.matches, 0, floor, OVERVIEW - 6, this.peak, colour);
    g.fillStyle = colour("--dim");
    g.fillText(this.threads ? "selected threads" : this.byCpu ? "all CPUs" : "all threads", 12, AXIS + OVERVIEW / 2, this.gutter - 16);
    for (let lane = 0; lane < this.lanes.length; lane++) {
      const key = this.lanes[lane];
      const base = floor + (lane + 1) * LANE;
      const off = !this.byCpu && this.threads && !this.threads[key];
      g.globalAlpha = off ? 0.35 : 1;
      g.fillStyle = colour("--line2");
      g.fillRect(this.gutter, base, this.plot, 1);
      this.paintStates(g, "cells", lane * this.columns, base, LANE - 3, this.lanePeak);
      this.paintBars(g, this.cells, this.matchCells, lane * this.columns, base, LANE - 3, this.lanePeak, colour);
      g.fillStyle = colour("--ink");
      this.fit(g, this.label(key), 12, base - LANE / 2 + 1, this.gutter - 18);
      g.globalAlpha = 1;
    }
    this.paintArrows(g, colour);
    this.paintMarks(g, colour);
    this.paintRange(g, colour);
  }

  /** Text cut to the room it has. */
  fit(g, text, x, y, room) {
    let cut = text.slice(0, 60);
    while (cut.length > 1 && g.measureText(cut).width > room) cut = cut.slice(0, -2) + (cut.length > 2 ? "…" : "");
    g.fillText(cut, x, y);
  }

  paintBars(g, values, matches, offset, base, height, peak, colour) {
    if (!peak) return;
    const w = (this.columnNs / this.event.spanNs) * this.plot;
    const end = this.gutter + this.plot;
    for (const [list, name] of [[values, "--plot"], [matches, "--hit"]]) {
      if (list === values && this.states.length) continue;
      g.fillStyle = colour(name);
      for (let i = 0; i < this.columns; i++) {
        const value = list[offset + i];
        if (!value) continue;
        // Whole pixels: no seams between neighbours.
        const left = Math.round(this.gutter + i * w);
        const right = Math.min(end, Math.round(this.gutter + (i + 1) * w));
        const h = Math.max(1, (value / peak) * height);
        g.fillRect(left, base - h, Math.max(1, right - left), h);
      }
    }
  }

  /** Bars of what threads did, on top of each other. */
  paintStates(g, what, offset, base, height, peak) {
    if (!peak) return;
    const w = (this.columnNs / this.event.spanNs) * this.plot;
    const end = this.gutter + this.plot;
    const below = new Float64Array(this.columns);
    for (const state of this.states) {
      g.fillStyle = this.palette.of(state.fn);
      for (let i = 0; i < this.columns; i++) {
        const value = state[what][offset + i];
        if (!value) continue;
        const left = Math.round(this.gutter + i * w);
        const right = Math.min(end, Math.round(this.gutter + (i + 1) * w));
        const from = Math.min(1, below[i] / peak) * height;
        below[i] += value;
        const to = Math.min(1, below[i] / peak) * height;
        g.fillRect(left, base - to, Math.max(1, right - left), to - from);
      }
    }
  }

  /** Arrows from the ends of waits to the threads that ended them: of the longest, and of the one that is pointed at. */
  paintArrows(g, colour) {
    const { links, spanNs } = this.event;
    this.arrows = 0;
    if (this.byCpu || !links.count) return;
    const lane = new Map(this.lanes.map((key, index) => [key, index]));
    const middle = (at) => AXIS + OVERVIEW + (at + 0.5) * LANE + 1;
    const [from, to] = this.range || [0, spanNs];
    const draw = (i, strong) => {
      const end = links.begin[i] + links.length[i];
      const [x, y] = [this.x(end), middle(lane.get(links.thread[i]))];
      const target = lane.get(links.waker[i]);
      g.strokeStyle = g.fillStyle = colour(strong ? "--accent" : "--ink");
      g.globalAlpha = strong ? 1 : 0.5;
      g.lineWidth = strong ? 2 : 1;
      if (strong) g.fillRect(this.x(links.begin[i]), y - 1, x - this.x(links.begin[i]), 2);
      if (target !== undefined && target !== lane.get(links.thread[i])) {
        const tip = middle(target);
        const back = tip > y ? -5 : 5;
        g.beginPath();
        g.moveTo(x, y);
        g.lineTo(x, tip + back);
        g.stroke();
        g.beginPath();
        g.moveTo(x, tip);
        g.lineTo(x - 3, tip + back);
        g.lineTo(x + 3, tip + back);
        g.fill();
        this.arrows++;
      }
      g.globalAlpha = 1;
    };
    for (let i = 0; i < links.count && this.arrows < ARROWS; i++) {
      const end = links.begin[i] + links.length[i];
      if (lane.has(links.thread[i]) && lane.has(links.waker[i]) && end >= from && end <= to) draw(i, false);
    }
    if (this.pointed >= 0 && lane.has(links.thread[this.pointed])) draw(this.pointed, true);
  }

  /** The wait under the pointer says what ended it. */
  pointAt(x, y) {
    const lane = Math.floor((y - AXIS - OVERVIEW) / LANE);
    const inside = !this.byCpu && x >= this.gutter && lane >= 0 && lane < this.lanes.length;
    const found = inside ? this.event.linkAt(this.lanes[lane], this.ns(x)) : -1;
    if (found === this.pointed) return;
    this.pointed = found;
    const { words, state, by, length } = this.event.links;
    this.canvas.title = found < 0 ? "" : clean(`${words[state[found]]} for ${formatNs(length[found])}, ended by ${words[by[found]]}`);
    this.paint();
  }

  paintAxis(g, colour) {
    const span = this.event.spanNs;
    let step = 1;
    for (let k = 0; (span / step) * 86 > this.plot && k < 60; k++) step *= k % 3 === 1 ? 2.5 : 2;
    g.fillStyle = colour("--dim");
    for (let at = 0; at <= span; at += step) {
      const x = this.x(at);
      g.fillRect(x, AXIS - 4, 1, 4);
      const text = at ? formatNs(at) : "0";
      if (x + g.measureText(text).width < this.width) g.fillText(text, x + 3, AXIS / 2 - 1);
    }
    g.fillStyle = colour("--line");
    g.fillRect(this.gutter, AXIS, this.plot, 1);
  }

  /** Losses red, throttled stretches and pauses grey, over everything. */
  paintMarks(g, colour) {
    for (const mark of this.profile.intervals) {
      const from = this.x(Math.max(0, mark.start_ns - this.profile.startNs));
      const to = this.x(Math.min(this.event.spanNs, mark.end_ns - this.profile.startNs));
      const w = Math.max(2, to - from);
      g.fillStyle = mark.kind === "loss" ? colour("--bad") : colour("--dim");
      g.globalAlpha = 0.16;
      g.fillRect(from, AXIS, w, this.height - AXIS);
      g.globalAlpha = 1;
      g.fillRect(from, AXIS - 3, w, 3);
    }
  }

  paintRange(g, colour) {
    const range = this.drag ? this.drag.range : this.range;
    if (!range) return;
    const from = this.x(Math.max(0, range[0]));
    const to = this.x(Math.min(this.event.spanNs, range[1]));
    g.fillStyle = colour("--card");
    g.globalAlpha = 0.68;
    g.fillRect(this.gutter, AXIS, from - this.gutter, this.height);
    g.fillRect(to, AXIS, this.gutter + this.plot - to, this.height);
    g.globalAlpha = 1;
    g.fillStyle = colour("--accent");
    g.fillRect(from - 1, AXIS, 2, this.height);
    g.fillRect(to - 1, AXIS, 2, this.height);
    g.fillRect(from, AXIS - 2, to - from, 2);
    for (const x of [from, to]) g.fillRect(x - 3, AXIS + OVERVIEW / 2 - 8, 6, 16);
  }

  point(event) {
    const area = this.canvas.getBoundingClientRect();
    return [event.clientX - area.left, event.clientY - area.top];
  }

  press(event) {
    if (event.button !== 0 || !this.event.entryCount) return;
    const [x, y] = this.point(event);
    if (x < this.gutter) {
      const lane = Math.floor((y - AXIS - OVERVIEW) / LANE);
      if (!this.byCpu && lane >= 0 && lane < this.lanes.length) this.on.thread(this.lanes[lane]);
      return;
    }
    this.canvas.setPointerCapture(event.pointerId);
    const at = this.ns(x);
    this.drag = { anchor: at, start: at, x, range: this.range, moved: false, shift: null };
    if (this.range) {
      const [from, to] = this.range;
      if (Math.abs(x - this.x(from)) < 7) this.drag.anchor = to;
      else if (Math.abs(x - this.x(to)) < 7) this.drag.anchor = from;
      else if (at > from && at < to) this.drag.shift = this.range;
    }
  }

  move(event) {
    const [x, y] = this.point(event);
    if (!this.drag) {
      if (this.event.links.count) this.pointAt(x, y);
      this.canvas.style.cursor = this.cursorAt(x);
      return;
    }
    const drag = this.drag;
    if (Math.abs(x - drag.x) > 2) drag.moved = true;
    if (!drag.moved) return;
    const at = this.ns(x);
    if (drag.shift) {
      const length = drag.shift[1] - drag.shift[0];
      const from = Math.min(Math.max(0, drag.shift[0] + at - drag.start), Math.max(0, this.event.spanNs - length));
      drag.range = [from, from + length];
    } else {
      drag.range = [Math.min(drag.anchor, at), Math.max(drag.anchor, at)];
    }
    this.on.range(drag.range);
  }

  cursorAt(x) {
    if (x < this.gutter) return this.byCpu ? "default" : "pointer";
    if (!this.range) return "crosshair";
    const [from, to] = this.range.map((ns) => this.x(ns));
    if (Math.abs(x - from) < 7 || Math.abs(x - to) < 7) return "ew-resize";
    return x > from && x < to ? "grab" : "crosshair";
  }

  release() {
    const drag = this.drag;
    this.drag = null;
    if (!drag) return;
    // A click beside the selection clears it.
    if (!drag.moved && this.range && !drag.shift) this.on.range(null);
    this.paint();
  }

  key(event) {
    const sign = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const zoom = { ArrowUp: 0.5, ArrowDown: 2 }[event.key];
    if (!sign && !zoom) return;
    event.preventDefault();
    const span = this.event.spanNs;
    const [from, to] = this.range || [0, span];
    const length = Math.max(this.event.bucketNs, Math.min(span, (to - from) * (zoom || 1)));
    const middle = (from + to) / 2 + (sign ? sign * (this.range ? length / 4 : 0) : 0);
    const begin = Math.min(Math.max(0, middle - length / 2), span - length);
    this.on.range(length >= span ? null : [begin, begin + length]);
  }
}
