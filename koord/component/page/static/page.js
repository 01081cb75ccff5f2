// The frame of every status page: the stream, tables, charts. Texts from outside become text nodes.

const root = document.documentElement;
const connection = document.getElementById("connection");
const main = document.getElementById("main");

/** An element. Attributes by name, listeners as functions; children are nodes or texts. */
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined).map(
    (child) => (child instanceof Node ? child : document.createTextNode(String(child)))));
  return element;
}

/** Names and values, one below the other; what is empty is left out. */
export const facts = (pairs) => el("dl", {}, ...pairs.filter(([, value]) => value !== "" && value !== null && value !== undefined)
  .flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));

/** A section of the page, reachable from the navigation; returns where its content goes. */
export function section(id, title) {
  const body = el("div");
  main.append(el("section", { id, "aria-labelledby": `${id}-title` }, el("h2", { id: `${id}-title` }, title), body));
  document.getElementById("nav").append(el("a", { href: `#${id}` }, title));
  return body;
}

const ABSENT = "–";
export const format = {
  text: (value) => (value === null || value === undefined || value === "" ? ABSENT : String(value)),
  number: (value, digits = 2) => (typeof value === "number" ? value.toFixed(Math.abs(value) >= 100 ? 0 : digits) : ABSENT),
  percent: (share) => (typeof share === "number" ? `${(share * 100).toFixed(share < 0.1 ? 1 : 0)} %` : ABSENT),
  bytes: (value) => scaled(value, 1024, ["", "Ki", "Mi", "Gi", "Ti"]),
  rate: (value) => scaled(value, 1000, ["", "k", "M", "G", "T"]),
  time: (seconds) => (typeof seconds === "number" ? new Date(seconds * 1000).toLocaleTimeString() : ABSENT),
};
function scaled(value, step, units) {
  if (typeof value !== "number") return ABSENT;
  let unit = 0;
  while (Math.abs(value) >= step && unit < units.length - 1) { value /= step; unit += 1; }
  return `${value.toFixed(unit && Math.abs(value) < 10 ? 1 : 0)}${units[unit]}`;
}

/**
 * A table that sorts by its head and filters by a text. columns: {title, value(row) to sort by and to
 * show, show(row) for a text or node instead, number}. key(row) says which row is which.
 */
export class DataTable {
  constructor(parent, { label, columns, filter = false, sort = 0, descending = false, empty = "nothing", most = 1000 }) {
    this.columns = columns;
    this.most = most; // rows that are drawn
    this.sort = sort;
    this.descending = descending;
    this.empty = empty;
    this.rows = [];
    if (filter) {
      this.filter = el("input", { type: "search", input: () => this.draw() });
      this.count = el("span", { class: "dim", role: "status" });
      parent.append(el("label", { class: "filter" }, `Filter ${label}`, this.filter), " ", this.count);
    }
    this.head = columns.map((column, at) => el("th", { scope: "col", class: column.number ? "number" : null },
      el("button", { type: "button", click: () => this.order(at) }, column.title)));
    this.body = el("tbody");
    const caption = el("caption", { class: "skip" }, label);
    parent.append(el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `${label}, table` },
      el("table", {}, caption, el("thead", {}, el("tr", {}, ...this.head)), this.body)));
  }

  order(at) {
    this.descending = this.sort === at ? !this.descending : Boolean(this.columns[at].number);
    this.sort = at;
    this.draw();
  }

  set(rows) {
    this.rows = rows;
    this.draw();
  }

  draw() {
    this.head.forEach((th, at) => th.setAttribute("aria-sort",
      at !== this.sort ? "none" : this.descending ? "descending" : "ascending"));
    const value = this.columns[this.sort].value;
    const sought = this.filter ? this.filter.value.toLowerCase() : "";
    const shown = this.rows.filter((row) => !sought
      || this.columns.some((column) => String(column.value(row) ?? "").toLowerCase().includes(sought)));
    shown.sort((one, other) => compare(value(one), value(other), this.descending));
    const focused = this.body.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    this.body.replaceChildren(...shown.slice(0, this.most).map((row) => el("tr", {}, ...this.columns.map((column) => {
      const found = column.show ? column.show(row) : format.text(column.value(row));
      return el("td", { class: column.number ? "number" : column.name ? "name" : null }, found);
    }))));
    if (!shown.length) this.body.append(el("tr", {}, el("td", { colspan: this.columns.length, class: "dim" }, this.empty)));
    const cut = shown.length > this.most ? `, the first ${this.most} are shown` : "";
    if (this.count) this.count.textContent = `${shown.length} of ${this.rows.length}${cut}`;
    if (focused) for (const each of this.body.querySelectorAll("[data-key]")) if (each.dataset.key === focused) each.focus();
  }
}

function compare(one, other, descending) {
  const absent = (value) => value === null || value === undefined || value === "";
  if (absent(one) || absent(other)) return absent(one) - absent(other);
  const order = typeof one === "number" && typeof other === "number" ? one - other : String(one).localeCompare(String(other));
  return descending ? -order : order;
}

