"use strict";
// The flame graph: a canvas as large as what is visible of it, redrawn on scroll.

const ROW = 19;
const MIN_WIDTH = 0.6;
const FRAME_FONT = '12px ui-monospace, "SFMono-Regular", Menlo, Consolas, "DejaVu Sans Mono", monospace';
/** Stands for the siblings that are too narrow to draw. */
const REST = -2;
/** Hues that user modules get in order of their weight; the oranges are the kernel's. */
const HUES = [255, 150, 305, 195, 105, 345, 225, 130, 280, 170, 325];

/** Colours by module: kernel orange, and a pale sand where states have colours, inlined frames paler than their module, commands and unknown code grey. */
class Palette {
  constructor(profile) {
    this.profile = profile;
    this.hue = new Map();
    this.cache = new Map();
    this.dark = false;
    this.hasStates = profile.kinds.includes("s");
  }

  /** Hands out hues, heaviest module first. */
  rank(modules) {
    for (const module of modules) {
      if (!this.hue.has(module)) {
        const nth = this.hue.size;
        this.hue.set(module, (HUES[nth % HUES.length] + 14 * Math.floor(nth / HUES.length)) % 360);
      }
    }
  }

  /** Colours of another profile of the same recording: each module keeps its own. */
  replace(profile) {
    const modules = new Map(profile.modules.map((name, module) => [name, module]));
    this.hue = new Map([...this.hue].map(([module, hue]) => [modules.get(this.profile.modules[module]), hue]));
    this.hue.delete(undefined);
    this.profile = profile;
    this.hasStates = profile.kinds.includes("s");
    this.cache.clear();
  }

  setDark(dark) {
    this.dark = dark;
    this.cache.clear();
  }

  /** Fill colour of a function's frames. */
  of(fn) {
    let colour = this.cache.get(fn);
    if (!colour) {
      colour = this.mix(fn);
      this.cache.set(fn, colour);
    }
    return colour;
  }

  mix(fn) {
    const kind = this.profile.kinds[fn];
    const module = this.profile.module[fn];
    // Neighbours of one module differ a little, always the same way.
    const shift = ((hashOf(this.profile.names[fn]) % 256) / 255 - 0.5) * 0.05;
    let light = (this.dark ? 0.45 : 0.84) + shift;
    let chroma = 0.085;
    let hue = this.hue.get(module) ?? 255;
    if (this.profile.isKernel(fn)) {
      hue = 55 + (module % 3) * 8;
      chroma = this.hasStates ? 0.025 : kind === "?" ? 0.06 : this.dark ? 0.105 : 0.12;
    } else if (kind === "s") {
      // A thread's state: running green, ready red, waiting by what for, idle a light grey, unknown a
      // dark one.
      const name = this.profile.names[fn];
      hue = STATE_HUES[name] ?? 255;
      chroma = hue === 255 ? 0.01 : ["other", "stopped"].includes(name) ? 0.05 : 0.13;
      light = (this.dark ? 0.45 : 0.84) + (name === "unknown" ? -0.16 : hue === 255 ? 0.04 : shift);
    } else if (kind === "c") {
      chroma = 0.012;
      hue = 255;
    } else if (kind === "?") {
      chroma = 0.03;
    } else if (kind === "i") {
      light += this.dark ? -0.07 : 0.06;
      chroma *= 0.7;
    }
    return `oklch(${light.toFixed(3)} ${chroma} ${hue})`;
  }
}

/** Colour of a frame that costs so much on both sides: red costs more, blue less, half as much again is as strong as it gets. */
function colourOfChange(old, now, dark) {
  const part = Math.max(-1, Math.min(1, (2 * (now - old)) / Math.max(Math.min(old, now), 0.25 * Math.max(old, now), 1)));
  const chroma = 0.16 * Math.abs(part);
  const light = dark ? 0.36 + 0.14 * Math.abs(part) : 0.92 - 0.2 * Math.abs(part);
  return `oklch(${light.toFixed(3)} ${chroma.toFixed(3)} ${part > 0 ? 25 : 255})`;
}

