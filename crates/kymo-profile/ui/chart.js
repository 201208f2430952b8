"use strict";
// The flame chart: what one thread did, in the order of time. A box is a call that consecutive
// samples saw.

/** A sample stands for the time until the next one, but not for a gap that is so many times as long as usual. */
const GAP = 2.5;

class FlameChart {
  /** on: {choose(function), range([fromNs, toNs]), hover(lines, x, y) or hover(null)} */
  constructor(box, profile, palette, on) {
    this.box = box;
    this.space = box.querySelector(".flame-space");
    this.canvas = box.querySelector("canvas");
    this.context = this.canvas.getContext("2d");
    this.profile = profile;
    this.palette = palette;
    this.on = on;
    this.boxes = [];
    this.cursor = 0;
    box.addEventListener("scroll", () => this.paint());
    this.canvas.addEventListener("pointermove", (event) => this.move(event));
    this.canvas.addEventListener("pointerleave", () => on.hover(null));
    this.canvas.addEventListener("click", (event) => this.click(event));
    this.canvas.addEventListener("dblclick", () => this.look());
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    for (const name of ["focus", "blur"]) this.canvas.addEventListener(name, () => this.paint());
  }

  /** options: {thread, from, to, commands, hits: flags of functions or null, chosen: function} */
  show(event, entries, options) {
    this.event = event;
    Object.assign(this, options);
    this.width = this.box.clientWidth;
    this.boxes = this.place(this.segments(entries));
    this.cursor = Math.min(this.cursor, Math.max(0, this.boxes.length - 1));
    const rows = this.boxes.reduce((most, box) => Math.max(most, box.row + 1), 4);
    const all = AXIS + rows * ROW;
    this.height = Math.min(all, Math.max(260, Math.round(innerHeight * 0.62)));
    this.box.style.height = this.height + "px";
    this.space.style.height = all + "px";
    sizeCanvas(this.canvas, this.width, this.height);
    this.paint();
  }

  x(ns) {
    return ((ns - this.from) / (this.to - this.from)) * this.width;
  }

  /** What the thread did, as stretches of time with a node each; of several in one column the heaviest. */
  segments(entries) {
    const found = [];
    const columnNs = Math.max(entries.bucketNs, (this.to - this.from) / Math.max(1, this.width * 2));
    let current = null;
    let sums = new Map();
    const end = () => {
      if (!current) return;
      let best = [NO_NODE, 0];
      for (const [node, weight] of sums) if (weight > best[1]) best = [node, weight];
      found.push({ from: current.from, node: best[0] });
    };
    const last = entries.at(this.to);
    for (let i = entries.at(this.from); i < last; i++) {
      if (entries.thread[i] !== this.thread) continue;
      const column = Math.floor((entries.time[i] - this.from) / columnNs);
      if (!current || column !== current.column) {
        end();
        current = { column, from: entries.time[i] };
        sums = new Map();
      }
      sums.set(entries.node[i], (sums.get(entries.node[i]) || 0) + entries.samples[i]);
    }
    end();
    const steps = found.slice(1).map((segment, i) => segment.from - found[i].from).sort((a, b) => a - b);
    const usual = Math.max(columnNs, steps[steps.length >> 1] || 0);
    found.forEach((segment, i) => {
      const next = found[i + 1]?.from ?? Infinity;
      segment.to = Math.min(this.to, next - segment.from > usual * GAP ? segment.from + usual : next);
    });
    return found;
  }

  /** Boxes: neighbours that share a path of the call tree share its boxes. */
  place(segments) {
    const { parent, func } = this.event;
    const boxes = [];
    let open = [];
    let before = -1;
    for (const { from, to, node } of segments) {
      const path = [];
      for (let at = node; at !== NO_NODE; at = parent[at]) {
        if (this.commands || this.profile.kinds[func[at]] !== "c") path.unshift(at);
      }
      let same = 0;
      if (from - before <= 1) while (same < path.length && open[same]?.node === path[same]) same++;
      open.length = same;
      for (const box of open) box.to = to;
      for (let row = same; row < path.length; row++) {
        const box = { node: path[row], row, from, to };
        open.push(box);
        boxes.push(box);
      }
      before = to;
    }
    return boxes;
  }

