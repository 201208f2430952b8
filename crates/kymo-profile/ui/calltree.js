"use strict";
// A call tree as a table: branches open and close, and only the rows in sight are in the document.

const TREE_ROW = 24;
/** Chains are opened so far by themselves. */
const MOST_OPENED = 40;

class CallTreeTable {
  /** on: {choose(function)} */
  constructor(box, profile, palette, on) {
    this.box = box;
    this.profile = profile;
    this.palette = palette;
    this.on = on;
    /** Opened branches as paths of functions, so that they stay open when the numbers change. */
    this.open = new Set();
    this.cursor = 0;
    this.rows = [];
    this.list = new RowList(box, TREE_ROW, (at) => this.row(at));
    box.addEventListener("click", (event) => this.click(event));
    box.addEventListener("keydown", (event) => this.key(event));
  }

  /** options: {whole, unit, hasSelf: whether nodes have a part of their own, hits: flags of functions or null, chosen: function, subject: what tree this is} */
  show(tree, options) {
    Object.assign(this, options);
    this.tree = tree;
    if (this.of !== options.subject) {
      this.of = options.subject;
      this.open.clear();
      this.cursor = 0;
      this.openHeaviest();
    }
    this.flatten();
  }

  compare() {
    const { total } = this.tree;
    return (a, b) => total[b] - total[a] || a - b;
  }

  children(node) {
    return this.tree.children(node, this.compare());
  }

  path(node) {
    return this.tree.path(node).join(".");
  }

  /** The way that most samples took, until it divides. */
  openHeaviest() {
    let node = NO_NODE;
    for (let depth = 0; depth < MOST_OPENED; depth++) {
      const [first] = this.children(node);
      if (first === undefined || this.tree.total[first] < 0.5 * this.tree.whole) return;
      this.open.add(this.path(first));
      node = first;
    }
  }

  flatten() {
    this.rows = [];
    const todo = this.children(NO_NODE).map((node) => ({ node, depth: 0, path: String(this.tree.func[node]) })).reverse();
    while (todo.length) {
      const row = todo.pop();
      this.rows.push(row);
      row.isOpen = this.open.has(row.path);
      row.isLeaf = this.tree.first[row.node] === NO_NODE;
      if (!row.isOpen) continue;
      const below = this.children(row.node).map((node) => ({ node, depth: row.depth + 1, path: `${row.path}.${this.tree.func[node]}` }));
      todo.push(...below.reverse());
    }
    this.cursor = Math.max(0, Math.min(this.cursor, this.rows.length - 1));
    this.list.show(this.rows.length, "Nothing was sampled here.");
  }

  row(at) {
    const { node, depth, isOpen, isLeaf } = this.rows[at];
    const { tree, profile } = this;
    const fn = tree.func[node];
    const row = element("div", undefined, "tree-row");
    row.setAttribute("role", "treeitem");
    row.setAttribute("aria-level", depth + 1);
    if (!isLeaf) row.setAttribute("aria-expanded", isOpen);
    row.setAttribute("aria-selected", at === this.cursor);
    if (at === this.cursor) row.classList.add("chosen");
    if (this.hits && this.hits[fn]) row.classList.add("hit");
    const share = element("span", formatShare(tree.total[node], this.whole), "share");
    share.style.setProperty("--part", `${this.whole ? (100 * tree.total[node]) / this.whole : 0}%`);
    const self = element("span", this.hasSelf && tree.self[node] > 0 ? formatShare(tree.self[node], this.whole) : "", "self");
    const name = element("span", undefined, "name");
    name.style.paddingLeft = Math.min(depth, 60) * 14 + "px";
    const swatch = element("i");
    swatch.style.background = this.palette.of(fn);
    name.append(element("span", isLeaf ? "" : isOpen ? "▾" : "▸", "twist"), swatch, profile.names[fn]);
    row.title = `${profile.names[fn]}: ${formatWeight(tree.total[node], this.unit)}`;
    row.append(share, self, name, element("span", profile.moduleName(fn), "dim"));
    return row;
  }

  toggle(at, open) {
    const row = this.rows[at];
    if (!row || row.isLeaf || row.isOpen === open) return;
    if (row.isOpen) this.open.delete(row.path);
    else this.open.add(row.path);
    this.flatten();
  }

  moveTo(at) {
    if (at < 0 || at >= this.rows.length) return;
    this.cursor = at;
    this.list.reveal(at);
    this.list.draw();
    this.on.choose(this.tree.func[this.rows[at].node]);
  }

  click(event) {
    const at = this.list.rowOf(event);
    if (at < 0) return;
    if (event.target.closest(".twist")) this.toggle(at);
    this.moveTo(at);
  }

  key(event) {
    const at = this.cursor;
    const row = this.rows[at];
    if (!row) return;
    const page = Math.max(1, Math.floor(this.box.clientHeight / TREE_ROW) - 1);
    const act = {
      ArrowDown: () => this.moveTo(at + 1),
      ArrowUp: () => this.moveTo(at - 1),
      PageDown: () => this.moveTo(Math.min(this.rows.length - 1, at + page)),
      PageUp: () => this.moveTo(Math.max(0, at - page)),
      Home: () => this.moveTo(0),
      End: () => this.moveTo(this.rows.length - 1),
      ArrowRight: () => (row.isOpen ? this.moveTo(at + 1) : this.toggle(at, true)),
      ArrowLeft: () => (row.isOpen ? this.toggle(at, false) : this.moveTo(this.rows.findLastIndex((other, i) => i < at && other.depth < row.depth))),
      Enter: () => this.toggle(at),
      "*": () => this.openBelow(row),
    }[event.key];
    if (!act) return;
    event.preventDefault();
    event.stopPropagation();
    act();
  }

  /** Opens all that lies below, up to a few thousand rows. */
  openBelow(row) {
    const todo = [[row.node, row.path]];
    for (let count = 0; todo.length && count < 2000; count++) {
      const [node, path] = todo.pop();
      if (this.tree.first[node] === NO_NODE) continue;
      this.open.add(path);
      for (const child of this.children(node)) todo.push([child, `${path}.${this.tree.func[child]}`]);
    }
    this.flatten();
  }
}
