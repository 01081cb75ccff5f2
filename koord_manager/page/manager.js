// The manager's page: what each node offers to batch and mid pods, what they hold of it, and why.

import { healthSection } from "./health.js";
import { HeatMap } from "./heatmap.js";
import { choice, DataTable, el, facts, format, openDetail, opener, section } from "./page.js";

const FULL = 80, SHORT = 100; // percent of what is offered: green, and red
const isCpu = (name) => name.endsWith("cpu");
const amount = (name, value) => (typeof value !== "number" ? format.text(value)
  : isCpu(name) ? `${format.number(value / 1000)} cores` : name.endsWith("memory") ? format.bytes(value) : String(value));
const share = (offered, held) => (offered > 0 ? (100 * held) / offered : held > 0 ? Infinity : null);

/** What /explain says: each resource with the lines that lead to it. */
function drawExplained(content, found) {
  content.append(facts([
    ["colocation", found.enabled ? "enabled" : "not enabled"], ["report", found.report.stale || format.text(found.report.time && new Date(found.report.time * 1000).toLocaleString())],
    ["doubtful", found.report.doubts.join("; ")], ["problems", found.problems.join("; ")],
  ]));
  for (const [name, one] of Object.entries(found.resources)) {
    content.append(el("h3", {}, name), facts([
      ["offered", one.offered ?? "none"], ["on the node", one.onNode ?? "none"], ["by", one.plugin],
      ...one.terms.map((term) => [term.name, amount(name, term.amount)]),
      ["third parties", one.thirdParties ? amount(name, one.thirdParties) : ""], ["why", one.reason],
      ["held", one.held ? `${amount(name, one.held.amount)} by ${one.held.pods.slice(0, 10).join(", ")}` : ""],
    ]));
  }
}

const openNode = (name) => openDetail(name, "node", name, drawExplained);

function nodeSection(body) {
  let shown = { nodes: [], states: [], resources: {}, left_out: 0 };
  const note = el("p", {}, "not known yet");
  const resource = choice("Resource ", () => draw());
  body.append(note, el("p", {}, resource.shown));
  const map = new HeatMap(body, { open: (at) => openNode(shown.nodes[at]), say: (at) => words(at) });
  body.append(el("p", { class: "dim" }, `From blue, nothing held, to green at ${FULL} % of what is offered and red at all of it. A dot: pods hold more than that. A stroke: nothing is offered.`));
  const table = new DataTable(body, {
    label: "nodes", filter: true, most: 200, empty: "no node is known",
    columns: [
      { title: "Node", name: true, value: (row) => row.node, show: (row) => opener(row.node, `node ${row.node}`, () => openNode(row.node)) },
      { title: "State", value: (row) => row.state },
      { title: "Offered", number: true, value: (row) => row.offered, show: (row) => amount(resource.value, row.offered) },
      { title: "Held", number: true, value: (row) => row.held, show: (row) => amount(resource.value, row.held) },
      { title: "Held, %", number: true, value: (row) => row.share, show: (row) => (row.share === Infinity ? "more than all" : format.number(row.share, 1)) },
    ],
  });
  const row = (at) => {
    const columns = shown.resources[resource.value];
    const offered = columns?.offered[at] ?? null, held = columns?.held[at] ?? null;
    return { node: shown.nodes[at], state: shown.states[at].join(", "), offered, held, share: columns ? share(offered, held) : null };
  };
  const words = (at) => { const one = row(at); return `${one.node}: ${amount(resource.value, one.held)} held of ${amount(resource.value, one.offered)}`; };
  function draw() {
    resource.set(Object.keys(shown.resources));
    const rows = shown.nodes.map((_, at) => row(at)), sum = (key) => rows.reduce((total, one) => total + (one[key] ?? 0), 0);
    const left = shown.left_out ? `; ${shown.left_out} more are left out` : "";
    note.textContent = resource.value ? `${rows.length} nodes offer ${amount(resource.value, sum("offered"))} of ${resource.value}, of which pods hold ${amount(resource.value, sum("held"))}${left}`
      : `${rows.length} nodes, which offer nothing${left}`;
    map.set(rows.map((one) => ({ usage: one.share === Infinity ? SHORT + 1 : one.share, low: FULL, high: SHORT })),
      `Map of nodes by what is held of ${resource.value || "what they offer"}: ${note.textContent}; the table below has the values`);
    table.set(rows);
  }
  return (found) => { shown = found; draw(); };
}

/** Build the page; returns what draws a line of the stream. */
export function start() {
  const state = section("state", "State");
  const nodes = nodeSection(section("nodes", "Nodes"));
  const health = healthSection();

  return ({ sections }) => {
    if (sections.state) {
      const { leads, dry_run: dry, max_decrease_percent: decrease, plugins, webhook, counts } = sections.state;
      state.replaceChildren(el("p", { role: "status" }, leads
        ? el("strong", { class: dry ? "warn" : "good" }, dry ? "Leads, in dry-run: it writes nothing." : "Leads, and writes.")
        : el("strong", { class: "dim" }, "Stands by: another replica leads, and its page has the states of nodes.")),
      facts([
        ["nodes", Object.entries(counts).map(([name, count]) => `${count} ${name}`).join(", ") || "none with colocation"],
        ["largest decrease by one report", `${decrease} %`],
        ["pods are mutated by", webhook ? "the webhook" : "policies of the API server"],
        ["plugins", plugins.join(", ")],
      ]));
    }
    if (sections.map) nodes(sections.map);
    if (sections.health) health(sections.health);
  };
}
