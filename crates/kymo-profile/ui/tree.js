"use strict";
// Views of a call tree: from the outermost frame down, from the innermost up, or through one function.

/** A growing call tree in which a child is found by its parent and its function. */
class Tree {
  constructor(room) {
    this.count = 0;
    this.parent = new Int32Array(room);
    this.func = new Int32Array(room);
    this.self = new Float64Array(room);
    this.total = new Float64Array(room);
    // Weight of samples that have no frame to draw, as with commands hidden; it still counts as part of 100 %.
    this.bare = 0;
    this.first = null;
    this.sorted = new Map();
    this.resizeTable(room * 2);
  }

  resizeTable(wanted) {
    let size = 1024;
    while (size < wanted) size *= 2;
    this.table = new Int32Array(size).fill(NO_NODE);
    for (let node = 0; node < this.count; node++) {
      this.table[this.slot(this.parent[node], this.func[node])] = node;
    }
  }

  slot(parent, func) {
    const mask = this.table.length - 1;
    let hash = Math.imul(parent + 2, 0x9e3779b1) ^ Math.imul(func + 1, 0x85ebca6b);
    hash ^= hash >>> 15;
    for (let at = hash & mask; ; at = (at + 1) & mask) {
      const node = this.table[at];
      if (node === NO_NODE || (this.parent[node] === parent && this.func[node] === func)) return at;
    }
  }

  child(parent, func) {
    let at = this.slot(parent, func);
    if (this.table[at] !== NO_NODE) return this.table[at];
    if (this.count === this.parent.length) this.grow();
    if (this.count * 2 >= this.table.length) {
      this.resizeTable(this.table.length * 2);
      at = this.slot(parent, func);
    }
    const node = this.count++;
    this.parent[node] = parent;
    this.func[node] = func;
    this.table[at] = node;
    return node;
  }

  grow() {
    const room = Math.max(1024, this.parent.length * 2);
    for (const [name, Type] of [["parent", Int32Array], ["func", Int32Array], ["self", Float64Array], ["total", Float64Array]]) {
      const wider = new Type(room);
      wider.set(this[name]);
      this[name] = wider;
    }
  }

  /** Adds up totals from selves (unless the builder gave totals) and links children to parents. */
  finish(sumUp) {
    const n = this.count;
    this.table = null;
    if (sumUp) this.total = addUp(this.parent, this.self, n);
    this.first = new Int32Array(n).fill(NO_NODE);
    this.next = new Int32Array(n).fill(NO_NODE);
    this.whole = this.bare;
    this.firstRoot = NO_NODE;
    for (let i = n - 1; i >= 0; i--) {
      if (!(this.total[i] > 0)) continue;
      const p = this.parent[i];
      if (p === NO_NODE) {
        this.whole += this.total[i];
        this.next[i] = this.firstRoot;
        this.firstRoot = i;
      } else {
        this.next[i] = this.first[p];
        this.first[p] = i;
      }
    }
    return this;
  }

  /** Children of a node (or the roots, for NO_NODE) in drawing order; sorted when first asked for. */
  children(node, compare) {
    let list = this.sorted.get(node);
    if (!list) {
      list = [];
      for (let i = node === NO_NODE ? this.firstRoot : this.first[node]; i !== NO_NODE; i = this.next[i]) list.push(i);
      list.sort(compare);
      this.sorted.set(node, list);
    }
    return list;
  }

  /** Functions from the root to `node`. */
  path(node) {
    const path = [];
    for (let i = node; i !== NO_NODE; i = this.parent[i]) path.unshift(this.func[i]);
    return path;
  }

  /** The node at the end of a path of functions, or NO_NODE. */
  find(path) {
    let node = NO_NODE;
    for (const func of path) {
      let i = node === NO_NODE ? this.firstRoot : this.first[node];
      while (i !== NO_NODE && this.func[i] !== func) i = this.next[i];
      if (i === NO_NODE) return NO_NODE;
      node = i;
    }
    return node;
  }
}

/** Each node's own weight plus that of everything below it. Parents come before children. */
function addUp(parent, self, count) {
  const total = self.slice(0, count);
  for (let i = count - 1; i >= 0; i--) if (parent[i] !== NO_NODE) total[parent[i]] += total[i];
  return total;
}

/**
 * The tree to draw.
 * options: {view: "down" | "up" | "callers" | "callees", focus: function, commands: bool, merge: bool}
 */
