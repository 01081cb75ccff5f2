// The agent's page: charts, pods, plugins, what is in force and why, the NodeSLO, the audit log.

import { healthSection } from "./health.js";
import {
  Chart, DataTable, el, facts, format, openDetail, opener, section, sparkline, switchDryRun, switches,
} from "./page.js";

const LABELS = {
  node: "node", system: "system", guaranteed: "guaranteed", burstable: "burstable",
  besteffort: "best effort", besteffort_limit: "limit of best effort", with_page_cache: "with page cache",
  cpu: "cpu", memory: "memory", io: "io", receive: "in", transmit: "out", usage: "usage", throttled: "throttled",
};
const WRITE = { bytes: format.bytes, "bytes per second": format.rate, ratio: format.percent };
const TITLES = { cpu: "CPU", memory: "Memory", pressure: "Pressure, 10 s", network: "Network", throttled: "Throttled periods" };

const chart = (parent, name, { unit, lines }, seconds, height) => new Chart(parent, {
  title: TITLES[name] ?? name, unit, write: WRITE[unit] ?? format.number, seconds, height,
  series: lines.map((key) => ({ key, label: LABELS[key] ?? key, band: key === "besteffort_limit" })),
});

const inputs = (mapping) => Object.entries(mapping ?? {}).map(([name, value]) => `${name}=${value}`).join(", ");

/** What explain says about one pod or cgroup. */
function drawExplained(content, found) {
  for (const value of found.values) {
    content.append(el("h3", {}, `${value.resource} of ${value.pod || value.target}`), facts([
      ["now", `${value.value} ${value.unit}`], ["wanted", value.wanted], ["before", value.original],
      ["state", `${value.state} since ${value.since}`], ["message", value.message],
      ...value.claims.flatMap((claim) => [[claim.plugin, claim.reason], ["", inputs(claim.inputs)]]),
    ]));
  }
  for (const one of found.decisions) {
    content.append(el("h3", {}, `${one.pod || "no pod"} ${one.outcome} ${one.last}`), facts([
      ["by", `${one.plugin}, feature ${one.feature}`], ["because", one.reason], ["numbers", inputs(one.inputs)],
      ["answer", one.message], ["times", one.times],
    ]));
  }
  if (!found.values.length && !found.decisions.length) content.append(el("p", { class: "dim" }, "nothing is in force for it, and nothing was decided about it"));
}

function openPod(uid, name) {
  openDetail(name, "pod", uid, (content, found) => {
    const grid = el("div", { class: "charts" });
    content.append(grid, el("h3", {}, "In force, and why"));
    for (const [each, lines] of Object.entries(found.lines)) chart(grid, each, lines, 300, 140).set(found.charts[each]);
    drawExplained(content, found.explain);
  });
}

const openMark = (mark) => openDetail(`${mark.plugins.join(", ")}: ${mark.resource}`, "explain", mark.place, (content, found) => {
  content.append(facts([
    ["at", format.time(mark.t)], ["what", `${mark.what}${mark.times > 1 ? `, ${mark.times} values` : ""}`],
    ["of", mark.pod || mark.target], ["from", mark.old], ["to", mark.new], ["in", mark.unit],
    ["rule", mark.reason], ["numbers", inputs(mark.inputs)],
  ]), el("h3", {}, "Now"));
  drawExplained(content, found);
});

function podTable(parent) {
  const lines = new Map();
  const number = (title, key, show) => ({ title, number: true, value: (row) => row[key], show: (row) => show(row[key]) });
  const table = new DataTable(parent, {
    label: "pods", filter: true, sort: 2, descending: true, empty: "no pods",
    columns: [
      { title: "Pod", name: true, value: (row) => row.name, show: (row) => opener(row.name, row.uid, () => openPod(row.uid, row.name)) },
      { title: "QoS", value: (row) => row.qos },
      number("CPU, cores", "cpu_cores", format.number),
      { title: "Last minute", value: (row) => row.cpu_cores, show: (row) => sparkline(lines.get(row.uid) ?? []) },
      number("Limit", "cpu_limit_cores", format.number),
      number("Memory", "memory_bytes", format.bytes),
      number("Throttled", "throttled_ratio", format.percent),
      number("CPU waits, %", "cpu_pressure", (value) => format.number(value, 1)),
      number("Memory waits, %", "memory_pressure", (value) => format.number(value, 1)),
      number("I/O waits, %", "io_pressure", (value) => format.number(value, 1)),
      number("In, B/s", "receive_bytes_per_second", format.rate),
      number("Out, B/s", "transmit_bytes_per_second", format.rate),
    ],
  });
  return { table, lines };
}

