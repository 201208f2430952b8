"use strict";
// What a page asks the server that it came from: exact sums of what is selected. In no page that is
// a file.

class SelectionServer {
  /** `changed` is called when an answer has come, `remark` with a sentence for the reader. */
  constructor(changed, remark) {
    this.changed = changed;
    this.remark = remark;
    this.token = new URLSearchParams(location.search).get("token") ?? "";
    this.asked = null;
  }

  /** The sums of what is selected, or null: nothing is, or they have been asked for and are not there yet. */
  sums(state) {
    if (!state.range && !state.thread) return null;
    const words = new URLSearchParams({ event: state.event });
    if (state.range) {
      words.set("from", Math.round(state.range[0]));
      words.set("until", Math.round(state.range[1]));
    }
    if (state.thread) words.set(state.thread[0] === "t" ? "thread" : "process", state.thread.slice(1));
    const key = String(words);
    if (this.asked?.key !== key) this.ask(key);
    return this.asked.sums;
  }

  /** The newest selection counts: what is still being counted for another one is given up. */
  async ask(key) {
    this.asked?.given.abort();
    const asked = { key, sums: null, given: new AbortController() };
    this.asked = asked;
    try {
      const answer = await fetch("select?" + key, { headers: { "X-Kymo-Token": this.token }, signal: asked.given.signal });
      if (answer.headers.get("X-Kymo-Recording") === "changed") {
        this.remark("The recording's file has changed since it was read. This page shows what it was then.");
      }
      if (!answer.ok) throw new Error((await answer.text()).trim());
      asked.sums = await answer.json();
    } catch (error) {
      if (this.asked !== asked) return;
      this.remark(`kymo view does not answer (${error.message}): what is selected is counted from the timeline's samples only.`);
    }
    if (this.asked === asked) this.changed();
  }
}
