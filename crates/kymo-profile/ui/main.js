"use strict";
// The page: one state, read from and written to the address bar, and what each part shows of it.

const $ = (id) => document.getElementById(id);

const DEFAULTS = {
  event: 0, weight: "period", thread: "", view: "down", focus: -1, zoom: [], q: "", range: null,
  commands: true, merge: false, byname: false, flip: false, lanes: "threads", more: false, sort: "own", up: false, theme: "",
};

/** Takes what it understands out of "#event=0&q=main"; everything else keeps its default. */
function stateFromHash(hash, profile) {
  const state = { ...DEFAULTS, zoom: [] };
  const given = new URLSearchParams(hash.replace(/^#/, ""));
  const whole = (key, limit) => {
    const n = Number(given.get(key) ?? NaN);
    return Number.isInteger(n) && n >= 0 && n < limit ? n : state[key];
  };
  const oneOf = (key, allowed) => (allowed.includes(given.get(key)) ? given.get(key) : state[key]);
  state.event = whole("event", profile.events.length);
  state.focus = whole("focus", profile.functionCount);
  state.weight = oneOf("weight", ["period", "samples"]);
  state.view = oneOf("view", ["down", "up", "callers", "callees"]);
  state.lanes = oneOf("lanes", ["threads", "cpus"]);
  state.sort = oneOf("sort", ["own", "total", "name", "module"]);
  state.theme = oneOf("theme", ["light", "dark"]);
  for (const key of ["commands", "merge", "byname", "flip", "up", "more"]) {
    if (given.has(key)) state[key] = given.get(key) === "1";
  }
  state.q = given.get("q") ?? "";
  if (/^[pt]\d+$/.test(given.get("thread") ?? "")) state.thread = given.get("thread");
  const range = /^(\d+)-(\d+)$/.exec(given.get("range") ?? "");
  if (range && Number(range[2]) > Number(range[1])) state.range = [Number(range[1]), Number(range[2])];
  const zoom = (given.get("zoom") ?? "").split(".").map(Number);
  if (given.get("zoom") && zoom.every(Number.isInteger)) state.zoom = zoom;
  if (state.focus < 0 && (state.view === "callers" || state.view === "callees")) state.view = "down";
  return state;
}

function hashOfState(state) {
  const out = new URLSearchParams();
  for (const [key, initial] of Object.entries(DEFAULTS)) {
    const value = state[key];
    if (key === "zoom") {
      if (value.length) out.set(key, value.join("."));
    } else if (key === "range") {
      if (value) out.set(key, value.map(Math.round).join("-"));
    } else if (value !== initial) {
      out.set(key, typeof value === "boolean" ? (value ? "1" : "0") : String(value));
    }
  }
  return out.toString();
}

/** Control characters and direction marks could make a name look like another one. */
function clean(text) {
  return text.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\u034f\u115f\u1160\u3164\ufe00-\ufe0f\uffa0]/gu, (c) => {
    const code = c.codePointAt(0);
    return code < 0x100 ? "\\x" + code.toString(16).padStart(2, "0") : "\\u{" + code.toString(16) + "}";
  });
}

function element(tag, text, css) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (css) made.className = css;
  return made;
}

class Page {
  constructor(profile) {
    this.profile = profile;
    this.palette = new Palette(profile);
    this.state = stateFromHash(location.hash, profile);
    this.tree = null;
    // A page that is a file has no server.
    this.server = profile.served ? new SelectionServer(() => this.render(), (sentence) => this.remark(sentence)) : null;
    this.dark = matchMedia("(prefers-color-scheme: dark)");
    this.flame = new FlameGraph($("flame"), profile, this.palette, {
      zoom: (node) => this.set({ zoom: node === NO_NODE ? [] : this.tree.path(node) }),
      choose: (node) => this.choose(node === NO_NODE ? -1 : this.tree.func[node], node),
      hover: (frame, x, y) => this.tip(frame, x, y),
    });
    this.timeline = new Timeline($("timeline"), profile, this.palette, {
      range: (range) => this.rangeSoon(range),
      thread: (thread) => this.set({ thread: this.state.thread === `t${thread}` ? "" : `t${thread}` }),
    });
    this.table = new FunctionTable($("table"), profile, this.palette, {
      choose: (fn) => this.choose(fn, null),
      sort: (key) => this.set({ sort: key, up: this.state.sort === key ? !this.state.up : key === "name" || key === "module" }),
    });
    this.header();
    this.controls();
    this.theme();
    this.render();
  }

