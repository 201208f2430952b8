"use strict";
// The page: one state, and what each part shows of it.

/** An answer that takes longer is preceded by an estimate from the samples that the page has. */
const ESTIMATE_AFTER_MS = 60;

class Page {
  constructor(profile) {
    this.profile = profile;
    this.palette = new Palette(profile);
    /** The address that was opened: a part of the recording may lack what it names. */
    this.given = location.hash;
    this.state = stateFromHash(this.given, profile);
    this.tree = null;
    // A page that is a file has no server.
    this.server = profile.served ? new RecordingServer(() => this.render(), (sentence) => this.remark(sentence), profile.served.version) : null;
    this.dark = matchMedia("(prefers-color-scheme: dark)");
    this.parts();
    showHeader(profile);
    this.options = showChoices(profile);
    this.controls();
    this.theme();
    this.render();
    this.first = this.hash;
  }

  parts() {
    const { profile, palette } = this;
    const choose = (fn) => this.choose(fn);
    const hover = (lines, x, y) => this.tipOf(lines && lines.map((line, i) => element(i ? "div" : "b", line)), x, y);
    const range = (range) => this.set({ range: range && this.snap(range) });
    this.timeline = new Timeline($("timeline"), profile, palette, {
      range: (range) => this.rangeSoon(range),
      window: (window) => this.set({ window }),
      thread: (thread) => this.go({ thread: this.state.thread === `t${thread}` ? "" : `t${thread}` }),
    });
    this.flame = new FlameGraph($("flame"), profile, palette, {
      zoom: (node) => this.go({ zoom: node === NO_NODE ? [] : this.tree.path(node) }),
      choose: (node) => this.choose(node === NO_NODE ? -1 : this.tree.func[node]),
      hover: (frame, x, y) => this.tip(frame, x, y),
    });
    this.chart = new FlameChart($("chart"), profile, palette, { choose, hover, range });
    this.trees = ["tree", "callers", "callees"].map((id) => new CallTreeTable($(id), profile, palette, { choose }));
    this.heat = new HeatMap($("heat"), palette, { range, hover });
    this.code = new CodeView($("code"), profile, { choose: (name) => this.chooseName(name) });
    this.table = new FunctionTable($("table"), profile, palette, {
      choose,
      sort: (key) => this.set({ sort: key, up: this.state.sort === key ? !this.state.up : key === "name" || key === "module" }),
    });
  }