function pluginTable(parent) {
  const problem = el("p", { role: "alert", class: "bad" });
  const state = { dryRun: {} };
  const table = new DataTable(parent, {
    label: "plugins", empty: "no plugins",
    columns: [
      { title: "Plugin", name: true, value: (row) => row.name },
      { title: "State", value: (row) => row.state },
      { title: "Dry-run", value: (row) => (isDry(row.name) ? "on" : "off"), show: (row) => dryRunCell(row.name) },
      { title: "Rounds", number: true, value: (row) => row.rounds?.ok },
      { title: "Errors", number: true, value: (row) => row.errors },
      { title: "CPU, s", number: true, value: (row) => row.cpu_seconds, show: (row) => format.number(row.cpu_seconds) },
      { title: "Longest step, ms", number: true, value: (row) => row.longest_step_ms, show: (row) => format.number(row.longest_step_ms, 1) },
      { title: "Reason", name: true, value: (row) => row.reason },
    ],
  });
  parent.append(problem);
  const rows = () => state.dryRun.plugins ?? [];
  const isDry = (name) => Boolean(rows().find((one) => one.name === name)?.dryRun);
  const dryRunCell = (name) => {
    const text = isDry(name) ? "on" : "off";
    if (!switches || !rows().some((one) => one.name === name)) return text;
    return el("button", {
      type: "button", class: "plain", "data-key": `dry-run ${name}`, "aria-pressed": String(isDry(name)),
      click: async () => { problem.textContent = await switchDryRun(name, !isDry(name)); },
    }, text);
  };
  return (plugins, dryRun) => {
    if (dryRun) state.dryRun = dryRun;
    table.set(plugins);
  };
}

/** Build the page; returns what draws a line of the stream. */
export function start() {
  const health = healthSection();
  const grid = el("div", { class: "charts" });
  section("node", "Node").append(grid);
  const charts = {};
  const pods = podTable(section("pods", "Pods"));
  const actions = new DataTable(section("actions", "What plugins changed"), {
    label: "changes", filter: true, descending: true, empty: "nothing was changed in the last half hour",
    columns: [
      { title: "Time", value: (row) => row.t, show: (row) => format.time(row.t) },
      { title: "Plugin", value: (row) => row.plugins.join(", ") },
      { title: "Value", name: true, value: (row) => `${row.resource} of ${row.pod || row.target}`,
        show: (row) => opener(`${row.resource} of ${row.pod || row.target}`, `mark ${row.number}`, () => openMark(row)) },
      { title: "Change", name: true, value: (row) => `${row.old} → ${row.new}` },
      { title: "Why", name: true, value: (row) => row.reason },
    ],
  });
  const decided = new DataTable(section("decisions", "Decisions about pods"), {
    label: "decisions", filter: true, descending: true, empty: "nothing was decided yet",
    columns: [
      { title: "Last", value: (row) => row.last }, { title: "Times", number: true, value: (row) => row.times },
      { title: "Plugin", value: (row) => row.plugin }, { title: "Pod", name: true, value: (row) => row.pod },
      { title: "Outcome", value: (row) => row.outcome }, { title: "Why", name: true, value: (row) => row.reason },
    ],
  });
  const plugins = pluginTable(section("plugins", "Plugins"));
  const sloBody = section("nodeslo", "NodeSLO in force");
  const sloNote = el("p", {}, "not known yet");
  sloBody.append(sloNote);
  const slo = new DataTable(sloBody, {
    label: "settings", filter: true, empty: "no values",
    columns: [
      { title: "Setting", name: true, value: (row) => row.path }, { title: "Value", value: (row) => row.value },
      { title: "Origin", value: (row) => row.origin },
    ],
  });
  section("audit", "Audit log").append(el("button", {
    type: "button", class: "plain",
    click: () => openDetail("Audit log", "audit", "", (content, found) => {
      if (!found.enabled) content.append(el("p", {}, "It is off: the gate AuditEvents has events recorded."));
      if (found.problem) content.append(el("p", { class: "bad" }, found.problem));
      const table = new DataTable(content, {
        label: "events", filter: true, descending: true,
        columns: [{ title: "Time", value: (row) => row.time ?? row.generateTimestamp }, { title: "Event", name: true, value: (row) => JSON.stringify(row) }],
      });
      table.set(found.events);
    }),
  }, "Show the latest events"));
  const marks = new Map();
  let known = {};

  return ({ sections, whole }) => {
    known = whole ? { ...sections } : { ...known, ...sections };
    if (sections.health) health(sections.health);
    if (sections.lines) for (const [name, lines] of Object.entries(sections.lines)) charts[name] ??= chart(grid, name, lines, 1800, 190);
    if (whole) marks.clear();
    for (const mark of sections.marks ?? []) marks.set(mark.number, mark);
    const oldest = Date.now() / 1000 - 1800;
    for (const [number, mark] of marks) if (mark.t < oldest) marks.delete(number);
    for (const [name, points] of Object.entries(sections.charts ?? {})) {
      charts[name].marks = [...marks.values()];
      if (whole) charts[name].set(points);
      else charts[name].append(points);
    }
    if (sections.marks) actions.set([...marks.values()]);
    if (sections.sparklines) for (const [uid, values] of Object.entries(sections.sparklines)) pods.lines.set(uid, values);
    if (sections.pods || sections.sparklines) pods.table.set(known.pods ?? []);
    if (sections.decisions) decided.set(sections.decisions);
    if (sections.plugins || sections.dryRun) plugins(known.plugins ?? [], sections.dryRun);
    if (sections.nodeslo) {
      sloNote.replaceChildren(sections.nodeslo.known ? sections.nodeslo.problems.join("; ") : "There is no NodeSLO; plugins wait for one.");
      slo.set(sections.nodeslo.values);
    }
  };
}
