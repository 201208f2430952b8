"use strict";
// What the page says of the recording as a whole: its head, its losses, and the choices of events
// and threads.

const $ = (id) => document.getElementById(id);

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

/** Fills the head of the page. */
function showHeader(p) {
  $("heading").textContent = p.heading;
  const facts = $("facts");
  // A running recording is shown again and again.
  for (const id of ["facts", "notes"]) $(id).replaceChildren();
  $("loss").classList.remove("bad", "good");
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
    // Wall time and means of runs are counted, not sampled.
    fact(e.name, p.comparison ? formatWeight(e.period, e.unit) : e.isWallTime ? formatNs(e.period) : `${formatCount(e.samples)} sample${e.samples === 1 ? "" : "s"}${what}`);
  }
  fact("Host", [p.host, p.kernel, p.arch].filter(Boolean).join(", "));
  fact("CPUs", [p.cpusOnline || "", p.cpu].filter(Boolean).join(" × "));
  fact("Threads", p.comparison ? "" : formatCount(p.threadCount));
  const badge = $("loss");
  badge.textContent = p.lost ? `${formatCount(p.lost)} lost` : "0 lost";
  badge.classList.add(p.lost ? "bad" : "good");
  badge.hidden = Boolean(p.comparison);
  badge.title = p.lost ? "Records that did not reach this profile" : "Nothing was lost: every sample that was taken is here";
  if (p.lost) {
    const taken = p.events.reduce((sum, e) => sum + e.samples, 0);
    const causes = p.loss.filter((l) => l.count).map((l) => `${l.cause}: ${formatCount(l.count)}`).join("; ");
    $("loss-detail").hidden = false;
    $("loss-detail").textContent =
      `${formatCount(p.lost)} of ${formatCount(p.lost + taken)} records were lost (${formatShare(p.lost, p.lost + taken)}). ` +
      `${causes}. ${lostTime(p)}Shares below are of what was kept.`;
  }
  if (p.served?.oneIn) {
    const part = `So far 1/${p.served.oneIn} of the recording is shown, evenly over its length: amounts are of this part. The rest is being read.`;
    $("notes").append(element("li", part));
  } else if (p.served && !p.served.isLast) $("notes").append(element("li", "The recording goes on: this page follows it."));
  for (const note of p.notes.slice(0, 4)) $("notes").append(element("li", note));
  if (p.notes.length > 4) $("notes").append(element("li", `and ${formatCount(p.notes.length - 4)} more`));
  $("notes").hidden = !$("notes").children.length;
  $("foot").textContent = [p.source && `From ${p.source}`, p.recorder && `recorded by ${p.recorder}`, p.served ? "served by kymo view on this machine" : "this file works offline and loads nothing"]
    .filter(Boolean).join(", ") + ".";
}

/** In how much of the time something is missing; intervals do not overlap. */
function lostTime(p) {
  const sum = p.intervals.reduce((ns, mark) => ns + (mark.kind === "loss" ? mark.end_ns - mark.start_ns : 0), 0);
  return sum && p.durationNs ? `The red stretches are ${formatShare(sum, p.durationNs)} of the time. ` : "";
}

/** Fills the lists of events and threads; the threads that have an entry. */
function showChoices(p) {
  const event = $("event");
  event.replaceChildren();
  p.events.forEach((e, i) => event.add(new Option(p.comparison || e.isWallTime ? e.name : `${e.name} (${formatCount(e.samples)})`, i)));
  $("event-field").hidden = p.events.length < 2;

  const thread = $("thread");
  thread.closest("label").hidden = Boolean(p.comparison);
  thread.replaceChildren();
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
  return new Set([...thread.options].map((option) => option.value));
}
