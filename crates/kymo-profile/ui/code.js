"use strict";
// Source lines and instructions of a function beside each other, with what each cost.

const CODE_ROW = 20;
/** Columns for arrows of jumps; more at one place would be a thicket. */
const JUMP_LANES = 7;

class CodeView {
  /** on: {choose(name)} */
  constructor(box, profile, on) {
    this.box = box;
    this.profile = profile;
    this.on = on;
    const part = (name) => box.querySelector(name);
    [this.head, this.notes] = [part(".code-head"), part(".code-notes")];
    [this.sourceBox, this.asmBox, this.stack] = [part(".source"), part(".asm"), part(".code-stack")];
    this.source = new RowList(this.sourceBox, CODE_ROW, (at) => this.sourceRow(at));
    this.asm = new RowList(this.asmBox, CODE_ROW, (at) => this.asmRow(at));
    this.arrows = element("canvas");
    this.arrows.setAttribute("aria-hidden", "true");
    this.asmBox.append(this.arrows);
    this.asmBox.addEventListener("scroll", () => this.paintArrows());
    this.sourceBox.addEventListener("click", (event) => this.chooseLine(this.source.rowOf(event)));
    this.asmBox.addEventListener("click", (event) => this.chooseInstruction(this.asm.rowOf(event), true));
    this.asmBox.addEventListener("dblclick", () => this.follow());
    this.asmBox.addEventListener("keydown", (event) => this.key(event, this.instruction, (at) => this.chooseInstruction(at, true)));
    this.sourceBox.addEventListener("keydown", (event) => this.key(event, this.line, (at) => this.chooseLine(at)));
    this.head.addEventListener("change", (event) => this.showFunction(Number(event.target.value)));
    this.function = null;
  }

  /** A sentence in place of code. */
  say(sentence) {
    this.function = this.answer = null;
    this.head.replaceChildren(element("span", sentence, "dim"));
    this.notes.replaceChildren();
    this.box.classList.add("empty");
  }

  /** answer: what the server says of the functions of a name; remarks: sentences about it. */
  show(answer, bySamples, remarks) {
    if (this.answer === answer && this.bySamples === bySamples && String(this.remarks) === String(remarks)) return;
    this.answer = answer;
    this.remarks = remarks;
    this.bySamples = bySamples;
    this.box.classList.remove("empty");
    this.showFunction(0);
  }

  /** What a row of the answer has: rows, or the sum of their periods. */
  cost(row, of = "") {
    return this.bySamples ? row[of + "samples"] : row[of + "period"];
  }

  showFunction(index) {
    const found = this.answer.functions[index];
    const whole = this.cost(this.answer);
    this.function = found;
    this.instruction = this.line = -1;
    const title = [element("b", clean(found.name)), element("span", clean(found.module), "dim"),
      element("span", `${formatShare(this.cost(found), whole)} of all samples are in it itself`)];
    if (this.answer.functions.length > 1) {
      const select = element("select");
      select.setAttribute("aria-label", "Which function of this name");
      this.answer.functions.forEach((other, at) => select.add(new Option(clean(`${other.name}, ${other.module}: ${formatShare(this.cost(other), whole)}`), at)));
      select.value = index;
      title.push(select);
    }
    this.head.replaceChildren(...title);
    const words = [...this.remarks, ...(found.refusal ? [found.refusal] : []), ...found.notes];
    this.notes.replaceChildren(...words.map((note) => element("li", clean(note))));
    this.most = found.instructions.reduce((most, row) => Math.max(most, this.cost(row)), 0);
    this.mostOfCall = found.instructions.reduce((most, row) => Math.max(most, this.cost(row, "call_")), 0);
    this.box.classList.toggle("calls", this.mostOfCall > 0);
    this.placeLines(found);
    this.placeJumps(found);
    this.source.show(this.lines.length, found.refusal ? "" : "No source lines are known of this function.");
    this.asm.show(found.instructions.length, found.refusal ? "Its code cannot be shown." : "");
    this.drawStack();
    const of = this.most ? "" : "call_";
    const hottest = found.instructions.findIndex((row) => this.cost(row, of) === (this.most || this.mostOfCall));
    if (hottest >= 0) this.chooseInstruction(hottest, true);
    this.paintArrows();
  }

