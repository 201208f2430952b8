"use strict";
// What all pictures on a canvas begin with.

/** Makes a canvas so large on the screen, with as many points as the screen has there. */
function sizeCanvas(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = width + "px";
  canvas.style.height = height + "px";
}

/** A name of which its beginning and its end are kept where there is no room for so many letters. */
function shortenedName(name, letters) {
  if (name.length <= letters) return name;
  if (letters <= 3) return "";
  const end = letters < 12 ? 0 : Math.floor((letters - 1) / 2);
  return name.slice(0, letters - 1 - end) + "…" + (end ? name.slice(-end) : "");
}

/** Empties what is drawn on so large a canvas; gives the colours of the page, by name. */
function emptyCanvas(g, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const style = getComputedStyle(document.documentElement);
  const colours = new Map();
  const colour = (name) => {
    if (!colours.has(name)) colours.set(name, style.getPropertyValue(name).trim());
    return colours.get(name);
  };
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.fillStyle = colour("--card");
  g.fillRect(0, 0, width, height);
  return colour;
}