  // ---- what never changes ----------------------------------------------------------------------------------------

  header() {
    const p = this.profile;
    $("heading").textContent = p.heading;
    const facts = $("facts");
    const fact = (name, value, css) => {
      if (!value) return;
      const pair = element("div", undefined, css);
      pair.append(element("dt", name), element("dd", value));
      facts.append(pair);
    };
    const quote = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replace(/'/g, "'\\''")}'`);
    fact("Command", p.commandLine.map(quote).join(" "), "command");
    const date = (ns) => (ns ? new Date(ns / 1e6).toISOString().replace("T", " ").slice(0, 19) + " UTC" : "");
    if (p.startUnixNs) fact("Recorded", date(p.startUnixNs));
    else fact("Written", date(p.writtenUnixNs));
    fact("Duration", p.durationNs ? formatNs(p.durationNs) : "");
    for (const e of p.events.slice(0, 6)) {
      const what = e.unit === "ns" && e.period ? `, ${formatNs(e.period)}` : "";
      // Wall time is counted, not sampled.
      fact(e.name, e.isWallTime ? formatNs(e.period) : `${formatCount(e.samples)} sample${e.samples === 1 ? "" : "s"}${what}`);
    }
    fact("Host", [p.host, p.kernel, p.arch].filter(Boolean).join(", "));
    fact("CPUs", [p.cpusOnline || "", p.cpu].filter(Boolean).join(" × "));
    fact("Threads", formatCount(p.threadCount));
    const badge = $("loss");
    badge.textContent = p.lost ? `${formatCount(p.lost)} lost` : "0 lost";
    badge.classList.add(p.lost ? "bad" : "good");
    badge.title = p.lost ? "Records that did not reach this profile" : "Nothing was lost: every sample that was taken is here";
    if (p.lost) {
      const taken = p.events.reduce((sum, e) => sum + e.samples, 0);
      const causes = p.loss.filter((l) => l.count).map((l) => `${l.cause}: ${formatCount(l.count)}`).join("; ");
      $("loss-detail").hidden = false;
      $("loss-detail").textContent =
        `${formatCount(p.lost)} of ${formatCount(p.lost + taken)} records were lost (${formatShare(p.lost, p.lost + taken)}). ` +
        `${causes}. ${this.lostTime()}Shares below are of what was kept.`;
    }
    for (const note of p.notes.slice(0, 4)) $("notes").append(element("li", note));
    if (p.notes.length > 4) $("notes").append(element("li", `and ${formatCount(p.notes.length - 4)} more`));
    $("notes").hidden = !p.notes.length;
    $("foot").textContent = [p.source && `From ${p.source}`, p.recorder && `recorded by ${p.recorder}`, p.served ? "served by kymo view on this machine" : "this file works offline and loads nothing"]
      .filter(Boolean).join(", ") + ".";

    const event = $("event");
    p.events.forEach((e, i) => event.add(new Option(e.isWallTime ? e.name : `${e.name} (${formatCount(e.samples)})`, i)));
    $("event-field").hidden = p.events.length < 2;

    const thread = $("thread");
    thread.add(new Option(`All (${formatCount(p.threadCount)})`, ""));
    const t = p.threads;
    const amount = p.events.some((e) => e.isWallTime) ? formatNs : formatCount;
    const order = [...t.tid.keys()].sort((a, b) => t.samples[b] - t.samples[a] || a - b);
    const processes = new Map();
    for (const i of order) {
      const found = processes.get(t.pid[i]) || { threads: 0, samples: 0, comm: t.comm[i] };
      found.threads++;
      found.samples += t.samples[i];
      if (t.pid[i] === t.tid[i]) found.comm = t.comm[i];
      processes.set(t.pid[i], found);
    }
    const group = (label, options) => {
      if (!options.length) return;
      const made = element("optgroup");
      made.label = label;
      made.append(...options);
      thread.append(made);
    };
    const several = [...processes].filter(([, process]) => process.threads > 1);
    several.sort((a, b) => b[1].samples - a[1].samples);
    group("Processes", several.slice(0, 100).map(([pid, process]) =>
      new Option(`${process.comm} ${pid}: ${process.threads} threads (${amount(process.samples)})`, `p${pid}`)));
    group(order.length > 300 ? "The 300 busiest threads" : "Threads", order.slice(0, 300).map((i) =>
      new Option(`${p.threadLabel(i)} (${amount(t.samples[i])})`, `t${i}`)));
    this.options = new Set([...thread.options].map((option) => option.value));
  }

  /** In how much of the time something is missing; intervals do not overlap. */
  lostTime() {
    const p = this.profile;
    const sum = p.intervals.reduce((ns, mark) => ns + (mark.kind === "loss" ? mark.end_ns - mark.start_ns : 0), 0);
    return sum && p.durationNs ? `The red stretches are ${formatShare(sum, p.durationNs)} of the time. ` : "";
  }

  controls() {
    const change = (id, patch) => $(id).addEventListener("change", (event) => this.set(patch(event.target)));
    change("event", (box) => ({ event: Number(box.value), zoom: [], range: null }));
    change("weight", (box) => ({ weight: box.value }));
    change("thread", (box) => ({ thread: box.value }));
    for (const key of ["commands", "merge", "byname", "flip"]) change(key, (box) => ({ [key]: box.checked }));
    $("query").addEventListener("input", (event) => {
      const q = event.target.value;
      clearTimeout(this.typing);
      this.typing = setTimeout(() => this.set({ q }), 120);
    });
    $("view").addEventListener("click", (event) => event.target.dataset.view && this.set({ view: event.target.dataset.view, zoom: [] }));
    $("lanes").addEventListener("click", (event) => event.target.dataset.lanes && this.set({ lanes: event.target.dataset.lanes }));
    $("lanes-more").addEventListener("click", () => this.set({ more: !this.state.more }));
    $("range-clear").addEventListener("click", () => this.set({ range: null }));
    $("zoom-out").addEventListener("click", () => this.set({ zoom: [] }));
    $("theme").addEventListener("click", () => this.set({ theme: this.isDark() ? "light" : "dark" }));
    $("help-open").addEventListener("click", () => $("help").showModal());
    $("legend").addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (button) this.set({ q: this.state.q === button.dataset.q ? "" : button.dataset.q });
    });
    $("detail").addEventListener("click", (event) => {
      const view = event.target.dataset.view;
      if (view) this.set({ view, zoom: [] });
      else if (event.target.dataset.find) this.set({ q: "=" + this.profile.names[this.state.focus] });
    });
    this.dark.addEventListener("change", () => this.render());
    addEventListener("hashchange", () => {
      const hash = location.hash.replace(/^#/, "");
      if (hash === this.hash) return;
      this.state = stateFromHash(location.hash, this.profile);
      this.render();
    });
    let width = innerWidth;
    addEventListener("resize", () => {
      if (innerWidth === width) return;
      width = innerWidth;
      this.timeline.layout();
      this.flame.layout();
    });
    addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || $("help").open) return;
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) && event.target.type !== "checkbox";
    const { state } = this;
    if (event.key === "Escape") {
      if (state.q) this.set({ q: "" });
      else if (state.zoom.length) this.set({ zoom: [] });
      else if (state.view !== "down") this.set({ view: "down" });
      else if (state.range) this.set({ range: null });
      else if (state.focus >= 0) this.choose(-1, null);
      return;
    }
    if (typing) return;
    const act = {
      "/": () => $("query").focus(),
      "?": () => $("help").showModal(),
      r: () => this.set({ view: state.view === "up" ? "down" : "up", zoom: [] }),
      c: () => state.focus >= 0 && this.set({ view: "callers", zoom: [] }),
      e: () => state.focus >= 0 && this.set({ view: "callees", zoom: [] }),
      i: () => this.set({ flip: !state.flip }),
      t: () => this.set({ theme: this.isDark() ? "light" : "dark" }),
    }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }

  // ---- state -----------------------------------------------------------------------------------------------------

  set(patch) {
    Object.assign(this.state, patch);
    this.render();
  }

  /** While the brush moves, once per picture is enough. */
  rangeSoon(range) {
    const first = this.waiting === undefined;
    this.waiting = range;
    if (!first) return;
    requestAnimationFrame(() => {
      const wanted = this.waiting;
      this.waiting = undefined;
      this.set({ range: wanted && this.event().snap(wanted) });
    });
  }

  choose(fn, node) {
    this.chosenNode = node;
    if (fn < 0 || this.profile.kinds[fn] === "c") fn = -1;
    this.state.focus = fn;
    if (fn < 0 && (this.state.view === "callers" || this.state.view === "callees")) this.state.view = "down";
    this.render();
  }

  event() {
    return this.profile.events[this.state.event];
  }

  isDark() {
    return this.state.theme ? this.state.theme === "dark" : this.dark.matches;
  }

  theme() {
    const dark = this.isDark();
    if (this.themed === dark) return;
    this.themed = dark;
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    this.palette.setDark(dark);
    this.table.drawn = "";
  }

  /** One flag per thread for the thread filter, or null for all. */
  threadFlags() {
    const choice = this.state.thread;
    if (!choice) return null;
    const id = Number(choice.slice(1));
    const flags = new Uint8Array(this.profile.threadCount);
    if (choice[0] === "t") flags[id] = 1;
    else this.profile.threads.pid.forEach((pid, i) => (flags[i] = pid === id ? 1 : 0));
    return flags;
  }

  /** Runs `make` again only when `key` changed. */
  keep(name, key, make) {
    this.kept ??= {};
    const found = this.kept[name];
    if (found && found.key === key) return found.value;
    const value = make();
    this.kept[name] = { key, value };
    return value;
  }

  // ---- drawing ---------------------------------------------------------------------------------------------------

  render() {
    const { state, profile } = this;
    const event = this.event();
    this.theme();
    if (!event) {
      $("flame-text").textContent = "The recording has no events.";
      return;
    }
    const bySamples = event.uniform ? event.unit !== "ns" : state.weight === "samples";
    this.unit = bySamples ? "samples" : event.unit;
    const exact = this.server?.sums(state) ?? null;
    const dataKey = [state.event, state.range, state.thread, bySamples, Boolean(exact)].join("|");
    const weighed = this.keep("weighed", dataKey, () => {
      const { self, samples } = exact
        ? event.spread(exact, bySamples)
        : event.weigh({ range: state.range, threads: this.threadFlags(), bySamples });
      return { self, samples, sums: sumByFunction(profile, event, self), whole: self.reduce((a, b) => a + b, 0) };
    });
    this.weighed = weighed;
    this.keep("ranked", state.event, () => this.rank(event));
    const search = this.keep("search", state.q, () => matcher(profile, state.q));
    const hits = search && !search.bad ? search.hits : null;

    const pointed = state.view === "callers" || state.view === "callees" ? state.focus : -1;
    const treeKey = [dataKey, state.view, pointed, state.commands, state.merge].join("|");
    this.tree = this.keep("tree", treeKey, () => buildTree(profile, event, weighed.self, { ...state, focus: pointed }));
    let zoomNode = this.tree.find(state.zoom);
    if (zoomNode === NO_NODE) state.zoom = [];

    this.renderControls(event, hits);
    this.renderTimeline(event, hits);
    this.renderFlame(event, zoomNode, hits, [treeKey, state.zoom, state.byname, state.flip].join("|"));
    this.renderLegend(weighed);
    this.table.chosen = state.focus;
    this.table.show(weighed.sums, weighed.whole, hits, { key: state.sort, up: state.up }, this.unit);
    $("table-text").textContent = `${formatCount(this.table.rows.length)}${hits ? " matching" : ""}, in ${this.unit === "ns" ? "time" : this.unit}`;
    const matched = hits ? matchedWeight(event, weighed.self, hits) : 0;
    $("matched").textContent = !search ? "" : search.bad ? "not a pattern" : formatShare(matched, weighed.whole);
    this.renderDetail();
    this.report(event, weighed, zoomNode, matched);
    this.hash = hashOfState(state);
    try {
      history.replaceState(null, "", this.hash ? "#" + this.hash : location.pathname + location.search);
    } catch {
      // Some viewers forbid it; the page works without.
    }
  }

  /** A sentence above the page, once. */
  remark(sentence) {
    this.remarks ??= new Set();
    if (this.remarks.has(sentence)) return;
    this.remarks.add(sentence);
    $("notes").append(element("li", sentence));
    $("notes").hidden = false;
  }

  rank(event) {
    const sums = new Map();
    const { own } = sumByFunction(this.profile, event, event.selfSamples);
    own.forEach((weight, fn) => {
      const kind = this.profile.kinds[fn];
      if (weight && !this.profile.isKernel(fn) && kind !== "c") sums.set(this.profile.module[fn], (sums.get(this.profile.module[fn]) || 0) + weight);
    });
    this.palette.rank([...sums].sort((a, b) => b[1] - a[1]).map(([module]) => module));
    this.palette.cache.clear();
  }

  renderControls(event, hits) {
    const { state } = this;
    $("event").value = state.event;
    const weight = $("weight");
    if (this.weightOf !== state.event) {
      this.weightOf = state.event;
      weight.replaceChildren(new Option(`event count (${event.unit})`, "period"), new Option("samples", "samples"));
    }
    $("weight-field").hidden = event.uniform;
    weight.value = state.weight;
    if (!this.options.has(state.thread) && state.thread[0] === "t") {
      $("thread").add(new Option(this.profile.threadLabel(Number(state.thread.slice(1))), state.thread));
      this.options.add(state.thread);
    }
    $("thread").value = state.thread;
    for (const button of $("view").children) {
      button.setAttribute("aria-pressed", button.dataset.view === state.view);
      button.disabled = state.focus < 0 && (button.dataset.view === "callers" || button.dataset.view === "callees");
    }
    if (document.activeElement !== $("query") || !state.q) $("query").value = state.q;
    for (const key of ["commands", "merge", "byname", "flip"]) $(key).checked = state[key];
    $("zoom-out").hidden = !state.zoom.length;
  }

  renderTimeline(event, hits) {
    const { state } = this;
    $("timeline-card").hidden = !event.entryCount;
    if (!event.entryCount) return;
    const timeline = this.timeline;
    const cpus = state.lanes === "cpus" && event.hasCpus;
    timeline.range = state.range;
    timeline.threads = this.keep("flags", state.thread, () => this.threadFlags());
    // The chosen function shows its moments where no search does.
    const flags = hits || (state.focus >= 0 ? this.keep("one", state.focus, () => {
      const one = new Uint8Array(this.profile.functionCount);
      one[state.focus] = 1;
      return one;
    }) : null);
    timeline.under = this.keep("under", [state.event, state.q, hits ? "" : state.focus].join("|"), () => flags && this.nodesUnder(event, flags));
    this.keep("lanes", [state.event, cpus, state.more, state.thread, state.q, state.focus, this.themed].join("|"), () => timeline.show(event, cpus, state.more));
    timeline.paint();
    $("lanes").hidden = !event.hasCpus;
    for (const button of $("lanes").children) button.setAttribute("aria-pressed", (button.dataset.lanes === "cpus") === cpus);
    $("lanes-more").hidden = !timeline.hiddenLanes && !state.more;
    $("lanes-more").textContent = state.more ? "fewer lanes" : `${formatCount(timeline.hiddenLanes)} more lane${timeline.hiddenLanes === 1 ? "" : "s"}`;
    $("range-clear").hidden = !state.range;
    $("range-text").textContent = state.range
      ? `${formatNs(state.range[0])} to ${formatNs(Math.min(state.range[1], event.spanNs))}: ${event.estimated && !this.server?.sums(state) ? "about " : ""}${event.isWallTime ? `${formatNs(this.weighed.samples)} of threads` : `${formatCount(this.weighed.samples)} samples`}`
      : "drag to select a range";
  }

  nodesUnder(event, flags) {
    const under = new Uint8Array(event.nodeCount);
    for (let node = 0; node < event.nodeCount; node++) {
      const above = event.parent[node];
      under[node] = flags[event.func[node]] || (above !== NO_NODE && under[above]) ? 1 : 0;
    }
    return under;
  }

  renderFlame(event, zoomNode, hits, key) {
    const { state, flame } = this;
    const whole = this.tree.whole;
    const heads = { down: "all", up: "all", callers: "callers of", callees: "callees of" };
    const name = state.focus >= 0 && (state.view === "callers" || state.view === "callees") ? " " + this.profile.names[state.focus] : "";
    flame.allText = `${heads[state.view]}${name}: ${formatWeight(whole, this.unit)}`;
    flame.hits = hits;
    flame.chosen = state.focus;
    flame.flip = state.flip;
    let fresh = false;
    this.keep("flame", key, () => {
      fresh = true;
      flame.show(this.tree, zoomNode, state.byname);
    });
    if (!fresh) flame.paint();
    $("flame-text").textContent = zoomNode === NO_NODE ? "" : `zoomed: ${formatShare(this.tree.total[zoomNode], this.weighed.whole)}`;
  }

  renderLegend(weighed) {
    this.keep("legend", [this.kept.weighed.key, this.themed, this.state.q].join("|"), () => {
      const { profile } = this;
      const sums = new Map();
      const states = [];
      let kernel = { weight: 0, fn: 0, best: 0 };
      weighed.sums.own.forEach((weight, fn) => {
        if (!weight || profile.kinds[fn] === "c") return;
        // Of wall time it tells the states apart, not the modules.
        if (profile.kinds[fn] === "s") {
          states.push([profile.names[fn], { weight, fn, q: "=" + profile.names[fn] }]);
          return;
        }
        if (profile.isKernel(fn)) {
          kernel.weight += weight;
          if (weight > kernel.best) Object.assign(kernel, { fn, best: weight });
          return;
        }
        const found = sums.get(profile.module[fn]) || { weight: 0, fn, best: 0 };
        found.weight += weight;
        if (weight > found.best && profile.kinds[fn] === "u") Object.assign(found, { fn, best: weight });
        sums.set(profile.module[fn], found);
      });
      const items = [...sums].sort((a, b) => b[1].weight - a[1].weight).slice(0, 8)
        .map(([module, found]) => [profile.modules[module] || "[unknown]", found]);
      if (kernel.weight) items.push([profile.moduleName(kernel.fn) || "[kernel]", kernel]);
      items.push(...states);
      items.sort((a, b) => b[1].weight - a[1].weight);
      $("legend").replaceChildren(...items.map(([name, found]) => {
        const button = element("button");
        button.type = "button";
        button.dataset.q = found.q ?? "module:" + name;
        button.title = `Search ${name}`;
        button.setAttribute("aria-pressed", this.state.q === button.dataset.q);
        const swatch = element("i");
        swatch.style.background = this.palette.of(found.fn);
        button.append(swatch, element("span", name), element("span", formatShare(found.weight, weighed.whole), "dim"));
        return button;
      }));
    });
  }

  renderDetail() {
    const { state, profile, weighed } = this;
    const fn = state.focus;
    const detail = $("detail");
    if (fn < 0) {
      detail.replaceChildren(element("span", "Point at a bar for its numbers, click it to zoom; select a function to see its callers and callees.", "dim"));
      return;
    }
    const own = weighed.sums.own[fn];
    const total = weighed.sums.total[fn];
    const parts = [
      element("span", profile.names[fn], "name"),
      element("span", [profile.moduleName(fn), profile.place(fn)].filter(Boolean).join(", "), "dim"),
      element("span", `self ${formatShare(own, weighed.whole)}, total ${formatShare(total, weighed.whole)} (${formatWeight(total, this.unit)})`),
    ];
    for (const [view, text] of [["callers", "Callers"], ["callees", "Callees"]]) {
      const button = element("button", text);
      button.type = "button";
      button.dataset.view = view;
      parts.push(button);
    }
    const find = element("button", "Highlight");
    find.type = "button";
    find.dataset.find = "1";
    parts.push(find);
    detail.replaceChildren(...parts);
  }

  /** The numbers of a bar, beside the pointer. */
  tip(frame, x, y) {
    const tip = $("tip");
    if (!frame) {
      tip.hidden = true;
      return;
    }
    const { profile, tree, weighed } = this;
    const node = frame.node;
    const parts = [];
    if (node === REST) parts.push(element("div", `${restText(frame)} bars: zoom in to see them`));
    else if (node === NO_NODE) parts.push(element("b", this.flame.allText));
    else {
      const fn = tree.func[node];
      const kind = { k: "kernel", i: "inlined", "?": "no symbol", c: "command", s: "state of the thread", u: "" }[profile.kinds[fn]];
      const total = tree.total[node];
      const above = tree.parent[node] === NO_NODE ? tree.whole : tree.total[tree.parent[node]];
      parts.push(element("b", profile.names[fn]));
      const where = [profile.moduleName(fn), kind, profile.place(fn)].filter(Boolean).join(", ");
      if (where) parts.push(element("div", where));
      parts.push(element("div", `${formatShare(total, weighed.whole)} of all, ${formatShare(total, above)} of its parent: ${formatWeight(total, this.unit)}`, "sums"));
      if (this.state.view !== "callers" && this.state.view !== "up") {
        parts.push(element("div", `self ${formatShare(tree.self[node], weighed.whole)}: ${formatWeight(tree.self[node], this.unit)}`, "sums"));
      }
    }
    tip.replaceChildren(...parts);
    tip.hidden = false;
    const area = tip.getBoundingClientRect();
    tip.style.left = Math.max(4, Math.min(x + 14, innerWidth - area.width - 8)) + "px";
    tip.style.top = (y + 18 + area.height > innerHeight ? Math.max(4, y - area.height - 12) : y + 18) + "px";
  }

  /** What the page computed, for tests and for scripts: hidden in the document as JSON. */
  report(event, weighed, zoomNode, matched) {
    const top = this.table.rows.slice(0, 5).map((fn) => [this.profile.names[fn], weighed.sums.own[fn], weighed.sums.total[fn]]);
    $("selfcheck").textContent = JSON.stringify({
      event: event.name,
      unit: this.unit,
      samples: weighed.samples,
      exact: Boolean(this.server?.sums(this.state)),
      whole: weighed.whole,
      treeWhole: this.tree.whole,
      zoom: zoomNode === NO_NODE ? null : { name: this.profile.names[this.tree.func[zoomNode]], total: this.tree.total[zoomNode], self: this.tree.self[zoomNode] },
      matched,
      rows: this.table.rows.length,
      lanes: event.entryCount ? this.timeline.lanes.length : 0,
      states: event.entryCount ? this.timeline.states.map(({ fn }) => this.profile.names[fn]) : [],
      links: event.links.count,
      arrows: this.timeline.arrows,
      frames: this.flame.frames.length,
      lost: this.profile.lost,
      top,
    });
  }
}

function start() {
  const packed = JSON.parse($("profile").textContent);
  const names = (list) => list.map(clean);
  packed.heading = clean(packed.heading);
  packed.functions.name = names(packed.functions.name);
  packed.modules = names(packed.modules);
  packed.files = names(packed.files);
  packed.notes = names(packed.notes);
  packed.commandLine = names(packed.commandLine);
  packed.threads.comm = names(packed.threads.comm);
  for (const event of packed.events) event.name = clean(event.name);
  return new Page(new Profile(packed));
}

try {
  start();
} catch (error) {
  const box = element("div", `This page could not draw its profile: ${error.message}`, "fatal");
  document.querySelector("main").replaceChildren(box);
  $("selfcheck").textContent = JSON.stringify({ error: String(error.stack || error) });
}
