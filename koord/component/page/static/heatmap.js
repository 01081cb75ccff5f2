// Nodes as cells of a canvas, coloured by what they use between two thresholds.

import { el } from "./page.js";

const HEIGHT = 320, SMALLEST = 5, LARGEST = 26; // CSS pixels
const dark = matchMedia("(prefers-color-scheme: dark)");
const COLOURS = {
  light: { low: [9, 105, 218], middle: [154, 205, 50], high: [207, 34, 46], unknown: "#8c959f", mark: "#1b1f24" },
  dark: { low: [88, 166, 255], middle: [120, 160, 40], high: [248, 81, 73], unknown: "#6e7681", mark: "#ffffff" },
};

const between = (one, other, share) => `rgb(${one.map((value, at) => Math.round(value + (other[at] - value) * share)).join(" ")})`;

/** Colour of a usage in percent: blue when nothing is used, green at the low threshold, red at the high one. */
function colour({ usage, low, high }, colours) {
  if (usage === null) return colours.unknown;
  const from = low ?? 50, to = high ?? 100;
  if (usage <= from) return between(colours.low, colours.middle, from > 0 ? usage / from : 1);
  return between(colours.middle, colours.high, to > from ? Math.min((usage - from) / (to - from), 1) : 1);
}

/** cells: {usage, low, high} in percent, null for what is not known; open(index) is for a click. */
export class HeatMap {
  constructor(parent, { open, say }) {
    this.cells = [];
    this.say = say;
    this.canvas = el("canvas", { role: "img", click: (event) => { const at = this.at(event); if (at !== null) open(at); },
      pointermove: (event) => { const at = this.at(event); this.tip.textContent = at === null ? "" : say(at); } });
    this.tip = el("p", { class: "dim", "aria-hidden": "true" });
    this.box = el("div", {}, this.canvas);
    parent.append(this.box, this.tip);
    new ResizeObserver(() => this.draw()).observe(this.box);
    dark.addEventListener("change", () => this.draw());
  }

  set(cells, label) {
    this.cells = cells;
    this.canvas.setAttribute("aria-label", label);
    this.draw();
  }

  at(event) {
    const column = Math.floor(event.offsetX / this.size), row = Math.floor(event.offsetY / this.size);
    const at = row * this.columns + column;
    return column < this.columns && at < this.cells.length ? at : null;
  }

  draw() {
    const width = Math.max(this.box.clientWidth, 100), count = Math.max(this.cells.length, 1), ratio = devicePixelRatio;
    this.size = Math.max(SMALLEST, Math.min(LARGEST, Math.floor(Math.sqrt((width * HEIGHT) / count))));
    this.columns = Math.max(1, Math.floor(width / this.size));
    const height = Math.ceil(count / this.columns) * this.size;
    this.canvas.width = width * ratio;
    this.canvas.height = height * ratio;
    const context = this.canvas.getContext("2d"), colours = dark.matches ? COLOURS.dark : COLOURS.light;
    context.scale(ratio, ratio);
    this.cells.forEach((cell, index) => {
      const x = (index % this.columns) * this.size, y = Math.floor(index / this.columns) * this.size, side = this.size - 1;
      context.fillStyle = colour(cell, colours);
      context.fillRect(x, y, side, side);
      if (cell.usage === null) { // not by colour alone
        context.strokeStyle = colours.mark;
        context.beginPath();
        context.moveTo(x, y + side);
        context.lineTo(x + side, y);
        context.stroke();
      } else if (cell.high !== null && cell.usage > cell.high) {
        context.fillStyle = colours.mark;
        context.fillRect(x + side / 2 - 1, y + side / 2 - 1, 2, 2);
      }
    });
  }
}
