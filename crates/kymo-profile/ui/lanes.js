"use strict";
// Lanes of the timeline: which entries belong to each thread, CPU or state, and what they add up to
// by column.

class Lanes {
  /** by: "threads", "cpus" or "states". */
  constructor(profile, event, by) {
    this.profile = profile;
    this.event = event;
    this.by = by;
    this.keys = this.order(event.entries);
    this.place = new Map(this.keys.map((key, lane) => [key, lane]));
    this.index(event.entries);
  }

  get count() {
    return this.keys.length;
  }

  keyOf(entries, i) {
    return this.by === "cpus" ? entries.cpu[i] : this.by === "states" ? this.event.stateOf[entries.node[i]] : entries.thread[i];
  }

  label(lane) {
    const key = this.keys[lane];
    if (this.by === "cpus") return key < 0 ? "CPU ?" : `CPU ${key}`;
    return this.by === "states" ? this.profile.names[key] ?? "?" : this.profile.threadLabel(key);
  }

  /** CPUs by number; threads and states with most samples first, and idle ones last. */
  order(entries) {
    const sums = new Map();
    const { hasStates, stateOf } = this.event;
    const idle = hasStates && this.profile.names.map((name) => name.startsWith("idle"));
    // Entries of one key often follow each other.
    let [key, sum] = [this.keyOf(entries, 0), 0];
    for (let i = 0; i < entries.count; i++) {
      const own = this.keyOf(entries, i);
      if (own !== key) {
        sums.set(key, (sums.get(key) || 0) + sum);
        [key, sum] = [own, 0];
      }
      if (!idle || !idle[stateOf[entries.node[i]]]) sum += entries.samples[i];
    }
    if (entries.count) sums.set(key, (sums.get(key) || 0) + sum);
    // Threads of which the timeline of a large recording has no sample are there nevertheless.
    if (this.by === "threads" && this.event.estimated) {
      this.profile.threads.samples.forEach((samples, thread) => samples && !sums.has(thread) && sums.set(thread, 0));
    }
    const all = [...sums.keys()];
    if (this.by === "cpus") return all.sort((a, b) => a - b);
    return all.sort((a, b) => sums.get(b) - sums.get(a) || a - b);
  }

  /** Groups the entries by lane; within a lane they stay in their order, which is that of time. */
  index(entries) {
    if (this.entries === entries) return;
    this.entries = entries;
    this.start = new Int32Array(this.count + 1);
    const lane = new Int32Array(entries.count);
    for (let i = 0; i < entries.count; i++) {
      lane[i] = this.place.get(this.keyOf(entries, i)) ?? -1;
      if (lane[i] >= 0) this.start[lane[i] + 1]++;
    }
    for (let at = 0; at < this.count; at++) this.start[at + 1] += this.start[at];
    const next = this.start.slice();
    this.items = new Int32Array(this.start[this.count]);
    for (let i = 0; i < entries.count; i++) if (lane[i] >= 0) this.items[next[lane[i]]++] = i;
  }

  /** Calls `each` with the entries of a lane, by time. */
  each(lane, each) {
    for (let at = this.start[lane]; at < this.start[lane + 1]; at++) each(this.items[at]);
  }

  /**
   * What a lane has by column.
   * axis: {from, columnNs, columns}; only: flags of threads or null; under: flags of nodes that match, or null.
   */
  cells(lane, axis, only, under) {
    const { entries, event } = this;
    const sums = new Float64Array(axis.columns);
    const matches = new Float64Array(axis.columns);
    const states = new Map();
    this.each(lane, (i) => {
      const column = Math.floor((entries.time[i] - axis.from) / axis.columnNs);
      if (column < 0 || column >= axis.columns) return;
      if (only && this.by !== "threads" && !only[entries.thread[i]]) return;
      const n = entries.samples[i];
      sums[column] += n;
      if (under && under[entries.node[i]]) matches[column] += n;
      if (!event.hasStates) return;
      const state = event.stateOf[entries.node[i]];
      if (!states.has(state)) states.set(state, new Float64Array(axis.columns));
      states.get(state)[column] += n;
    });
    return { sums, matches, states };
  }

  /** The most that a lane has in a column. */
  peak(axis, only) {
    const { entries } = this;
    let peak = 0;
    for (let lane = 0; lane < this.count; lane++) {
      let column = -1;
      let sum = 0;
      this.each(lane, (i) => {
        const at = Math.floor((entries.time[i] - axis.from) / axis.columnNs);
        if (at < 0 || at >= axis.columns) return;
        if (only && this.by !== "threads" && !only[entries.thread[i]]) return;
        if (at !== column) sum = 0;
        column = at;
        sum += entries.samples[i];
        if (sum > peak) peak = sum;
      });
    }
    return peak;
  }
}
