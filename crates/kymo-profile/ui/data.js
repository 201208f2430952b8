"use strict";
// The profile as the page computes with it: packed columns in, typed arrays out.
//
// Names are untrusted. They reach the screen only through textContent and canvas text, never as markup.

const NO_NODE = -1;

/** Bytes of a base64 column. */
function bytesOf(column) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(column);
  const text = atob(column);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

/** Reads `count` LEB128 numbers into `into`. Numbers above 2^53 lose their last digits. */
function unpack(column, into) {
  const bytes = bytesOf(column);
  let at = 0;
  for (let i = 0; i < into.length; i++) {
    let byte = bytes[at++];
    // Most numbers have one byte.
    let number = byte & 127;
    for (let unit = 128; byte & 128; unit *= 128) {
      byte = bytes[at++];
      number += (byte & 127) * unit;
    }
    into[i] = number;
  }
  return into;
}

/** A number below 2^53 that a text always has. */
function hashOf(text) {
  let [low, high] = [7, 11];
  for (let i = 0; i < text.length; i++) {
    const code = text.charCodeAt(i);
    low = Math.imul(low ^ code, 0x5bd1e995);
    high = Math.imul(high, 31) + code;
  }
  return (low >>> 0) + 2 ** 32 * (Math.imul(high, 0x9e3779b1) >>> 11);
}

/** The page's data, decoded once. */
class Profile {
  constructor(packed) {
    Object.assign(this, packed);
    const f = packed.functions;
    const count = f.name.length;
    this.functionCount = count + 1;
    // One more than there are: what a damaged model refers to.
    this.names = f.name.concat("[unknown]").map((name) => name || "[unknown]");
    this.kinds = f.kind + "?";
    this.module = new Int32Array(count + 1);
    unpack(f.module, this.module.subarray(0, count));
    this.file = unpack(f.file, new Int32Array(count));
    this.line = unpack(f.line, new Int32Array(count));
    this.threadCount = packed.threads.tid.length;
    this.events = packed.events.map((event) => new Event_(event, this));
    if (packed.compared) this.comparison = new Comparison(packed.compared, this);
  }

  /** A short word for a function that depends only on what it is called. */
  keyOf(fn) {
    return hashOf(`${this.kinds[fn]}\0${this.moduleName(fn)}\0${this.names[fn]}`).toString(36);
  }

  /** The function that has this key, or this name; else -1. */
  functionOf(key) {
    if (!key) return -1;
    this.keys ??= new Map(Array.from({ length: this.functionCount }, (_, i) => this.functionCount - 1 - i).map((fn) => [this.keyOf(fn), fn]));
    return this.keys.get(key) ?? this.names.indexOf(key);
  }

  moduleName(fn) {
    return this.modules[this.module[fn]] || "";
  }

  isKernel(fn) {
    return this.kinds[fn] === "k" || (this.kinds[fn] === "?" && this.moduleName(fn).startsWith("[kernel"));
  }

  /** "file:line", or nothing. */
  place(fn) {
    if (!this.file[fn]) return "";
    const line = this.line[fn];
    return this.files[this.file[fn] - 1] + (line ? ":" + line : "");
  }

  threadLabel(thread) {
    const t = this.threads;
    return `${t.comm[thread] || "?"} ${t.tid[thread]}`;
  }
}

/** Two sides of a comparison: the first event is the new one, the second the old one, over one call tree. */
class Comparison {
  constructor(compared, profile) {
    this.profile = profile;
    this.found = new Map(compared.map((one) => [one.function, one]));
  }

  /** Self and total by function on each side. */
  sums() {
    this.both ??= this.profile.events.slice(0, 2).map((event) => sumByFunction(this.profile, event, event.selfPeriod));
    return { new: this.both[0], old: this.both[1] };
  }

  /** How much more the new side's function costs itself, as a part of the old one; Infinity where that has nothing. */
  change(fn) {
    const { old, new: now } = this.sums();
    return now.own[fn] === old.own[fn] ? 0 : now.own[fn] / old.own[fn] - 1;
  }

  /** The same as an amount. */
  difference(fn) {
    const { old, new: now } = this.sums();
    return now.own[fn] - old.own[fn];
  }