function buildTree(profile, event, self, options) {
  const { parent, func, nodeCount } = event;
  const skip = (node) => !options.commands && profile.kinds[func[node]] === "c";
  const weight = addUp(parent, self, nodeCount);
  const tree = new Tree(options.view === "down" ? nodeCount : 1024);

  // Everything from the innermost frame outwards, weight added at each step.
  const outwards = (from, amount) => {
    let at = NO_NODE;
    for (let node = from; node !== NO_NODE; node = parent[node]) {
      if (skip(node)) continue;
      if (options.merge) {
        const above = ancestorWith(tree, at, func[node]);
        if (above !== NO_NODE) {
          at = above;
          continue;
        }
      }
      at = tree.child(at, func[node]);
      tree.total[at] += amount;
    }
    if (at !== NO_NODE) tree.self[at] += amount;
    else tree.bare += amount;
  };

  if (options.view === "up") {
    for (let node = 0; node < nodeCount; node++) if (self[node] > 0) outwards(node, self[node]);
    return tree.finish(false);
  }

  // Nodes that have the focus above them, on their own path.
  const inside = options.view === "down" ? null : new Uint8Array(nodeCount);
  const place = new Int32Array(nodeCount).fill(-2);
  for (let node = 0; node < nodeCount; node++) {
    const above = parent[node];
    let to = above === NO_NODE ? NO_NODE : place[above];
    if (inside) {
      const within = above !== NO_NODE && inside[above];
      const hit = func[node] === options.focus;
      inside[node] = within || hit ? 1 : 0;
      if (options.view === "callers") {
        if (hit && !within && weight[node] > 0) outwards(node, weight[node]);
        continue;
      }
      if (!inside[node]) continue;
      if (!within) to = NO_NODE;
    }
    if (!(weight[node] > 0)) continue;
    if (skip(node)) {
      place[node] = to;
      if (to === NO_NODE) tree.bare += self[node];
      else tree.self[to] += self[node];
      continue;
    }
    const merged = options.merge ? ancestorWith(tree, to, func[node]) : NO_NODE;
    const at = merged !== NO_NODE ? merged : tree.child(to, func[node]);
    place[node] = at;
    tree.self[at] += self[node];
  }
  return tree.finish(options.view !== "callers");
}

function ancestorWith(tree, from, func) {
  let at = from;
  while (at !== NO_NODE && tree.func[at] !== func) at = tree.parent[at];
  return at;
}

/** Self and total by function; a recursive function counts once per sample. */
function sumByFunction(profile, event, self) {
  const { parent, func, nodeCount } = event;
  const own = new Float64Array(profile.functionCount);
  const total = new Float64Array(profile.functionCount);
  const weight = addUp(parent, self, nodeCount);
  for (let node = 0; node < nodeCount; node++) {
    if (!(weight[node] > 0)) continue;
    own[func[node]] += self[node];
    let above = parent[node];
    while (above !== NO_NODE && func[above] !== func[node]) above = parent[above];
    if (above === NO_NODE) total[func[node]] += weight[node];
  }
  return { own, total };
}

/** The functions with code of their own into which an inlined one was put, those with most samples first. */
function functionsAround(profile, event, fn) {
  const sums = new Map();
  for (let node = 0; node < event.nodeCount; node++) {
    if (event.func[node] !== fn) continue;
    let above = event.parent[node];
    while (above !== NO_NODE && profile.kinds[event.func[above]] === "i") above = event.parent[above];
    if (above !== NO_NODE) sums.set(event.func[above], (sums.get(event.func[above]) || 0) + event.selfSamples[node] + 1);
  }
  return [...sums].sort((a, b) => b[1] - a[1]).slice(0, 3).map(([around]) => around);
}

/** What a search means: text anywhere in the name, `=whole name`, `/pattern/`, `module:text`. Null for no search. */
function matcher(profile, query) {
  const q = query.trim();
  if (!q) return null;
  const hits = new Uint8Array(profile.functionCount);
  let test;
  const pattern = /^\/(.+)\/$/.exec(q);
  if (pattern) {
    let expression;
    try {
      expression = new RegExp(pattern[1], "i");
    } catch {
      return { hits, bad: true };
    }
    test = (fn) => expression.test(profile.names[fn]);
  } else if (q.startsWith("=")) {
    test = (fn) => profile.names[fn] === q.slice(1);
  } else if (q.startsWith("module:")) {
    const part = q.slice(7).trim().toLowerCase();
    test = (fn) => profile.moduleName(fn).toLowerCase().includes(part);
  } else {
    const part = q.toLowerCase();
    test = (fn) => profile.names[fn].toLowerCase().includes(part);
  }
  for (let fn = 0; fn < profile.functionCount; fn++) hits[fn] = test(fn) ? 1 : 0;
  return { hits, bad: false };
}

/** Weight of the samples that have a match anywhere on their stack. */
function matchedWeight(event, self, hits) {
  const under = new Uint8Array(event.nodeCount);
  let sum = 0;
  for (let node = 0; node < event.nodeCount; node++) {
    const above = event.parent[node];
    under[node] = hits[event.func[node]] || (above !== NO_NODE && under[above]) ? 1 : 0;
    if (under[node]) sum += self[node];
  }
  return sum;
}
