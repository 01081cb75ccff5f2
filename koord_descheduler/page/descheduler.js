// The descheduler's page: nodes against thresholds, what moves and why, the ledger of evictions.

import { healthSection } from "./health.js";
import { HeatMap } from "./heatmap.js";
import { choice, DataTable, el, facts, format, openDetail, opener, section } from "./page.js";

const counts = (mapping) => Object.entries(mapping).map(([name, count]) => `${count} ${name}`).join(", ") || "none";
const limit = (value) => value ?? "any number";
const usage = (value) => (value ? `${format.number(value.cores)} cores, ${format.bytes(value.bytes)}` : "–");
const moment = (seconds) => new Date(seconds * 1000).toLocaleString();

/** What /explain says: each cycle with its decisions. */
function drawExplained(content, found) {
  const told = found.cycles.filter((cycle) => cycle.nodes.length || cycle.pods.length);
  for (const cycle of told) {
    content.append(el("h3", {}, `Cycle of ${cycle.began}`), facts([
      ...cycle.nodes.flatMap((one) => [
        [`${one.node}: ${one.verdict}`, one.reason], ["by", `${one.profile}/${one.plugin}`], ["hint", one.hint],
      ]),
      ...cycle.pods.flatMap((one) => [
        [`${one.pod}: ${one.action}`, one.reason], ["by", `${one.profile}/${one.plugin}`], ["could go to", one.candidates.slice(0, 10).join(", ")],
      ]),
    ]));
    if (cycle.leftOut) content.append(el("p", { class: "dim" }, `${cycle.leftOut} more decisions are left out`));
  }
  if (!told.length) content.append(el("p", { class: "dim" }, "the last cycles decided nothing about it"));
}

const openNode = (name) => openDetail(name, "node", name, drawExplained);
const openPod = (name) => openDetail(name, "pod", name, drawExplained);

function nodeSection(body) {
  let maps = [], shown = null;
  const note = el("p", {}, "not known yet");
  const plugin = choice("Judged by ", () => draw()), resource = choice("Resource ", () => draw());
  body.append(note, el("p", {}, plugin.shown, " ", resource.shown));
  const map = new HeatMap(body, { open: (at) => openNode(shown.nodes[at]), say: (at) => words(at) });
  body.append(el("p", { class: "dim" }, "From blue, nothing in use, to green at the low threshold and red at the high one. A dot: above it. A stroke: no usable NodeMetric."));
  const percent = (key) => ({ title: `${key}, %`, number: true, value: (row) => row[key], show: (row) => format.number(row[key], 1) });
  const table = new DataTable(body, {
    label: "nodes", filter: true, sort: 2, descending: true, most: 200, empty: "no nodes were judged",
    columns: [
      { title: "Node", name: true, value: (row) => row.node, show: (row) => opener(row.node, `node ${row.node}`, () => openNode(row.node)) },
      { title: "Verdict", value: (row) => row.verdict }, percent("usage"), percent("low"), percent("high"),
    ],
  });
  const words = (at) => `${shown.nodes[at]}: ${shown.verdicts[at]}, ${format.number(cell(at).usage, 1)} %`;
  const cell = (at) => {
    const columns = shown.resources[resource.value];
    return columns ? { usage: columns.usage[at], low: columns.low[at], high: columns.high[at] } : { usage: null, low: null, high: null };
  };
  function draw() {
    plugin.set(maps.map((one) => one.plugin));
    shown = maps.find((one) => one.plugin === plugin.value) ?? { nodes: [], verdicts: [], resources: {}, left_out: 0 };
    resource.set(Object.keys(shown.resources));
    const cells = shown.nodes.map((_, at) => cell(at)), tally = {};
    for (const verdict of shown.verdicts) tally[verdict] = (tally[verdict] ?? 0) + 1;
    note.textContent = shown.nodes.length ? `${shown.nodes.length} nodes, as they were judged at ${moment(shown.t)}: ${counts(tally)}${shown.left_out ? `; ${shown.left_out} more are left out` : ""}`
      : "No plugin has judged nodes in the last cycles.";
    map.set(cells, `Map of nodes by ${resource.value || "use"}: ${note.textContent}; the table below has the values`);
    table.set(shown.nodes.map((node, at) => ({ node, verdict: shown.verdicts[at], ...cells[at] })));
  }
  return (found) => { maps = found; draw(); };
}