  /** Of each node of a tree that is shown, what it has on both sides. `shown`, `other`: trees of the shown event and of the other one. */
  sides(shown, other, isNew) {
    const below = new Map();
    for (let node = 0; node < other.count; node++) below.set(other.parent[node] * this.profile.functionCount + other.func[node], node);
    const match = new Int32Array(shown.count);
    const others = new Float64Array(shown.count);
    // Parents come before children.
    for (let node = 0; node < shown.count; node++) {
      const above = shown.parent[node] === NO_NODE ? NO_NODE : match[shown.parent[node]];
      const is = shown.parent[node] !== NO_NODE && above === NO_NODE ? undefined : below.get(above * this.profile.functionCount + shown.func[node]);
      match[node] = is ?? NO_NODE;
      others[node] = is === undefined ? 0 : other.total[is];
    }
    return isNew ? { old: others, new: shown.total } : { old: shown.total, new: others };
  }
}

/** Samples over time, in buckets of equal length, ordered by time: of a whole event, or of a range that the server knows better. */
class Entries {
  /** `startNs`: where the first bucket begins. */
  constructor(packed, perSample, startNs = 0) {
    const n = packed.count;
    this.count = n;
    this.bucketNs = packed.bucketNs;
    this.time = unpack(packed.bucket, new Float64Array(n));
    let bucket = 0;
    for (let i = 0; i < n; i++) this.time[i] = startNs + (bucket += this.time[i]) * this.bucketNs;
    this.thread = unpack(packed.thread, new Int32Array(n));
    this.cpu = unpack(packed.cpu, new Int32Array(n));
    for (let i = 0; i < n; i++) this.cpu[i] -= 1;
    this.node = unpack(packed.node, new Int32Array(n));
    this.samples = unpack(packed.samples, new Float64Array(n));
    this.period = packed.period ? unpack(packed.period, new Float64Array(n)) : this.samples.map((s) => s * perSample);
    /** Where the last bucket ends. */
    this.last = n ? this.time[n - 1] + this.bucketNs : 0;
  }

  /** The first entry whose bucket begins at or after `ns`. */
  at(ns) {
    let low = 0;
    let high = this.count;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.time[middle] < ns) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}

/** One event: its call tree by column, and its samples over time, ordered by time. */
class Event_ {
  constructor(packed, profile) {
    this.name = packed.name;
    this.unit = packed.unit;
    this.samples = packed.samples;
    this.period = packed.period;
    this.perSample = packed.per_sample;
    const n = packed.nodes.count;
    this.nodeCount = n;
    this.parent = unpack(packed.nodes.parent, new Int32Array(n));
    for (let i = 0; i < n; i++) this.parent[i] = this.parent[i] ? i - this.parent[i] : NO_NODE;
    this.func = unpack(packed.nodes.function, new Int32Array(n));
    this.selfSamples = unpack(packed.nodes.samples, new Float64Array(n));
    this.selfPeriod = packed.nodes.period
      ? unpack(packed.nodes.period, new Float64Array(n))
      : this.selfSamples.map((s) => s * this.perSample);

    this.entries = new Entries(packed.timeline, this.perSample);
    this.readLinks(packed.links);
    // Of wall time each stack ends with what the thread did: its function, else -1.
    this.stateOf = this.func.map((fn) => (profile.kinds[fn] === "s" ? fn : -1));
    this.isWallTime = this.stateOf.some((fn) => fn >= 0);
    const { count, last } = this.entries;
    this.hasStates = count > 0 && this.isWallTime;
    // The axis ends where the recording does, or where the last sample is.
    this.spanNs = Math.max(profile.durationNs, last, 1);
    // A long recording's timeline holds a part of the samples, each standing for several.
    this.estimated = count > 0 && this.entries.samples.reduce((a, b) => a + b, 0) !== this.samples;
    this.hasCpus = this.entries.cpu.some((cpu) => cpu >= 0);
  }

  /** Waits and what ended them, the longest first. */
  readLinks(packed) {
    const k = packed.count;
    const list = (column) => unpack(column, new Float64Array(k));
    this.links = {
      count: k, thread: list(packed.thread), begin: list(packed.begin), length: list(packed.length),
      waker: list(packed.waker).map((thread) => thread - 1), state: list(packed.state), by: list(packed.by), words: packed.words,
    };
  }

