"use strict";
// A long list of rows of equal height, of which the document has those in sight.

class RowList {
  /** make(at): the element of a row. */
  constructor(box, height, make) {
    this.box = box;
    this.height = height;
    this.make = make;
    this.count = 0;
    this.body = element("div", undefined, "rows");
    box.replaceChildren(this.body);
    box.addEventListener("scroll", () => this.draw());
  }

  /** Shows so many rows; `none` is said where there are none. */
  show(count, none) {
    this.count = count;
    this.none = none;
    this.body.style.height = count * this.height + "px";
    this.box.setAttribute("aria-rowcount", count);
    this.draw();
  }

  draw() {
    const [from, to] = this.inSight(6);
    const rows = [];
    for (let at = from; at < to; at++) {
      const row = this.make(at);
      row.style.top = at * this.height + "px";
      row.dataset.at = at;
      rows.push(row);
    }
    if (!this.count && this.none) rows.push(element("div", this.none, "none"));
    this.body.replaceChildren(...rows);
  }

  /** The first row in sight and the one after the last, with so many more on both sides. */
  inSight(more) {
    const from = Math.max(0, Math.floor(this.box.scrollTop / this.height) - more);
    return [from, Math.min(this.count, Math.ceil((this.box.scrollTop + this.box.clientHeight) / this.height) + more)];
  }

  /** Scrolls no further than needed, or so that the row is in the middle. */
  reveal(at, middle) {
    const { box, height } = this;
    const top = at * height;
    const inside = top >= box.scrollTop && top + height <= box.scrollTop + box.clientHeight;
    if (middle && !inside) box.scrollTop = top - box.clientHeight / 2;
    else if (top < box.scrollTop) box.scrollTop = top;
    else if (top + height > box.scrollTop + box.clientHeight) box.scrollTop = top + height - box.clientHeight;
  }

  /** The row of an event, or -1. */
  rowOf(event) {
    const row = event.target.closest?.("[data-at]");
    return row && this.body.contains(row) ? Number(row.dataset.at) : -1;
  }
}
