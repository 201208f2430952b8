"use strict";
// Samples over time: an overview of all, a lane for each thread, CPU or state, marks for losses and
// pauses, a brush.
//
// The canvas is as large as what is visible of it: lanes are drawn as they scroll into view, so
// thousands cost nothing.

const AXIS = 20;
const OVERVIEW = 46;
const LANE = 17;
const HEAD = AXIS + OVERVIEW;
/** Lanes that are seen at once, before one scrolls. */
const FEW_LANES = 10;
/** Arrows at once: more would hide what they are about. */
const ARROWS = 30;
/** The shortest stretch of time that can be looked at, ns. */
const LEAST_WINDOW = 1000;

class Timeline {
  /** on: {range([fromNs, toNs] or null), window([fromNs, toNs] or null), thread(index)} */
  constructor(box, profile, palette, on) {
    this.palette = palette;
    this.pointed = -1;
    this.arrows = 0;
    this.box = box;
    this.space = box.querySelector(".timeline-space");
    this.canvas = box.querySelector("canvas");
    this.context = this.canvas.getContext("2d");
    this.profile = profile;
    this.on = on;
    this.range = null;
    this.threads = null;
    this.under = null;
    this.drag = null;
    this.pending = false;
    box.addEventListener("scroll", () => this.paintSoon());
    this.canvas.addEventListener("pointerdown", (event) => this.press(event));
    this.canvas.addEventListener("pointermove", (event) => this.move(event));
    this.canvas.addEventListener("pointerup", (event) => this.release(event));
    this.canvas.addEventListener("pointercancel", () => (this.drag = null));
    this.canvas.addEventListener("dblclick", () => this.on.range(null));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
  }

  /**
   * Shows the lanes of an event.
   * entries: its samples over time; window: the stretch of time that is looked at, null for all of it.
   */
  show(event, entries, by, window, tall) {
    this.event = event;
    if (this.lanes?.event !== event || this.lanes.by !== by) this.lanes = new Lanes(this.profile, event, by);
    this.lanes.index(entries);
    this.entries = entries;
    [this.from, this.to] = window || [0, event.spanNs];
    this.tall = tall;
    this.layout();
  }

  get byThread() {
    return this.lanes.by === "threads";
  }

  get few() {
    return this.tall ? Math.max(FEW_LANES, Math.floor((innerHeight * 0.7 - HEAD) / LANE)) : FEW_LANES;
  }

  layout() {
    if (!this.event) return;
    this.width = this.box.clientWidth;
    const all = HEAD + this.lanes.count * LANE + 6;
    this.height = Math.min(all, HEAD + this.few * LANE + 6);
    this.box.style.height = this.height + "px";
    this.space.style.height = all + "px";
    this.gutter = Math.round(Math.min(190, this.width * 0.26));
    this.plot = this.width - this.gutter - 10;
    sizeCanvas(this.canvas, this.width, this.height);
    this.count();
    this.paint();
  }

  /** Counts samples per column. A column is a whole number of buckets, so that none counts double. */
  count() {
    const { event, entries } = this;
    const unit = entries.bucketNs;
    const buckets = Math.max(1, Math.ceil((this.to - this.from) / unit));
    const [first, end] = [entries.at(this.from), entries.at(this.to)];
    let samples = 0;
    for (let i = first; i < end; i++) samples += entries.samples[i];
    // Columns of a handful of samples: narrower ones would show the grid of sampling, not the program.
    const most = Math.max(60, Math.min(this.plot / 2, event.hasStates ? this.plot / 2 : samples / 6));
    const columnNs = Math.max(1, Math.ceil(buckets / most)) * unit;
    const from = Math.floor(this.from / columnNs) * columnNs;
    const columns = Math.max(1, Math.ceil((this.to - from) / columnNs));
    this.axis = { from, columnNs, columns };
    this.cells = new Map();
    this.sums = new Float64Array(columns);
    this.matches = new Float64Array(columns);
    const states = new Map();
    for (let i = entries.at(from); i < end; i++) {
      if (this.threads && !this.threads[entries.thread[i]]) continue;
      const column = Math.min(columns - 1, Math.floor((entries.time[i] - from) / columnNs));
      this.sums[column] += entries.samples[i];
      if (this.under && this.under[entries.node[i]]) this.matches[column] += entries.samples[i];
      if (!event.hasStates) continue;
      const state = event.stateOf[entries.node[i]];
      if (!states.has(state)) states.set(state, new Float64Array(columns));
      states.get(state)[column] += entries.samples[i];
    }
    this.peak = this.sums.reduce((a, b) => Math.max(a, b), 0);
    this.lanePeak = this.lanes.peak(this.axis, this.threads);
    // A lane of wall time is as high as a thread that was there all the time.
    if (event.hasStates && this.byThread) this.lanePeak = Math.min(this.lanePeak, columnNs);
    this.states = this.ordered(states);
  }