  /** Rows of source text: a heading for each file, its lines, and gaps. */
  placeLines(found) {
    const costs = new Map(found.lines.map((line, at) => [`${line.file}:${line.line}`, at]));
    this.lines = [];
    this.rowOfLine = new Map();
    const put = (row) => {
      if (row.line !== undefined) this.rowOfLine.set(row.line, this.lines.length);
      this.lines.push(row);
    };
    const pieces = (this.answer.sources || []).filter((piece) => found.lines.some((line) => line.file === piece.file));
    const weight = (file) => found.lines.reduce((sum, line) => sum + (line.file === file ? this.cost(line, "self_") : 0), 0);
    const files = [...new Set(found.lines.map((line) => line.file))].sort((a, b) => weight(b) - weight(a));
    for (const file of files) {
      put({ heading: clean(file) });
      let last = 0;
      for (const piece of pieces.filter((piece) => piece.file === file)) {
        if (last && piece.first > last + 1) put({ gap: true });
        piece.lines.forEach((text, i) => put({ number: piece.first + i, text: clean(text), line: costs.get(`${file}:${piece.first + i}`) }));
        last = piece.first + piece.lines.length - 1;
      }
      // Without the file, the lines that code has.
      found.lines.forEach((line, at) => line.file === file && !this.rowOfLine.has(at) && put({ number: line.line, text: "", line: at }));
    }
    this.mostOfLine = found.lines.reduce((most, line) => Math.max(most, this.cost(line, "total_")), 0);
  }

  /** Jumps within the function, each in the first column that is free there. */
  placeJumps(found) {
    const jumps = found.instructions.flatMap((row, from) => {
      const { to } = row;
      return to === null || row.flow === "call" ? [] : [{ from, to, first: Math.min(from, to), last: Math.max(from, to) }];
    });
    jumps.sort((a, b) => a.last - a.first - (b.last - b.first));
    const lanes = Array.from({ length: JUMP_LANES }, () => []);
    this.jumps = jumps.filter((jump) => {
      jump.lane = lanes.findIndex((lane) => lane.every((other) => other.last < jump.first || other.first > jump.last));
      if (jump.lane >= 0) lanes[jump.lane].push(jump);
      return jump.lane >= 0;
    });
  }

  /** A share as text, with the heat behind it. */
  heat(value, most, css) {
    const whole = this.cost(this.answer);
    const cell = element("span", value ? formatShare(value, whole) : "", css);
    cell.style.setProperty("--heat", most ? (0.75 * Math.sqrt(value / most)).toFixed(3) : 0);
    return cell;
  }

  sourceRow(at) {
    const { heading, gap, number, text, line } = this.lines[at];
    const row = element("div", undefined, "code-row");
    if (heading !== undefined || gap) {
      row.classList.add(gap ? "gap" : "heading");
      row.textContent = gap ? "⋮" : heading;
      return row;
    }
    const cost = line === undefined ? null : this.function.lines[line];
    row.append(this.heat(cost ? this.cost(cost, "total_") : 0, this.mostOfLine, "cost"));
    row.append(this.heat(cost ? this.cost(cost, "self_") : 0, this.mostOfLine, "cost"));
    row.append(element("span", String(number), "number"), element("span", text || " ", "text"));
    if (line !== undefined && this.lit?.lines.has(line)) row.classList.add("lit");
    if (at === this.line) row.classList.add("chosen");
    return row;
  }

  asmRow(at) {
    const found = this.function.instructions[at];
    const row = element("div", undefined, "code-row");
    row.append(this.heat(this.cost(found), this.most, "cost"));
    if (this.mostOfCall) row.append(this.heat(this.cost(found, "call_"), this.mostOfCall, "cost call"));
    row.append(element("span", found.address, "address"), element("span", "", "jumps"));
    row.append(element("span", clean(found.text), "text"));
    if (this.lit?.instructions.has(at)) row.classList.add("lit");
    if (at === this.instruction) row.classList.add("chosen");
    return row;
  }

  linesOf(at) {
    const found = this.function.instructions[at];
    return (this.function.frames[found?.frames] || []).map((frame) => frame.line).filter((line) => line !== null);
  }

