"use strict";
// What the page shows, as the address bar has it: functions by a key of their name, threads and
// events by what the recording calls them. So an address means the same when the recording is read
// again.

const DEFAULTS = {
  event: 0, weight: "period", thread: "", tab: "flame", view: "down", focus: -1, zoom: [], q: "", range: null, window: null,
  commands: true, merge: false, byname: false, flip: false, lanes: "threads", more: false, sort: "own", up: false, theme: "",
};
const TABS = ["flame", "chart", "tree", "butterfly", "heat", "code"];

/** "from-until" in ns as a range, or null. */
function rangeOf(text) {
  const range = /^(\d+)-(\d+)$/.exec(text ?? "");
  return range && Number(range[2]) > Number(range[1]) ? [Number(range[1]), Number(range[2])] : null;
}

/** Takes what it understands out of "#event=0&q=main"; everything else keeps its default. */
function stateFromHash(hash, profile) {
  const state = { ...DEFAULTS, zoom: [] };
  const given = new URLSearchParams(hash.replace(/^#/, ""));
  const oneOf = (key, allowed) => (allowed.includes(given.get(key)) ? given.get(key) : state[key]);
  state.event = Math.max(0, profile.events.findIndex((event) => event.name === given.get("event")));
  state.focus = profile.functionOf(given.get("focus"));
  state.weight = oneOf("weight", ["period", "samples"]);
  state.tab = oneOf("tab", TABS);
  state.view = oneOf("view", ["down", "up", "callers", "callees"]);
  state.lanes = oneOf("lanes", ["threads", "cpus", "states"]);
  state.sort = oneOf("sort", ["own", "total", "name", "module", ...(profile.comparison ? ["change", "verdict"] : [])]);
  state.theme = oneOf("theme", ["light", "dark"]);
  for (const key of ["commands", "merge", "byname", "flip", "up", "more"]) {
    if (given.has(key)) state[key] = given.get(key) === "1";
  }
  state.q = given.get("q") ?? "";
  const [, sort, id] = /^([pt])(\d+)$/.exec(given.get("thread") ?? "") ?? [];
  const thread = sort === "t" ? profile.threads.tid.indexOf(Number(id)) : Number(id);
  if (sort && thread >= 0) state.thread = sort + thread;
  state.range = rangeOf(given.get("range"));
  state.window = rangeOf(given.get("window"));
  const zoom = (given.get("zoom") ?? "").split(".").map((key) => profile.functionOf(key));
  if (!zoom.includes(-1)) state.zoom = zoom;
  if (state.focus < 0 && (state.view === "callers" || state.view === "callees")) state.view = "down";
  return state;
}

function hashOfState(state, profile) {
  const out = new URLSearchParams();
  const words = {
    event: (event) => profile.events[event]?.name ?? "",
    focus: (fn) => profile.keyOf(fn),
    zoom: (path) => path.map((fn) => profile.keyOf(fn)).join("."),
    thread: (thread) => (thread[0] === "t" ? `t${profile.threads.tid[thread.slice(1)]}` : thread),
    range: (range) => range.map(Math.round).join("-"),
    window: (range) => range.map(Math.round).join("-"),
  };
  for (const [key, initial] of Object.entries(DEFAULTS)) {
    const value = state[key];
    if (value === initial || (key === "zoom" && !value.length)) continue;
    const word = words[key] ?? ((value) => (typeof value === "boolean" ? (value ? "1" : "0") : String(value)));
    out.set(key, word(value));
  }
  return out.toString();
}

/** The state of a page that shows another reading of the recording; moments are by its clock. */
function carriedOver(state, old, next) {
  const later = old.startNs - next.startNs;
  const moved = (range) => range && range.map((ns) => Math.max(0, ns + later));
  const carried = stateFromHash(hashOfState(state, old), next);
  return { ...carried, range: moved(state.range), window: moved(state.window) };
}