/** Fills the legend of a comparison. */
function showLegendOfChange(dark) {
  const items = [[0.5, "costs less"], [1, "the same"], [1.5, "costs more"]].map(([now, words]) => {
    const item = element("span", undefined, "change");
    const swatch = element("i");
    swatch.style.background = colourOfChange(100, 100 * now, dark);
    item.append(swatch, words);
    return item;
  });
  $("legend").replaceChildren(...items);
}

const STATE_HUES = {
  running: 145,
  runnable: 25,
  throttled: 5,
  lock: 60,
  condition: 85,
  disk: 262,
  network: 240,
  pipe: 225,
  poll: 215,
  timer: 300,
  "page fault": 275,
  io_uring: 200,
  child: 320,
  other: 105,
  stopped: 50,
};

function restText(frame) {
  return `${formatCount(frame.count)} narrower`;
}

class FlameGraph {
  /** on: {zoom(node), choose(node), hover(frame, x, y) or hover(null)} */
  constructor(box, profile, palette, on) {
    this.box = box;
    this.space = box.querySelector(".flame-space");
    this.canvas = box.querySelector("canvas");
    this.context = this.canvas.getContext("2d");
    this.profile = profile;
    this.palette = palette;
    this.on = on;
    this.tree = null;
    this.zoomNode = NO_NODE;
    this.hovered = -1;
    this.cursor = -1;
    this.hits = null;
    this.chosen = -1;
    this.flip = false;
    this.pending = false;
    box.addEventListener("scroll", () => this.paintSoon());
    this.canvas.addEventListener("pointermove", (event) => this.move(event));
    this.canvas.addEventListener("pointerleave", () => this.leave());
    this.canvas.addEventListener("click", (event) => this.click(event));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.canvas.addEventListener("focus", () => this.paintSoon());
    this.canvas.addEventListener("blur", () => this.paintSoon());
  }

  /** sides: what each node has on both sides of a comparison; null of a recording. */
  show(tree, zoomNode, byName, sides = null) {
    this.sides = sides;
    if (tree !== this.tree || byName !== this.byName) tree.sorted.clear();
    this.tree = tree;
    this.zoomNode = zoomNode;
    this.byName = byName;
    this.hovered = -1;
    this.layout();
    this.cursor = this.frames.findIndex((frame) => frame.node === zoomNode);
  }

  compare() {
    const { total, func } = this.tree;
    const names = this.profile.names;
    const byName = (a, b) => (names[func[a]] < names[func[b]] ? -1 : names[func[a]] > names[func[b]] ? 1 : a - b);
    return this.byName ? byName : (a, b) => total[b] - total[a] || byName(a, b);
  }

  /** Places every frame that is wide enough to be seen. Row 0 is "all". */
  layout() {
    if (!this.tree) return;
    const width = this.box.clientWidth;
    const tree = this.tree;
    const compare = this.compare();
    const frames = [];
    const rows = [];
    const put = (node, x, w, row, outer) => {
      if (!rows[row]) rows[row] = [];
      rows[row].push(frames.length);
      frames.push({ node, x, w, row, outer });
    };
    put(NO_NODE, 0, width, 0, this.zoomNode !== NO_NODE);
    let row = 1;
    const todo = [];
    if (this.zoomNode !== NO_NODE) {
      const line = [];
      for (let node = tree.parent[this.zoomNode]; node !== NO_NODE; node = tree.parent[node]) line.unshift(node);
      for (const node of line) put(node, 0, width, row++, true);
      todo.push([this.zoomNode, 0, width, row]);
    } else {
      this.placeChildren(NO_NODE, 0, tree.whole > 0 ? width / tree.whole : 0, row, compare, todo);
    }
    while (todo.length) {
      const [node, x, w, at, count] = todo.pop();
      put(node, x, w, at, false);
      if (node === REST) {
        frames[frames.length - 1].count = count;
        continue;
      }
      this.placeChildren(node, x, w / tree.total[node], at + 1, compare, todo);
    }
    for (const list of rows) list.sort((a, b) => frames[a].x - frames[b].x);
    this.frames = frames;
    this.rows = rows;
    this.width = width;
    const height = rows.length * ROW;
    const visible = Math.min(Math.max(height, 8 * ROW), Math.max(260, Math.round(window.innerHeight * 0.62)));
    this.space.style.height = Math.max(height, visible) + "px";
    this.box.style.height = visible + "px";
    this.height = visible;
    this.full = Math.max(height, visible);
    if (this.flip) this.box.scrollTop = this.full;
    sizeCanvas(this.canvas, width, visible);
    this.paint();
  }