  /** States as they are stacked: running first, idle last. */
  ordered(states) {
    const order = Object.keys(STATE_HUES);
    const rank = (fn) => {
      const at = order.indexOf(this.profile.names[fn]);
      return at < 0 ? order.length + (this.profile.names[fn]?.startsWith("idle") ? 1 : 0) : at;
    };
    return [...states].sort(([a], [b]) => rank(a) - rank(b) || a - b).map(([fn, values]) => ({ fn, values }));
  }

  cellsOf(lane) {
    let cells = this.cells.get(lane);
    if (!cells) {
      cells = this.lanes.cells(lane, this.axis, this.threads, this.under);
      cells.states = this.ordered(cells.states);
      this.cells.set(lane, cells);
    }
    return cells;
  }

  x(ns) {
    return this.gutter + ((ns - this.from) / (this.to - this.from)) * this.plot;
  }

  ns(x) {
    return this.from + Math.min(1, Math.max(0, (x - this.gutter) / this.plot)) * (this.to - this.from);
  }

  /** Where a lane ends, from the canvas' top on. */
  base(lane) {
    return HEAD + (lane + 1) * LANE - this.box.scrollTop;
  }

  laneAt(y) {
    const lane = Math.floor((y - HEAD + this.box.scrollTop) / LANE);
    return y >= HEAD && lane >= 0 && lane < this.lanes.count ? lane : -1;
  }

