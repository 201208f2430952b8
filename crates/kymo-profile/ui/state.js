"use strict";
// What the page shows, as the address bar has it.

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
  const whole = (key, limit) => {
    const n = Number(given.get(key) ?? NaN);
    return Number.isInteger(n) && n >= 0 && n < limit ? n : state[key];
  };
  const oneOf = (key, allowed) => (allowed.includes(given.get(key)) ? given.get(key) : state[key]);
  state.event = whole("event", profile.events.length);
  state.focus = whole("focus", profile.functionCount);
  state.weight = oneOf("weight", ["period", "samples"]);
  state.tab = oneOf("tab", TABS);
  state.view = oneOf("view", ["down", "up", "callers", "callees"]);
  state.lanes = oneOf("lanes", ["threads", "cpus", "states"]);
  state.sort = oneOf("sort", ["own", "total", "name", "module"]);
  state.theme = oneOf("theme", ["light", "dark"]);
  for (const key of ["commands", "merge", "byname", "flip", "up", "more"]) {
    if (given.has(key)) state[key] = given.get(key) === "1";
  }
  state.q = given.get("q") ?? "";
  if (/^[pt]\d+$/.test(given.get("thread") ?? "")) state.thread = given.get("thread");
  state.range = rangeOf(given.get("range"));
  state.window = rangeOf(given.get("window"));
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
    } else if (key === "range" || key === "window") {
      if (value) out.set(key, value.map(Math.round).join("-"));
    } else if (value !== initial) {
      out.set(key, typeof value === "boolean" ? (value ? "1" : "0") : String(value));
    }
  }
  return out.toString();
}