  placeChildren(node, x, scale, row, compare, todo) {
    let at = x;
    const children = this.tree.children(node, compare);
    for (let i = 0; i < children.length; i++) {
      const w = this.tree.total[children[i]] * scale;
      if (w < MIN_WIDTH && !this.byName) {
        // Heaviest first: what follows is narrower still, and one bar stands for all of it.
        let rest = 0;
        for (let j = i; j < children.length; j++) rest += this.tree.total[children[j]];
        if (rest * scale >= 2) todo.push([REST, at, rest * scale, row, children.length - i]);
        return;
      }
      if (w >= MIN_WIDTH) todo.push([children[i], at, w, row]);
      at += w;
    }
  }

  rowTop(row) {
    return (this.flip ? this.full - (row + 1) * ROW : row * ROW) - this.box.scrollTop;
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
    if (!this.frames) return;
    const g = this.context;
    const colour = emptyCanvas(g, this.width, this.height);
    const ink = colour("--ink");
    g.font = FRAME_FONT;
    g.textBaseline = "middle";
    const letter = g.measureText("0").width;
    const all = this.palette.dark ? "oklch(0.36 0.01 255)" : "oklch(0.9 0.008 255)";
    const hit = this.palette.dark ? "oklch(0.52 0.2 325)" : "oklch(0.76 0.17 325)";
    for (let row = 0; row < this.rows.length; row++) {
      const top = this.rowTop(row);
      if (top + ROW < 0 || top > this.height) continue;
      for (const index of this.rows[row]) {
        const frame = this.frames[index];
        if (frame.node === REST) {
          g.globalAlpha = 1;
          g.fillStyle = colour("--line2");
          g.fillRect(frame.x, top, Math.max(frame.w - 1, 1), ROW - 1);
          g.fillStyle = colour("--dim");
          if (frame.w > 22) this.write(g, restText(frame), frame.x + 4, top + ROW / 2, frame.w - 8, letter);
          continue;
        }
        const fn = frame.node === NO_NODE ? -1 : this.tree.func[frame.node];
        const matches = this.hits && fn >= 0 && this.hits[fn];
        g.globalAlpha = frame.outer ? 0.55 : this.hits && !matches ? 0.38 : 1;
        g.fillStyle = fn < 0 ? all : matches ? hit : this.colourOf(frame.node, fn);
        const w = frame.w > 2 ? frame.w - 1 : Math.max(frame.w - 0.2, 0.5);
        g.fillRect(frame.x, top, w, ROW - 1);
        if (fn >= 0 && fn === this.chosen) {
          g.strokeStyle = colour("--accent");
          g.lineWidth = 1.5;
          g.strokeRect(frame.x + 0.75, top + 0.75, Math.max(w - 1.5, 0.5), ROW - 2.5);
        }
        if (frame.w > 22) {
          g.globalAlpha = frame.outer || (this.hits && !matches) ? 0.75 : 1;
          g.fillStyle = ink;
          this.write(g, fn < 0 ? this.allText : this.profile.names[fn], frame.x + 4, top + ROW / 2, frame.w - 8, letter);
        }
      }
    }
    g.globalAlpha = 1;
    const focused = document.activeElement === this.canvas;
    for (const [index, wide] of [[this.hovered, 1], [focused ? this.cursor : -1, 2]]) {
      const frame = this.frames[index];
      if (!frame) continue;
      g.strokeStyle = ink;
      g.lineWidth = wide;
      g.strokeRect(frame.x + wide / 2, this.rowTop(frame.row) + wide / 2, Math.max(frame.w - 1 - wide, 1), ROW - 1 - wide);
    }
  }