/** A button in a table that opens more; key keeps the focus when the table is drawn anew. */
export const opener = (text, key, open) => el("button", { type: "button", class: "link", "data-key": key, click: open }, text);

/** A choice that keeps what was chosen while there is such an option. */
export function choice(label, changed) {
  const select = el("select", { change: changed });
  const shown = el("label", { class: "filter" }, label, select);
  return {
    shown, get value() { return select.value; },
    set(options) {
      if (options.join("\n") === [...select.options].map((one) => one.value).join("\n")) return;
      const before = select.value;
      select.replaceChildren(...options.map((name) => el("option", { value: name }, name)));
      if (options.includes(before)) select.value = before;
    },
  };
}

/** A line of values, null where there is a gap. */
export function sparkline(values) {
  const largest = Math.max(...values.filter((value) => value !== null), 0) || 1;
  const step = values.length > 1 ? 94 / (values.length - 1) : 0;
  let path = "", pen = "M";
  values.forEach((value, at) => {
    if (value === null) { pen = "M"; return; }
    path += `${pen}${(1 + at * step).toFixed(1)},${(20 - (value / largest) * 18).toFixed(1)}`;
    pen = "L";
  });
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const line = document.createElementNS("http://www.w3.org/2000/svg", "path");
  svg.setAttribute("viewBox", "0 0 96 22");
  svg.setAttribute("class", "spark");
  svg.setAttribute("aria-hidden", "true");
  line.setAttribute("d", path);
  svg.append(line);
  return svg;
}

const COLOURS = ["#0969da", "#1a7f37", "#bc4c00", "#8250df", "#cf222e", "#0a7ea4", "#9a6700"];
const DARK = ["#58a6ff", "#3fb950", "#f0883e", "#bc8cff", "#ff7b72", "#39c5cf", "#d29922"];
const dark = matchMedia("(prefers-color-scheme: dark)");
const style = (name) => getComputedStyle(root).getPropertyValue(name).trim();

/**
 * A chart of series over time, with a table of the latest values beside it.
 * series: {key, label, band} where band draws the area up to the value; marks are {t} to draw lines at.
 */
export class Chart {
  constructor(parent, { title, unit, series, write = format.number, seconds = 1800, height = 180 }) {
    Object.assign(this, { unit, series, write, seconds, height, marks: [], t: [], values: series.map(() => []) });
    this.box = el("div", { role: "img", "aria-label": `${title} in ${unit}; the table below has the values` });
    this.rows = el("tbody");
    this.table = el("details", { toggle: () => this.drawTable() }, el("summary", {}, `Table: ${title}`),
      el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `${title}, values` },
        el("table", {}, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Time"),
          ...series.map((one) => el("th", { scope: "col", class: "number" }, one.label)))), this.rows)));
    parent.append(el("div", { class: "chart" }, el("h3", {}, `${title} (${unit})`), this.box, this.table));
    new ResizeObserver(() => this.plot && this.plot.setSize({ width: this.width(), height })).observe(this.box);
    dark.addEventListener("change", () => { if (this.plot) { this.plot.destroy(); this.plot = null; this.draw(); } });
  }

  width() { return Math.max(this.box.clientWidth, 200); }

  /** Take all points anew, or those that follow: {t: [...], series: {key: [...]}}. */
  set(points) { this.t = []; this.values = this.series.map(() => []); this.append(points); }

  append(points) {
    this.t.push(...points.t);
    this.series.forEach((one, at) => this.values[at].push(...(points.series[one.key] ?? points.t.map(() => null))));
    const oldest = this.t.length ? this.t[this.t.length - 1] - this.seconds : 0;
    let gone = 0;
    while (gone < this.t.length && this.t[gone] < oldest) gone += 1;
    if (gone) { this.t.splice(0, gone); this.values.forEach((values) => values.splice(0, gone)); }
    this.draw();
  }

  draw() {
    if (!this.plot) this.plot = new uPlot(this.options(), [this.t, ...this.values], this.box);
    else this.plot.setData([this.t, ...this.values]);
    this.drawTable();
  }

  drawTable() {
    if (!this.table.open) return;
    const last = this.t.map((_, at) => at).slice(-60).reverse();
    this.rows.replaceChildren(...last.map((at) => el("tr", {}, el("td", {}, format.time(this.t[at])),
      ...this.values.map((values) => el("td", { class: "number" }, this.write(values[at]))))));
  }

  options() {
    const colours = dark.matches ? DARK : COLOURS;
    const axis = { stroke: style("--text"), grid: { stroke: style("--line"), width: 1 }, ticks: { stroke: style("--line") } };
    return {
      width: this.width(), height: this.height, cursor: { drag: { x: false, y: false } },
      scales: { y: { range: (_, low, high) => [Math.min(low ?? 0, 0), high > 0 ? high * 1.05 : 1] } },
      axes: [axis, { ...axis, size: 60, values: (_, ticks) => ticks.map((tick) => this.write(tick)) }],
      series: [{ label: "Time", value: (_, at) => format.time(at) }, ...this.series.map((one, at) => ({
        label: one.label, stroke: colours[at % colours.length], width: 1.5, spanGaps: false, points: { show: false },
        fill: one.band ? `${colours[at % colours.length]}22` : undefined, dash: one.band ? [4, 3] : undefined,
        value: (_, value) => this.write(value),
      }))],
      hooks: { draw: [(plot) => this.drawMarks(plot)] },
    };
  }

  drawMarks(plot) {
    plot.ctx.save();
    plot.ctx.strokeStyle = style("--dim");
    plot.ctx.setLineDash([2, 3]);
    for (const mark of this.marks) {
      if (!this.t.length || mark.t < this.t[0]) continue;
      const x = plot.valToPos(mark.t, "x", true);
      plot.ctx.beginPath();
      plot.ctx.moveTo(x, plot.bbox.top);
      plot.ctx.lineTo(x, plot.bbox.top + plot.bbox.height);
      plot.ctx.stroke();
    }
    plot.ctx.restore();
  }
}

