"use strict";
// What a page asks the server that it came from: exact sums of what is selected, finer samples over
// time, heat maps, and code. In no page that is a file.

/** An answer that takes longer is announced. */
const BUSY_AFTER_MS = 300;

/** What each question has with it. */
const TOKEN = { "X-Kymo-Token": new URLSearchParams(location.search).get("token") ?? "" };

/** What the server reads of the recording, one reading after another. */
class Readings {
  /** `progress` is called with the part that is read, from 0 to 1, until there is a profile. */
  constructor(progress) {
    this.progress = progress;
    this.version = 0;
    this.isLast = false;
  }

  /** The next reading, or null: what is shown is the last one. */
  async next() {
    while (!this.isLast) {
      const answer = await this.ask();
      if (!answer) return null;
      if (answer.status === 200) {
        const packed = await answer.json();
        this.isLast = packed.served.isLast;
        if (packed.served.version === this.version) return null;
        this.version = packed.served.version;
        return packed;
      }
      const { pass, done, all } = await answer.json();
      if (this.version === 0) this.progress(all ? (pass + done / all) / 2 : 0);
    }
    return null;
  }

  /** An answer, or null where the server has ended after it gave something to show. */
  async ask() {
    try {
      const answer = await fetch(`profile?after=${this.version}`, { headers: TOKEN });
      if (answer.ok) return answer;
      throw new Error((await answer.text()).trim());
    } catch (error) {
      if (this.version === 0) throw new Error(`kymo view does not answer (${error.message}); its terminal says why`);
      return null;
    }
  }
}

class RecordingServer {
  /** `changed` is called when an answer has come, `remark` with a sentence for the reader. */
  constructor(changed, remark, version) {
    this.changed = changed;
    this.remark = remark;
    this.version = version;
    /** By what is asked for the newest question. */
    this.asked = new Map();
    this.pending = 0;
  }

  /** Another reading is shown: numbers of the one before mean nothing in it. */
  replace(version) {
    this.version = version;
    for (const { given } of this.asked.values()) given.abort();
    this.asked.clear();
  }

  /** The words that select what the state does. `range` and `thread` may be given in its place. */
  selection(state, { range = state.range, thread = state.thread } = {}) {
    const words = new URLSearchParams({ event: state.event, version: this.version });
    if (range) {
      words.set("from", Math.round(range[0]));
      words.set("until", Math.round(range[1]));
    }
    if (thread) words.set(thread[0] === "t" ? "thread" : "process", thread.slice(1));
    return words;
  }

  /** The sums of what is selected, or null: nothing is, or they have been asked for and are not there yet. */
  sums(state) {
    if (!state.range && !state.thread) return null;
    return this.answer("select", this.selection(state));
  }

  /** Samples over time of a stretch, of all threads or of one, as finely as a picture needs; null until they are there. */
  entries(state, event, range, thread, what = "entries") {
    return this.answer(what, this.selection(state, { range, thread }), (packed) => new Entries(packed, event.perSample, range[0]), "entries");
  }

  /** How many samples each part of each second has. */
  heat(state) {
    return this.answer("heatmap", this.selection(state, { range: null }));
  }

  /** A function's code with its costs, or null; with `error` where there is none. */
  code(state, fn) {
    const words = this.selection(state);
    words.set("function", fn);
    return this.answer("code", words);
  }

  /** The answer to the newest question of its sort, or null while it is being worked on. */
  answer(sort, words, make = (answer) => answer, path = sort) {
    const key = String(words);
    if (this.asked.get(sort)?.key !== key) this.ask(sort, path, key, make);
    return this.asked.get(sort).answer;
  }

  /** The newest question of a sort counts: what is still being counted for another one is given up. */
  async ask(sort, path, key, make) {
    this.asked.get(sort)?.given.abort();
    const asked = { key, answer: null, given: new AbortController() };
    this.asked.set(sort, asked);
    this.pending++;
    setTimeout(() => this.showBusy(), BUSY_AFTER_MS);
    try {
      const answer = await fetch(`${path}?${key}`, { headers: TOKEN, signal: asked.given.signal });
      // A newer reading is on its way to the page.
      if (answer.status === 409) return;
      if (answer.headers.get("X-Kymo-Recording") === "changed") {
        this.remark("The recording's file has changed since it was read. This page shows what it was then.");
      }
      if (answer.ok) asked.answer = make(await answer.json());
      else asked.answer = { error: (await answer.text()).trim() };
      if (asked.answer.error && sort !== "code") throw new Error(asked.answer.error);
    } catch (error) {
      if (this.asked.get(sort) !== asked) return;
      asked.answer = sort === "code" ? { error: String(error.message) } : null;
      this.remark(`kymo view does not answer (${error.message}): what is selected is counted from the timeline's samples only.`);
    } finally {
      this.pending--;
      this.showBusy();
    }
    if (this.asked.get(sort) === asked) this.changed();
  }

  /** A bar at the top of the page while an answer takes its time. Escape gives a selection up. */
  showBusy() {
    $("busy").hidden = this.pending === 0;
  }
}