  /** The longest wait of a thread at a moment: its number, or -1. */
  linkAt(thread, ns) {
    const { count, thread: of, begin, length } = this.links;
    for (let i = 0; i < count; i++) if (of[i] === thread && begin[i] <= ns && ns <= begin[i] + length[i]) return i;
    return -1;
  }

  /** Shares by period and by sample count differ only if samples stand for different periods. */
  get uniform() {
    return this.perSample !== null;
  }

  /**
   * Weight by node of the samples that pass the filter, and their number.
   * filter: {range: [fromNs, toNs] or null, threads: Uint8Array or null, bySamples: bool}
   */
  weigh(filter) {
    if (!filter.range && !filter.threads) {
      return { self: filter.bySamples ? this.selfSamples : this.selfPeriod, samples: this.samples };
    }
    const self = new Float64Array(this.nodeCount);
    const { entries } = this;
    const weight = filter.bySamples ? entries.samples : entries.period;
    const from = filter.range ? entries.at(filter.range[0]) : 0;
    const to = filter.range ? entries.at(filter.range[1]) : entries.count;
    let samples = 0;
    for (let i = from; i < to; i++) {
      if (filter.threads && !filter.threads[entries.thread[i]]) continue;
      self[entries.node[i]] += weight[i];
      samples += entries.samples[i];
    }
    return { self, samples };
  }

  /** Exact sums of a selection, from the server's answer, in the form of `weigh`. */
  spread(sums, bySamples) {
    const self = new Float64Array(this.nodeCount);
    const own = bySamples ? sums.own_samples : sums.own_period;
    sums.node.forEach((node, i) => (self[node] = own[i]));
    return { self, samples: this.isWallTime ? sums.period : sums.samples };
  }

  /** A range moved to the borders of buckets, so that what is shown is what is counted. */
  snap(range) {
    const unit = this.entries.bucketNs;
    const from = Math.max(0, Math.floor(range[0] / unit) * unit);
    const to = Math.max(from + unit, Math.ceil(range[1] / unit) * unit);
    return [from, to];
  }
}

// ---- words for numbers -------------------------------------------------------------------------------------------

const groups = new Intl.NumberFormat("en-US");

function formatCount(n) {
  return groups.format(Math.round(n));
}

function formatNs(ns) {
  for (const [unit, name] of [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]]) {
    if (ns >= unit) return trim(ns / unit) + " " + name;
  }
  return Math.round(ns) + " ns";
}

/** A moment of an axis whose marks are `step` apart. */
function formatMoment(ns, step) {
  const [unit, name] = ns >= 1e9 ? [1e9, "s"] : ns >= 1e6 ? [1e6, "ms"] : ns >= 1e3 ? [1e3, "µs"] : [1, "ns"];
  const digits = Math.min(9, Math.max(0, Math.ceil(-Math.log10(step / unit) - 1e-9)));
  return `${Number((ns / unit).toFixed(digits + 1))} ${name}`;
}

function trim(x) {
  return x >= 1000 ? groups.format(Math.round(x)) : x >= 100 ? x.toFixed(0) : x >= 10 ? x.toFixed(1) : x.toFixed(2);
}

/** A weight as short as it can be: the unit is said elsewhere, except that of time. */
function formatBare(weight, unit) {
  return unit === "ns" ? formatNs(weight) : weight < 1e9 ? formatCount(weight) : formatWeight(weight, "");
}

/** A weight in the event's unit. */
function formatWeight(weight, unit) {
  if (unit === "ns") return formatNs(weight);
  for (const [size, letter] of [[1e12, "T"], [1e9, "G"], [1e6, "M"]]) {
    if (weight >= size) return `${trim(weight / size)} ${letter} ${unit}`;
  }
  return `${formatCount(weight)} ${weight === 1 ? unit.replace(/s$/, "") : unit}`;
}

/** A change as a part of what was before. */
function formatChange(change) {
  return change === Infinity ? "new" : change === -1 ? "gone" : `${change < 0 ? "−" : "+"}${Math.abs(100 * change).toFixed(1)} %`;
}

function formatShare(part, whole) {
  if (!whole) return "0 %";
  const percent = (100 * part) / whole;
  return percent > 0 && percent < 0.01 ? "< 0.01 %" : `${percent.toFixed(percent < 99.995 ? 2 : 0)} %`;
}