/** Show what the daemon answers about one thing; draw(content, answer) fills the dialog. */
export async function openDetail(title, kind, name, draw) {
  const dialog = document.getElementById("detail");
  const key = document.activeElement?.dataset.key;
  const content = el("div", {}, "asking");
  dialog.replaceChildren(el("form", { method: "dialog" }, el("button", { class: "plain" }, "Close")),
    el("h2", { id: "detail-title" }, title), content);
  dialog.querySelector("form").addEventListener("submit", (event) => { event.preventDefault(); dialog.close(); });
  // The opener may have been drawn anew meanwhile.
  dialog.addEventListener("close", () => { if (key) document.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus(); }, { once: true });
  dialog.showModal();
  const response = await ask(`page/detail/${kind}?name=${encodeURIComponent(name)}`);
  if (!response.ok) { content.textContent = (await response.text()).slice(0, 500); return; }
  content.replaceChildren();
  draw(content, await response.json());
}

/** Whether this page may switch: it came over the control socket. */
export const switches = root.dataset.switches === "yes";

export async function switchDryRun(plugin, on) {
  const response = await ask(`dry-run/${encodeURIComponent(plugin)}/${on ? "on" : "off"}`, { method: "POST" });
  return response.ok ? "" : (await response.text()).slice(0, 300);
}

// koordletctl's page brings a secret once; it stays in this tab, for when it is loaded again.
const SECRET = "koord page secret";
let token = root.dataset.secret ?? sessionStorage.getItem(SECRET) ?? "";
if (root.dataset.secret) {
  sessionStorage.setItem(SECRET, token);
  delete root.dataset.secret;
  history.replaceState(null, "", location.pathname + location.hash);
}
const ask = (url, more = {}) => fetch(url, {
  cache: "no-store", credentials: "omit", headers: token ? { Authorization: `Bearer ${token}` } : {}, ...more,
});
const pause = (ms) => new Promise((resume) => setTimeout(resume, ms));

/** Ask for a token until one is given; it is kept in this page alone. */
function askForToken(why) {
  return new Promise((resume) => {
    const field = el("input", { type: "password", autocomplete: "off", id: "token" });
    const form = el("form", { submit: (event) => {
      event.preventDefault(); token = field.value.trim(); form.remove(); resume();
    } }, el("h2", {}, "A token is needed"), el("p", {}, why.slice(0, 300)),
      el("label", { class: "filter", for: "token" }, "Bearer token", field), " ",
      el("button", { class: "plain" }, "Show the page"));
    main.prepend(form);
    field.focus();
  });
}

let lost = null;
function connected() { lost = null; connection.className = ""; }
function disconnected(why) {
  lost ??= new Date();
  connection.className = "lost";
  connection.textContent = `disconnected since ${lost.toLocaleTimeString()}: ${why}`;
}

/** Follow the stream for ever; take(line) draws one. */
export async function follow(take) {
  for (let failures = 0; ; failures += 1) {
    try {
      const response = await ask("page/stream");
      if (response.status === 401 || response.status === 403) {
        const why = await response.text();
        if (switches) throw new Error(why.slice(0, 300)); // koordletctl gives no other secret
        disconnected("no access");
        await askForToken(why);
        continue;
      }
      if (!response.ok) throw new Error((await response.text()).slice(0, 300));
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) throw new Error("the daemon has closed the stream");
        const lines = (rest + value).split("\n");
        rest = lines.pop();
        for (const line of lines) {
          const answer = JSON.parse(line);
          connected();
          failures = 0;
          const began = performance.now();
          take(answer);
          frames.push(performance.now() - began);
          if (frames.length > 600) frames.shift();
          connection.textContent = answer.problem ? String(answer.problem) : `data of ${format.time(answer.now)}`;
        }
      }
    } catch (error) {
      disconnected(error.message);
    }
    await pause(Math.min(1000 * 2 ** failures, 15000));
  }
}

/** Milliseconds that the latest lines took to draw. */
export const frames = [];
window.koordFrames = frames;