  chooseInstruction(at, reveal) {
    if (!this.function || at < 0 || at >= this.function.instructions.length) return;
    const lines = this.linesOf(at);
    this.instruction = at;
    this.lit = { lines: new Set(lines), instructions: new Set() };
    this.line = this.rowOfLine.get(lines[0]) ?? -1;
    if (this.line >= 0) this.source.reveal(this.line, true);
    if (reveal) this.asm.reveal(at, true);
    this.redraw();
  }

  chooseLine(at) {
    if (!this.function || at < 0 || at >= this.lines.length) return;
    const { line } = this.lines[at];
    this.line = at;
    const instructions = new Set();
    if (line !== undefined) this.function.instructions.forEach((_, i) => this.linesOf(i).includes(line) && instructions.add(i));
    this.lit = { lines: new Set(), instructions };
    this.instruction = [...instructions][0] ?? -1;
    if (this.instruction >= 0) this.asm.reveal(this.instruction, true);
    this.source.reveal(at);
    this.redraw();
  }

  redraw() {
    this.source.draw();
    this.asm.draw();
    this.drawStack();
    this.paintArrows();
  }

  /** The inlined calls around the chosen instruction, innermost first. */
  drawStack() {
    const found = this.function?.instructions[this.instruction];
    const frames = this.function?.frames[found?.frames] || [];
    const place = (frame) => {
      const line = this.function.lines[frame.line];
      return line ? `${line.file.split("/").pop()}:${line.line}` : "";
    };
    this.stack.textContent = frames.length
      ? frames.map((frame) => clean(`${frame.function ?? "?"} ${place(frame)}`)).join("  ←  ")
      : "Choose an instruction for its lines, or a line for its instructions.";
  }

  /** Goes where the chosen jump goes, or to the function that the call calls. */
  follow() {
    const found = this.function?.instructions[this.instruction];
    if (found?.flow === "call") this.on.choose(/<(.+)>/.exec(found.text)?.[1] ?? "");
    else if (found && found.to !== null) this.chooseInstruction(found.to, true);
  }

  key(event, at, choose) {
    const act = { ArrowDown: () => choose(at + 1), ArrowUp: () => choose(at - 1), Enter: () => this.follow(), h: () => this.hottest() }[event.key];
    if (!act || !this.function) return;
    event.preventDefault();
    event.stopPropagation();
    act();
  }

  /** The next instruction by cost; after the coldest one the hottest. */
  hottest() {
    const rows = this.function.instructions;
    const of = this.most ? "" : "call_";
    const order = [...rows.keys()].filter((at) => this.cost(rows[at], of)).sort((a, b) => this.cost(rows[b], of) - this.cost(rows[a], of) || a - b);
    if (order.length) this.chooseInstruction(order[(order.indexOf(this.instruction) + 1) % order.length], true);
  }

  paintArrows() {
    if (!this.function) return;
    const { asm, arrows } = this;
    const [first, end] = asm.inSight(1);
    const width = JUMP_LANES * 7 + 8;
    const height = this.asmBox.clientHeight;
    sizeCanvas(arrows, width, height);
    arrows.style.top = this.asmBox.scrollTop + "px";
    const g = arrows.getContext("2d");
    const ratio = window.devicePixelRatio || 1;
    g.scale(ratio, ratio);
    const style = getComputedStyle(document.documentElement);
    const y = (at) => at * CODE_ROW + CODE_ROW / 2 - this.asmBox.scrollTop;
    for (const jump of this.jumps) {
      if (jump.last < first || jump.first > end) continue;
      const isChosen = jump.from === this.instruction || jump.to === this.instruction;
      g.strokeStyle = g.fillStyle = style.getPropertyValue(isChosen ? "--accent" : "--dim").trim();
      g.globalAlpha = isChosen ? 1 : 0.5;
      g.lineWidth = isChosen ? 1.6 : 1;
      const x = width - 8 - jump.lane * 7;
      g.beginPath();
      g.moveTo(width - 2, y(jump.from));
      g.lineTo(x, y(jump.from));
      g.lineTo(x, y(jump.to));
      g.lineTo(width - 5, y(jump.to));
      g.stroke();
      g.beginPath();
      g.moveTo(width, y(jump.to));
      g.lineTo(width - 5, y(jump.to) - 3);
      g.lineTo(width - 5, y(jump.to) + 3);
      g.fill();
    }
  }
}