  controls() {
    const change = (id, patch) => $(id).addEventListener("change", (event) => this.set(patch(event.target)));
    change("event", (box) => ({ event: Number(box.value), zoom: [], range: null, window: null }));
    change("weight", (box) => ({ weight: box.value }));
    change("thread", (box) => ({ thread: box.value }));
    for (const key of ["commands", "merge", "byname", "flip"]) change(key, (box) => ({ [key]: box.checked }));
    $("query").addEventListener("input", (event) => {
      const q = event.target.value;
      clearTimeout(this.typing);
      this.typing = setTimeout(() => this.set({ q }), 120);
    });
    $("query").addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      clearTimeout(this.typing);
      this.set({ q: event.target.value });
      if (this.state.tab === "flame") this.flame.goToMatch();
    });
    $("view").addEventListener("click", (event) => event.target.dataset.view && this.go({ view: event.target.dataset.view, zoom: [] }));
    $("tabs").addEventListener("click", (event) => event.target.dataset.tab && this.go({ tab: event.target.dataset.tab }));
    $("tabs").addEventListener("keydown", (event) => {
      const sign = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!sign) return;
      const shown = TABS.filter((tab) => !$(`tab-${tab}`).hidden);
      this.go({ tab: shown[(shown.indexOf(this.state.tab) + sign + shown.length) % shown.length] });
      $(`tab-${this.state.tab}`).focus();
    });
    $("lanes").addEventListener("click", (event) => event.target.dataset.lanes && this.set({ lanes: event.target.dataset.lanes }));
    $("lanes-more").addEventListener("click", () => this.set({ more: !this.state.more }));
    $("range-clear").addEventListener("click", () => this.set({ range: null }));
    $("window-in").addEventListener("click", () => this.go({ window: this.state.range }));
    $("window-all").addEventListener("click", () => this.go({ window: null }));
    $("zoom-out").addEventListener("click", () => this.go({ zoom: [] }));
    $("theme").addEventListener("click", () => this.set({ theme: this.isDark() ? "light" : "dark" }));
    $("help-open").addEventListener("click", () => $("help").showModal());
    $("legend").addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (button) this.set({ q: this.state.q === button.dataset.q ? "" : button.dataset.q });
    });
    $("detail").addEventListener("click", (event) => {
      const view = event.target.dataset.view;
      if (view) this.go({ view, zoom: [], ...(this.state.tab === "tree" ? {} : { tab: "flame" }) });
      else if (event.target.dataset.tab) this.go({ tab: event.target.dataset.tab });
      else if (event.target.dataset.find) this.set({ q: "=" + this.profile.names[this.state.focus] });
    });
    this.dark.addEventListener("change", () => this.render());
    for (const name of ["hashchange", "popstate"]) addEventListener(name, () => {
      const hash = location.hash.replace(/^#/, "");
      if (hash === this.hash) return;
      const { theme } = this.state;
      this.state = stateFromHash(location.hash, this.profile);
      // The way back leads through what was looked at, not through colours.
      if (name === "popstate") this.state.theme = theme;
      this.render();
    });
    let width = innerWidth;
    addEventListener("resize", () => {
      if (innerWidth === width) return;
      width = innerWidth;
      this.kept = {};
      this.render();
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
      else if (state.window) this.set({ window: null });
      else if (state.focus >= 0) this.choose(-1);
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
      z: () => this.go({ window: state.range }),
      Z: () => this.go({ window: null }),
      "1": () => this.go({ tab: "flame" }),
      "2": () => this.go({ tab: "chart" }),
      "3": () => this.go({ tab: "tree" }),
      "4": () => this.go({ tab: "butterfly" }),
      "5": () => this.go({ tab: "heat" }),
      "6": () => this.go({ tab: "code" }),
    }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }

  /** Shows another reading of the recording: what was chosen stays, by its name. */
  replace(profile) {
    const isUntouched = this.profile.served.oneIn && this.hash === this.first;
    this.state = isUntouched ? stateFromHash(this.given, profile) : carriedOver(this.state, this.profile, profile);
    this.palette.replace(profile);
    this.profile = profile;
    for (const part of [this.timeline, this.flame, this.chart, this.code, this.table, ...this.trees]) part.profile = profile;
    for (const tree of this.trees) tree.of = "";
    this.table.drawn = "";
    this.flame.hovered = -1;
    [this.kept, this.weightOf, this.codeOf] = [{}, undefined, undefined];
    this.tipOf(null);
    this.server.replace(profile.served.version);
    showHeader(profile);
    this.options = showChoices(profile);
    this.render();
  }

  // ---- state -----------------------------------------------------------------------------------------------------

  set(patch) {
    Object.assign(this.state, patch);
    this.render();
  }

  /** The same, and the browser's way back leads to what was shown before. */
  go(patch) {
    try {
      history.pushState(null, "", location.href);
    } catch {
      // Some viewers forbid it; the page works without.
    }
    this.set(patch);
  }

  /** A range moved to the borders of what can be counted: of a page without a server, buckets. */
  snap(range) {
    return this.server ? [Math.round(range[0]), Math.max(Math.round(range[0]) + 1, Math.round(range[1]))] : this.event().snap(range);
  }

  /** While the brush moves, once per picture is enough. */
  rangeSoon(range) {
    const first = this.waiting === undefined;
    this.waiting = range;
    if (!first) return;
    requestAnimationFrame(() => {
      const wanted = this.waiting;
      this.waiting = undefined;
      this.set({ range: wanted && this.snap(wanted) });
    });
  }

  choose(fn) {
    if (fn < 0 || this.profile.kinds[fn] === "c") fn = -1;
    this.state.focus = fn;
    if (fn < 0 && (this.state.view === "callers" || this.state.view === "callees")) this.state.view = "down";
    this.render();
  }

  /** The function of this name, if it was sampled. */
  chooseName(name) {
    const fn = this.profile.names.indexOf(name);
    if (fn >= 0) this.choose(fn);
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
    if (this.awaitsSums(exact)) return;
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
    this.sides = profile.comparison ? this.keep("sides", treeKey, () => this.sidesOf(pointed)) : null;
    let zoomNode = this.tree.find(state.zoom);
    if (zoomNode === NO_NODE) state.zoom = [];

    this.renderControls(event, hits);
    this.renderTimeline(event, hits);
    this.drawn ??= { timeline: Date.now() };
    this.renderTab(event, { treeKey, dataKey, zoomNode, hits, bySamples });
    this.drawn.flame ??= Date.now();
    if (!profile.served?.oneIn) this.drawn.whole ??= Date.now();
    this.renderLegend(weighed);
    this.table.chosen = state.focus;
    this.table.show(weighed.sums, weighed.whole, hits, { key: state.sort, up: state.up }, this.unit);
    $("table-text").textContent = `${formatCount(this.table.rows.length)}${hits ? " matching" : ""}, in ${this.unit === "ns" ? "time" : this.unit}`;
    const matched = hits ? matchedWeight(event, weighed.self, hits) : 0;
    $("matched").textContent = !search ? "" : search.bad ? "not a pattern" : formatShare(matched, weighed.whole);
    this.renderDetail();
    this.report(event, weighed, zoomNode, matched);
    this.showAddress();
  }

  /** What each node of the tree has on both sides of a comparison. `pointed`: the function that the view is of. */
  sidesOf(pointed) {
    const { profile, state } = this;
    const other = profile.events[1 - state.event];
    const tree = buildTree(profile, other, other.selfPeriod, { ...state, focus: pointed });
    return profile.comparison.sides(this.tree, tree, state.event === 0);
  }

  /** The address of what is shown, for the reload and for others. */
  showAddress() {
    this.hash = hashOfState(this.state, this.profile);
    try {
      const address = this.hash ? "#" + this.hash : location.pathname + location.search;
      if (location.hash.replace(/^#/, "") !== this.hash) history.replaceState(null, "", address);
    } catch {
      // Some viewers forbid it; the page works without.
    }
  }

  /**
   * Whether the picture waits for the exact sums of a new selection: they nearly always come before a
   * picture of estimated ones would be drawn. When they do not, that is drawn.
   */
  awaitsSums(exact) {
    const { state, timeline } = this;
    const isWaiting = this.server && this.weighed && !exact && (state.range || state.thread) && !this.isOverdue;
    if (isWaiting) {
      this.overdue ??= setTimeout(() => {
        this.isOverdue = true;
        this.render();
      }, ESTIMATE_AFTER_MS);
      timeline.range = state.range;
      timeline.paint();
      this.showAddress();
      this.tell({ ...this.told, exact: false });
      return true;
    }
    clearTimeout(this.overdue);
    [this.overdue, this.isOverdue] = [undefined, false];
    return false;
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
    $("tab-code").hidden = !this.hasCode();
    for (const tab of ["chart", "heat"]) $(`tab-${tab}`).hidden = Boolean(this.profile.comparison);
    $("zoom-out").hidden = !state.zoom.length;
  }

  renderTimeline(event, hits) {
    const { state } = this;
    $("timeline-card").hidden = !event.entries.count;
    if (!event.entries.count) return;
    const timeline = this.timeline;
    const by = state.lanes === "cpus" && !event.hasCpus || state.lanes === "states" && !event.hasStates ? "threads" : state.lanes;
    timeline.range = state.range;
    timeline.threads = this.keep("flags", state.thread, () => this.threadFlags());
    // The chosen function shows its moments where no search does.
    const flags = hits || (state.focus >= 0 ? this.keep("one", state.focus, () => {
      const one = new Uint8Array(this.profile.functionCount);
      one[state.focus] = 1;
      return one;
    }) : null);
    timeline.under = this.keep("under", [state.event, state.q, hits ? "" : state.focus].join("|"), () => flags && this.nodesUnder(event, flags));
    // Closer than the page knows it, the server does.
    const finer = state.window && this.server ? this.server.entries(state, event, state.window, "") : null;
    this.keep("lanes", [state.event, by, state.more, state.thread, state.q, state.focus, this.themed, state.window, Boolean(finer)].join("|"),
      () => timeline.show(event, finer || event.entries, by, state.window, state.more));
    timeline.paint();
    $("lanes").hidden = !event.hasCpus && !event.hasStates;
    for (const button of $("lanes").children) {
      button.setAttribute("aria-pressed", button.dataset.lanes === by);
      button.hidden = button.dataset.lanes === "cpus" ? !event.hasCpus : button.dataset.lanes === "states" ? !event.hasStates : false;
    }
    $("lanes-more").hidden = timeline.lanes.count <= FEW_LANES;
    $("lanes-more").textContent = state.more ? "Lower" : "Taller";
    $("window-in").hidden = !state.range || String(state.range) === String(state.window);
    $("window-all").hidden = !state.window;
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

  /** The chosen one of the pictures. */
  renderTab(event, how) {
    const { state, profile } = this;
    const { zoomNode, hits, treeKey, dataKey, bySamples } = how;
    for (const tab of TABS) {
      $(`tab-${tab}`).setAttribute("aria-selected", tab === state.tab);
      $(`tab-${tab}`).tabIndex = tab === state.tab ? 0 : -1;
      $(`panel-${tab}`).hidden = tab !== state.tab;
    }
    for (const box of document.querySelectorAll("[data-of]")) box.hidden = !box.dataset.of.split(" ").includes(state.tab);
    const options = { whole: this.weighed.whole, unit: this.unit, hits, chosen: state.focus };
    if (state.tab === "flame") this.renderFlame(event, zoomNode, hits, [treeKey, state.zoom, state.byname, state.flip].join("|"));
    else if (state.tab === "chart") this.renderChart(event, hits);
    else if (state.tab === "tree") this.trees[0].show(this.tree, { ...options, hasSelf: state.view === "down" || state.view === "callees", subject: [state.event, state.view, state.view[0] === "c" ? state.focus : ""].join("|") });
    else if (state.tab === "butterfly") this.renderButterfly(event, dataKey, options);
    else if (state.tab === "heat") {
      const heat = this.server ? this.server.heat(state) : this.keep("heat", dataKey, () => heatOf(event, this.threadFlags(), bySamples, profile.heatColumnNs));
      const shown = heat && (heat.values ? heat : { ...heat, values: bySamples ? heat.cell_samples : heat.cell_periods });
      if (shown) this.heat.show(shown, this.unit, state.range);
    } else this.renderCode(bySamples);
  }

  /** The thread that is chosen, else the busiest one of those that are. */
  chartThread(event, from, to) {
    const { state } = this;
    if (state.thread[0] === "t") return Number(state.thread.slice(1));
    const flags = this.threadFlags();
    return this.keep("busiest", [state.event, state.thread, from, to].join("|"), () => {
      const sums = new Float64Array(this.profile.threadCount);
      const end = event.entries.at(to);
      for (let i = event.entries.at(from); i < end; i++) {
        const idle = event.hasStates && this.profile.names[event.stateOf[event.entries.node[i]]]?.startsWith("idle");
        if (!idle) sums[event.entries.thread[i]] += flags && !flags[event.entries.thread[i]] ? 0 : event.entries.samples[i];
      }
      return sums.reduce((best, sum, thread) => (sum > sums[best] ? thread : best), 0);
    });
  }

  renderChart(event, hits) {
    const { state } = this;
    const [from, to] = state.range || state.window || [0, event.spanNs];
    const thread = this.chartThread(event, from, to);
    const finer = this.server?.entries(state, event, [from, to], `t${thread}`, "chart");
    this.chart.show(event, finer || event.entries, { thread, from, to, commands: state.commands, hits, chosen: state.focus });
    const word = state.thread[0] === "t" ? "" : "the busiest thread: ";
    $("flame-text").textContent = `${word}${this.profile.threadLabel(thread)}${finer || !event.estimated ? "" : ", of a part of the samples"}`;
  }

  renderButterfly(event, dataKey, options) {
    const { state, profile } = this;
    // The one that costs most by itself, until one is chosen.
    const { own } = this.weighed.sums;
    const focus = state.focus >= 0 ? state.focus : own.reduce((best, value, fn) => (value > (own[best] ?? 0) ? fn : best), -1);
    const name = focus >= 0 ? profile.names[focus] : "";
    $("butterfly-name").textContent = name || "Nothing was sampled here.";
    $("butterfly-sums").textContent = name ? `self ${formatShare(own[focus], options.whole)}, total ${formatShare(this.weighed.sums.total[focus], options.whole)}` : "";
    ["callers", "callees"].forEach((view, at) => {
      const key = [dataKey, view, focus, state.commands, state.merge].join("|");
      const tree = this.keep(view, key, () => buildTree(profile, event, this.weighed.self, { ...state, view, focus }));
      this.trees[at + 1].show(tree, { ...options, hasSelf: view === "callees", subject: [state.event, view, focus].join("|") });
    });
  }

  renderCode(bySamples) {
    const { state, profile } = this;
    const fn = state.focus;
    if (fn < 0) return this.code.say("Choose a function to see its source and its instructions.");
    if (!"uki".includes(profile.kinds[fn])) return this.code.say(`${profile.names[fn]} has no code: choose a function.`);
    if (profile.kinds[fn] === "i") {
      const around = this.keep("around", [state.event, fn].join("|"), () => functionsAround(profile, this.event(), fn));
      return this.code.say(`${profile.names[fn]} has no code of its own${around.length ? `: it was inlined into ${around.map((other) => profile.names[other]).join(", ")}.` : "."}`);
    }
    const answer = this.server ? this.server.code(state, fn) : this.codes()?.[state.event]?.[fn] ?? { error: "This page has no code of this function." };
    if (!answer) {
      // Until the answer is there, a function keeps what it had for another selection.
      if (this.codeOf !== fn) this.code.say("Reading the code…");
      return;
    }
    this.codeOf = fn;
    if (answer.error) return this.code.say(answer.error);
    const isPart = !this.server && (state.range || state.thread);
    this.code.show(answer, bySamples, isPart ? ["The costs below are of the whole recording: this page has no others."] : []);
  }

  /** The code that a page which is a file has with it. */
  codes() {
    const packed = $("codes");
    return packed && this.keep("codes", "", () => JSON.parse(packed.textContent));
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
      flame.show(this.tree, zoomNode, state.byname, this.sides);
    });
    if (!fresh) flame.paint();
    $("flame-text").textContent = zoomNode === NO_NODE ? "" : `zoomed: ${formatShare(this.tree.total[zoomNode], this.weighed.whole)}`;
  }

  renderLegend(weighed) {
    this.keep("legend", [this.kept.weighed.key, this.themed, this.state.q].join("|"), () => {
      const { profile } = this;
      if (profile.comparison) return showLegendOfChange(this.palette.dark);
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
    const found = profile.comparison?.found.get(fn);
    if (found) {
      const rate = found.discoveryRate ? `, q ${found.discoveryRate}` : "";
      parts.push(element("span", `${found.verdict}: ${found.change ?? "one side has nothing"}${rate}`, "verdict"));
    }
    const tabs = [["butterfly", "Butterfly"], ...(this.hasCode() ? [["code", "Code"]] : [])];
    const buttons = [["view", "callers", "Callers"], ["view", "callees", "Callees"], ...tabs.map(([tab, text]) => ["tab", tab, text])];
    for (const [of, value, text] of buttons) {
      const button = element("button", text);
      button.type = "button";
      button.dataset[of] = value;
      parts.push(button);
    }
    const find = element("button", "Highlight");
    find.type = "button";
    find.dataset.find = "1";
    parts.push(find);
    detail.replaceChildren(...parts);
  }

  hasCode() {
    return Boolean(this.server || $("codes"));
  }

  /** The numbers of a bar, beside the pointer. */
  tip(frame, x, y) {
    if (!frame) return this.tipOf(null);
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
      if (this.sides) {
        const [old, now] = [this.sides.old[node], this.sides.new[node]];
        parts.push(element("div", `old ${formatWeight(old, this.unit)}, new ${formatWeight(now, this.unit)}: ${formatChange(now === old ? 0 : now / old - 1)}`, "sums"));
      }
      if (this.state.view !== "callers" && this.state.view !== "up") {
        parts.push(element("div", `self ${formatShare(tree.self[node], weighed.whole)}: ${formatWeight(tree.self[node], this.unit)}`, "sums"));
      }
    }
    this.tipOf(parts, x, y);
  }

  /** Shows elements beside the pointer, or nothing. */
  tipOf(parts, x, y) {
    const tip = $("tip");
    tip.hidden = !parts;
    if (!parts) return;
    tip.replaceChildren(...parts);
    const area = tip.getBoundingClientRect();
    tip.style.left = Math.max(4, Math.min(x + 14, innerWidth - area.width - 8)) + "px";
    tip.style.top = (y + 18 + area.height > innerHeight ? Math.max(4, y - area.height - 12) : y + 18) + "px";
  }

  /** What the page computed, for tests and for scripts: hidden in the document as JSON. */
  report(event, weighed, zoomNode, matched) {
    const top = this.table.rows.slice(0, 5).map((fn) => [this.profile.names[fn], weighed.sums.own[fn], weighed.sums.total[fn]]);
    this.tell({
      event: event.name,
      unit: this.unit,
      durationNs: this.profile.durationNs,
      version: this.profile.served?.version ?? 0,
      isPart: Boolean(this.profile.served?.oneIn),
      drawn: this.drawn,
      range: this.state.range,
      samples: weighed.samples,
      exact: Boolean(this.server?.sums(this.state)),
      whole: weighed.whole,
      treeWhole: this.tree.whole,
      zoom: zoomNode === NO_NODE ? null : { name: this.profile.names[this.tree.func[zoomNode]], total: this.tree.total[zoomNode], self: this.tree.self[zoomNode] },
      matched,
      rows: this.table.rows.length,
      lanes: event.entries.count ? this.timeline.lanes.count : 0,
      states: event.entries.count ? this.timeline.states.map(({ fn }) => this.profile.names[fn]) : [],
      tab: this.state.tab,
      boxes: this.chart.boxes.length,
      treeRows: this.trees.map((tree) => tree.rows.length),
      heat: this.heat.heat ? this.heat.heat.values.reduce((a, b) => a + b, 0) : null,
      code: this.code.function && { name: this.code.function.name, instructions: this.code.function.instructions.length, samples: this.code.function.samples, lines: this.code.lines.length },
      links: event.links.count,
      arrows: this.timeline.arrows,
      frames: this.flame.frames?.length ?? 0,
      lost: this.profile.lost,
      changed: this.sides && this.table.rows.slice(0, 5).map((fn) => [this.profile.names[fn], this.profile.comparison.change(fn), this.profile.comparison.found.get(fn)?.verdict ?? ""]),
      top,
    });
  }

  tell(told) {
    this.told = told;
    $("selfcheck").textContent = JSON.stringify(told);
  }
}

/** The packed profile as the page computes with it. */
function profileOf(packed) {
  const names = (list) => list.map(clean);
  packed.heading = clean(packed.heading);
  packed.functions.name = names(packed.functions.name);
  packed.modules = names(packed.modules);
  packed.files = names(packed.files);
  packed.notes = names(packed.notes);
  packed.commandLine = names(packed.commandLine);
  packed.threads.comm = names(packed.threads.comm);
  for (const event of packed.events) event.name = clean(event.name);
  return new Profile(packed);
}

/** A page that is a file has its profile; a served one gets it when it is read, perhaps again. */
async function start() {
  const embedded = $("profile").textContent;
  if (embedded) return new Page(profileOf(JSON.parse(embedded)));
  document.body.classList.add("waits");
  $("heading").textContent = document.title;
  const readings = new Readings((done) => showReading(done));
  let page = null;
  for (let packed = await readings.next(); packed; packed = await readings.next()) {
    document.body.classList.remove("waits");
    showReading(null);
    const profile = profileOf(packed);
    if (page) page.replace(profile);
    else page = new Page(profile);
  }
}

/** How much of the recording is read, from 0 to 1; null ends it. */
function showReading(done) {
  const bar = $("reading");
  bar.hidden = done === null;
  if (done !== null) bar.value = done;
}

start().catch((error) => {
  const box = element("div", `This page could not draw its profile: ${error.message}`, "fatal");
  document.body.classList.remove("waits");
  showReading(null);
  document.querySelector("main").replaceChildren(box);
  $("selfcheck").textContent = JSON.stringify({ error: String(error.stack || error) });
});