/** Build the page; returns what draws a line of the stream. */
export function start() {
  const state = section("state", "State");
  const nodes = nodeSection(section("nodes", "Nodes"));
  const moves = new DataTable(section("moves", "What the last cycles chose"), {
    label: "pods", filter: true, descending: true, empty: "no pod was chosen in the last cycles",
    columns: [
      { title: "Cycle", value: (row) => row.t, show: (row) => format.time(row.t) },
      { title: "Pod", name: true, value: (row) => row.pod, show: (row) => opener(row.pod, `pod ${row.t} ${row.pod}`, () => openPod(row.pod)) },
      { title: "On", name: true, value: (row) => row.node }, { title: "Outcome", value: (row) => row.action },
      { title: "Could go to", name: true, value: (row) => row.to.join(", ") }, { title: "By", value: (row) => row.plugin },
      { title: "Why", name: true, value: (row) => row.reason },
    ],
  });
  const cycles = new DataTable(section("cycles", "Last cycles"), {
    label: "cycles", descending: true, empty: "no cycle has begun here",
    columns: [
      { title: "Began", value: (row) => row.t, show: (row) => format.time(row.t) },
      { title: "Nodes", value: (row) => counts(row.nodes) }, { title: "Pods", value: (row) => counts(row.pods) },
      { title: "Not shown above", number: true, value: (row) => row.left_out },
    ],
  });
  const ledgerBody = section("ledger", "Ledger of evictions");
  const ledgerNote = el("p", {}, "not known yet");
  ledgerBody.append(ledgerNote);
  const entries = new DataTable(ledgerBody, {
    label: "evictions", filter: true, descending: true, empty: "nothing was evicted",
    columns: [
      { title: "Time", value: (row) => row.t, show: (row) => moment(row.t) },
      { title: "Pod", name: true, value: (row) => row.pod, show: (row) => opener(row.pod, `entry ${row.uid}`, () => openPod(row.pod)) },
      { title: "From", name: true, value: (row) => row.node }, { title: "Outcome", value: (row) => row.outcome },
      { title: "Predicted relief", value: (row) => row.predicted?.cores, show: (row) => usage(row.predicted) },
      { title: "Measured", value: (row) => row.measured?.cores, show: (row) => usage(row.measured) },
      { title: "Of", name: true, value: (row) => row.workload }, { title: "Why", name: true, value: (row) => row.reason },
    ],
  });
  const pauses = new DataTable(ledgerBody, {
    label: "workloads left alone", empty: "no workload is left alone",
    columns: [
      { title: "Workload", name: true, value: (row) => row.workload }, { title: "Failures", number: true, value: (row) => row.strikes },
      { title: "Left alone until", value: (row) => row.until, show: (row) => moment(row.until) },
    ],
  });
  const health = healthSection();

  return ({ sections }) => {
    if (sections.state) {
      const { leads, dry_run: dry, interval, limits, profiles } = sections.state;
      state.replaceChildren(el("p", { role: "status" }, leads
        ? el("strong", { class: dry ? "warn" : "good" }, dry ? "Leads, in dry-run: it evicts nothing." : "Leads, and evicts.")
        : el("strong", { class: "dim" }, "Stands by: another replica leads, and its page has the cycles.")),
      facts([
        ["cycle every", interval ? `${interval} s` : "one cycle"],
        ["evictions a cycle", `${limit(limits.total)}; on a node ${limit(limits.per_node)}; in a namespace ${limit(limits.per_namespace)}`],
        ...Object.entries(profiles).map(([name, plugins]) => [`profile ${name}`, plugins.join(", ")]),
      ]));
    }
    if (sections.maps) nodes(sections.maps);
    if (sections.moves) moves.set(sections.moves);
    if (sections.cycles) cycles.set(sections.cycles);
    if (sections.ledger) {
      ledgerNote.textContent = `${sections.ledger.count} evictions are kept, the newest ${sections.ledger.entries.length} are shown.`;
      entries.set(sections.ledger.entries);
      pauses.set(sections.ledger.pauses);
    }
    if (sections.health) health(sections.health);
  };
}