  paint() {
    if (!this.event) return;
    const g = this.context;
    const colour = emptyCanvas(g, this.width, this.height);
    const ink = colour("--ink");
    const hit = this.palette.dark ? "oklch(0.52 0.2 325)" : "oklch(0.76 0.17 325)";
    g.font = FRAME_FONT;
    g.textBaseline = "middle";
    const letter = g.measureText("0").width;
    for (const box of this.boxes) {
      const top = AXIS + box.row * ROW - this.box.scrollTop;
      const x = this.x(box.from);
      const w = Math.max(0.5, this.x(box.to) - x);
      if (top + ROW < AXIS || top > this.height) continue;
      const fn = this.event.func[box.node];
      const matches = this.hits && this.hits[fn];
      g.globalAlpha = this.hits && !matches ? 0.38 : 1;
      g.fillStyle = matches ? hit : this.palette.of(fn);
      g.fillRect(x, top, w > 2 ? w - 0.7 : w, ROW - 1);
      if (fn === this.chosen && w > 3) {
        g.strokeStyle = colour("--accent");
        g.lineWidth = 1.5;
        g.strokeRect(x + 0.75, top + 0.75, w - 2.2, ROW - 2.5);
      }
      if (w < 22) continue;
      g.fillStyle = ink;
      const text = shortenedName(this.profile.names[fn], Math.floor((w - 8) / letter));
      if (text) g.fillText(text, x + 4, top + ROW / 2, w - 8);
    }
    g.globalAlpha = 1;
    const box = document.activeElement === this.canvas && this.boxes[this.cursor];
    if (box) {
      g.strokeStyle = ink;
      g.lineWidth = 2;
      g.strokeRect(this.x(box.from) + 1, AXIS + box.row * ROW - this.box.scrollTop + 1, Math.max(2, this.x(box.to) - this.x(box.from) - 2), ROW - 3);
    }
    this.paintAxis(g, colour);
  }

  paintAxis(g, colour) {
    g.fillStyle = colour("--card");
    g.fillRect(0, 0, this.width, AXIS);
    g.fillStyle = colour("--dim");
    g.font = "11.5px system-ui, sans-serif";
    const span = this.to - this.from;
    let step = 1;
    for (let k = 0; (span / step) * 100 > this.width && k < 60; k++) step *= k % 3 === 1 ? 2.5 : 2;
    for (let at = Math.ceil(this.from / step) * step; at <= this.to; at += step) {
      g.fillRect(this.x(at), AXIS - 4, 1, 4);
      g.fillText(at ? formatMoment(at, step) : "0", this.x(at) + 3, AXIS / 2 - 1);
    }
  }

  at(event) {
    const area = this.canvas.getBoundingClientRect();
    const x = event.clientX - area.left;
    const row = Math.floor((event.clientY - area.top + this.box.scrollTop - AXIS) / ROW);
    return this.boxes.findIndex((box) => box.row === row && x >= this.x(box.from) && x < Math.max(this.x(box.from) + 1, this.x(box.to)));
  }

  lines(box) {
    const fn = this.event.func[box.node];
    return [this.profile.names[fn], [this.profile.moduleName(fn), this.profile.place(fn)].filter(Boolean).join(", "),
      `about ${formatNs(box.to - box.from)}, from ${formatNs(box.from)} on`];
  }

  move(event) {
    const at = this.at(event);
    this.on.hover(at < 0 ? null : this.lines(this.boxes[at]), event.clientX, event.clientY);
  }

  click(event) {
    const at = this.at(event);
    if (at < 0) return;
    this.cursor = at;
    this.on.choose(this.event.func[this.boxes[at].node]);
  }

  /** Looks closer at the box. */
  look() {
    const box = this.boxes[this.cursor];
    if (box) this.on.range([box.from, box.to]);
  }

  key(event) {
    const box = this.boxes[this.cursor];
    if (!box) return;
    const middle = (box.from + box.to) / 2;
    const find = {
      ArrowLeft: () => this.boxes.findLastIndex((other) => other.row === box.row && other.to <= box.from + 1),
      ArrowRight: () => this.boxes.findIndex((other) => other.row === box.row && other.from >= box.to - 1),
      ArrowUp: () => this.boxes.findIndex((other) => other.row === box.row - 1 && other.from <= middle && other.to >= middle),
      ArrowDown: () => this.boxes.findIndex((other) => other.row === box.row + 1 && other.from >= box.from - 1 && other.to <= box.to + 1),
      Enter: () => this.cursor,
    }[event.key];
    if (!find) return;
    event.preventDefault();
    const next = find();
    if (event.key === "Enter") this.look();
    else if (next >= 0) {
      this.cursor = next;
      this.on.choose(this.event.func[this.boxes[next].node]);
    }
  }
}