  colourOf(node, fn) {
    return this.sides ? colourOfChange(this.sides.old[node], this.sides.new[node], this.palette.dark) : this.palette.of(fn);
  }

  /** Writes what fits. Letters of the font have one width; text beyond ASCII is squeezed into its frame instead. */
  write(g, name, x, y, room, letter) {
    const text = shortenedName(name, Math.floor(room / letter));
    if (text) g.fillText(text, x, y, Math.max(room, 1));
  }

  at(event) {
    const area = this.canvas.getBoundingClientRect();
    const x = event.clientX - area.left;
    const y = event.clientY - area.top + this.box.scrollTop;
    const row = Math.floor((this.flip ? this.full - y : y) / ROW);
    for (const index of this.rows[row] || []) {
      const frame = this.frames[index];
      if (x >= frame.x && x < frame.x + frame.w) return index;
    }
    return -1;
  }

  move(event) {
    if (!this.frames) return;
    const index = this.at(event);
    if (index !== this.hovered) {
      this.hovered = index;
      this.paintSoon();
    }
    this.on.hover(index < 0 ? null : this.frames[index], event.clientX, event.clientY);
  }

  leave() {
    this.hovered = -1;
    this.paintSoon();
    this.on.hover(null);
  }

  click(event) {
    const index = this.at(event);
    if (index < 0 || this.frames[index].node === REST) return;
    this.cursor = index;
    this.open(this.frames[index].node);
  }

  open(node) {
    this.on.choose(node);
    this.on.zoom(node);
  }

  key(event) {
    const frame = this.frames[this.cursor] || this.frames[0];
    let next = null;
    const list = this.rows[frame.row];
    const place = list.indexOf(this.frames.indexOf(frame));
    const deeper = this.flip ? "ArrowUp" : "ArrowDown";
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.open(frame.node);
      return;
    } else if (event.key === "ArrowLeft") next = list[place - 1];
    else if (event.key === "ArrowRight") next = list[place + 1];
    else if (event.key === "ArrowUp" || event.key === "ArrowDown") {
      const row = this.rows[frame.row + (event.key === deeper ? 1 : -1)] || [];
      next = row.find((index) => {
        const other = this.frames[index];
        return event.key === deeper ? other.x >= frame.x - 0.01 && other.x < frame.x + frame.w : other.x <= frame.x + 0.01 && other.x + other.w > frame.x;
      });
    } else return;
    event.preventDefault();
    if (next === undefined || next === null || this.frames[next].node === REST) return;
    this.goTo(next);
  }

  /** Goes to the widest frame that a search found; to the next one when that is where it is. */
  goToMatch() {
    const { frames, hits } = this;
    const isMatch = ({ node }) => node !== REST && node !== NO_NODE && hits?.[this.tree.func[node]];
    const found = [...frames.keys()].filter((index) => isMatch(frames[index]));
    if (!found.length) return;
    found.sort((a, b) => frames[b].w - frames[a].w || a - b);
    this.box.scrollIntoView({ block: "nearest" });
    this.goTo(found[(found.indexOf(this.cursor) + 1) % found.length]);
  }

  goTo(next) {
    this.cursor = next;
    const top = this.rowTop(this.frames[next].row);
    if (top < 0) this.box.scrollTop += top;
    else if (top + ROW > this.height) this.box.scrollTop += top + ROW - this.height;
    this.on.choose(this.frames[next].node);
    this.paintSoon();
  }
}