  paintSoon() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      this.paint();
    });
  }

  paint() {
    if (!this.event) return;
    const g = this.context;
    const colour = emptyCanvas(g, this.width, this.height);
    g.font = "11.5px system-ui, sans-serif";
    g.textBaseline = "middle";
    g.save();
    g.beginPath();
    g.rect(0, HEAD, this.width, this.height);
    g.clip();
    this.paintLanes(g, colour);
    this.paintArrows(g, colour);
    g.restore();
    this.paintAxis(g, colour);
    this.paintStates(g, this.states, HEAD, OVERVIEW - 6, this.peak);
    this.paintBars(g, this.sums, this.matches, HEAD, OVERVIEW - 6, this.peak, colour);
    g.fillStyle = colour("--dim");
    g.fillText(this.threads ? "selected threads" : this.byThread ? "all threads" : "all", 12, AXIS + OVERVIEW / 2, this.gutter - 16);
    this.paintMarks(g, colour);
    this.paintRange(g, colour);
  }

  paintLanes(g, colour) {
    const first = Math.max(0, Math.floor(this.box.scrollTop / LANE) - 1);
    for (let lane = first; lane < this.lanes.count; lane++) {
      const base = this.base(lane);
      if (base - LANE > this.height) break;
      const off = this.byThread && this.threads && !this.threads[this.lanes.keys[lane]];
      const { sums, matches, states } = this.cellsOf(lane);
      g.globalAlpha = off ? 0.35 : 1;
      g.fillStyle = colour("--line2");
      g.fillRect(this.gutter, base, this.plot, 1);
      this.paintStates(g, states, base, LANE - 3, this.lanePeak);
      this.paintBars(g, sums, matches, base, LANE - 3, this.lanePeak, colour);
      g.fillStyle = colour("--ink");
      this.fit(g, this.lanes.label(lane), 12, base - LANE / 2 + 1, this.gutter - 18);
      g.globalAlpha = 1;
    }
  }

  /** Text cut to the room it has. */
  fit(g, text, x, y, room) {
    let cut = text.slice(0, 60);
    while (cut.length > 1 && g.measureText(cut).width > room) cut = cut.slice(0, -2) + (cut.length > 2 ? "…" : "");
    g.fillText(cut, x, y);
  }

  /** Left and right edge of a column: whole pixels, so that there are no seams between neighbours. */
  edges(column) {
    const { from, columnNs } = this.axis;
    const left = Math.max(this.gutter, Math.round(this.x(from + column * columnNs)));
    return [left, Math.min(this.gutter + this.plot, Math.max(left + 1, Math.round(this.x(from + (column + 1) * columnNs))))];
  }

  paintBars(g, values, matches, base, height, peak, colour) {
    if (!peak) return;
    for (const [list, name] of [[values, "--plot"], [matches, "--hit"]]) {
      if (list === values && this.event.hasStates) continue;
      g.fillStyle = colour(name);
      for (let i = 0; i < this.axis.columns; i++) {
        if (!list[i]) continue;
        const [left, right] = this.edges(i);
        const h = Math.max(1, Math.min(1, list[i] / peak) * height);
        g.fillRect(left, base - h, right - left, h);
      }
    }
  }

  /** Bars of what threads did, on top of each other. */
  paintStates(g, states, base, height, peak) {
    if (!peak) return;
    const below = new Float64Array(this.axis.columns);
    for (const { fn, values } of states) {
      g.fillStyle = this.palette.of(fn);
      for (let i = 0; i < this.axis.columns; i++) {
        if (!values[i]) continue;
        const [left, right] = this.edges(i);
        const from = Math.min(1, below[i] / peak) * height;
        below[i] += values[i];
        const to = Math.min(1, below[i] / peak) * height;
        g.fillRect(left, base - to, right - left, to - from);
      }
    }
  }

  /** Arrows from the ends of waits to the threads that ended them: of the longest, and of the one that is pointed at. */
  paintArrows(g, colour) {
    const { links } = this.event;
    this.arrows = 0;
    if (!this.byThread || !links.count) return;
    const lane = this.lanes.place;
    const middle = (at) => this.base(at) - LANE / 2 + 1;
    const [from, to] = this.range || [this.from, this.to];
    const seen = (thread) => lane.has(thread) && Math.abs(middle(lane.get(thread)) - this.height / 2) < this.height;
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
      if (seen(links.thread[i]) && seen(links.waker[i]) && end >= from && end <= to) draw(i, false);
    }
    if (this.pointed >= 0 && lane.has(links.thread[this.pointed])) draw(this.pointed, true);
  }

  /** The wait under the pointer says what ended it. */
  pointAt(x, y) {
    const lane = this.byThread && x >= this.gutter ? this.laneAt(y) : -1;
    const found = lane >= 0 ? this.event.linkAt(this.lanes.keys[lane], this.ns(x)) : -1;
    if (found === this.pointed) return;
    this.pointed = found;
    const { words, state, by, length } = this.event.links;
    this.canvas.title = found < 0 ? "" : clean(`${words[state[found]]} for ${formatNs(length[found])}, ended by ${words[by[found]]}`);
    this.paint();
  }

  paintAxis(g, colour) {
    const span = this.to - this.from;
    let step = 1;
    for (let k = 0; (span / step) * 86 > this.plot && k < 60; k++) step *= k % 3 === 1 ? 2.5 : 2;
    g.fillStyle = colour("--dim");
    for (let at = Math.ceil(this.from / step) * step; at <= this.to; at += step) {
      const x = this.x(at);
      g.fillRect(x, AXIS - 4, 1, 4);
      const text = at ? formatMoment(at, step) : "0";
      if (x + g.measureText(text).width < this.width) g.fillText(text, x + 3, AXIS / 2 - 1);
    }
    g.fillStyle = colour("--line");
    g.fillRect(this.gutter, AXIS, this.plot, 1);
  }

  /** Losses red, throttled stretches and pauses grey, over everything. */
  paintMarks(g, colour) {
    for (const mark of this.profile.intervals) {
      const from = this.x(Math.max(this.from, mark.start_ns - this.profile.startNs));
      const to = this.x(Math.min(this.to, mark.end_ns - this.profile.startNs));
      if (to < this.gutter || from > this.gutter + this.plot) continue;
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
    const from = this.x(Math.min(this.to, Math.max(this.from, range[0])));
    const to = this.x(Math.max(this.from, Math.min(this.to, range[1])));
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
    if (event.button !== 0 || !this.entries.count) return;
    const [x, y] = this.point(event);
    if (x < this.gutter) {
      const lane = this.laneAt(y);
      if (this.byThread && lane >= 0) this.on.thread(this.lanes.keys[lane]);
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
    if (x < this.gutter) return this.byThread ? "pointer" : "default";
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
    const sign = { ArrowLeft: -1, ArrowRight: 1, a: -1, d: 1 }[event.key];
    const zoom = { "+": 0.5, "=": 0.5, w: 0.5, "-": 2, s: 2 }[event.key];
    const length = { ArrowUp: 0.5, ArrowDown: 2 }[event.key];
    if (!sign && !zoom && !length) return;
    event.preventDefault();
    event.stopPropagation();
    const [from, to] = this.range || [this.from, this.to];
    if (zoom) this.zoom(zoom, this.range ? (from + to) / 2 : (this.from + this.to) / 2);
    else if (/[ad]/.test(event.key)) this.pan((sign * (this.to - this.from)) / 4);
    else {
      const span = this.event.spanNs;
      const wide = Math.max(LEAST_WINDOW, Math.min(span, (to - from) * (length || 1)));
      const middle = (from + to) / 2 + (sign ? sign * (this.range ? wide / 4 : 0) : 0);
      const begin = Math.min(Math.max(0, middle - wide / 2), span - wide);
      this.on.range(wide >= span ? null : [begin, begin + wide]);
    }
  }

  /** With Ctrl it zooms where the pointer is; sideways, or with Shift, it moves along. Lanes scroll by themselves. */
  wheel(event) {
    const [x] = this.point(event);
    const sideways = event.shiftKey ? event.deltaY || event.deltaX : event.deltaX;
    if (event.ctrlKey) this.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.ns(x));
    else if (sideways) this.pan((sideways / this.plot) * (this.to - this.from));
    else return;
    event.preventDefault();
  }

  /** Shows so many times as much, with this moment where it is. */
  zoom(by, at) {
    const span = this.event.spanNs;
    const wide = Math.max(LEAST_WINDOW, (this.to - this.from) * by);
    const from = Math.max(0, Math.min(at - ((at - this.from) / (this.to - this.from)) * wide, span - wide));
    this.on.window(wide >= span ? null : [from, from + wide]);
  }

  pan(ns) {
    const wide = this.to - this.from;
    const from = Math.max(0, Math.min(this.from + ns, this.event.spanNs - wide));
    if (wide < this.event.spanNs) this.on.window([from, from + wide]);
  }
}
