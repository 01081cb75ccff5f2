// The scheduler's page: throughput, the queue, the latest decisions, a pod's scores, a node's parts.

import { healthSection } from "./health.js";
import { Chart, DataTable, el, facts, format, openDetail, opener, section } from "./page.js";

const milliseconds = (value) => format.number(value * 1000, 1);

/** What /explain says about a pod: where it would go, by which scores, and why not elsewhere. */
function drawExplained(content, found) {
  content.append(facts([
    ["is on", found.boundTo], ["in the queue", found.queue], ["attempts", found.attempts || ""],
    ["rejected by", found.rejectedBy.join(", ")], ["kept by", found.gatedBy], ["scheduler", found.schedulerName],
  ]));
  const decision = found.decision;
  if (!decision) {
    content.append(el("p", {}, `No profile here has this schedulerName; here are: ${found.schedulers.join(", ")}.`));
    return;
  }
  content.append(el("h3", {}, decision.node ? `Now it would go to ${decision.node}` : "Now there is no node for it"), facts([
    ["feasible", `${decision.feasible} of ${decision.nodes} nodes`], ["equally good", decision.equallyGood || ""], ["why", decision.message],
    ["would preempt", decision.preemption ? `${decision.preemption.victims.join(", ") || "nothing"} on ${decision.preemption.node}` : ""],
    ...decision.advice.map((text) => ["would help", text]),
    ...decision.blockers.map((one) => [`${one.plugin} excludes`, `${one.nodes} nodes, ${one.alone} of them alone`]),
  ]));
  const plugins = Object.keys(decision.scores[0]?.plugins ?? {});
  new DataTable(content, {
    label: "best nodes", sort: 1, descending: true, empty: "no node is feasible",
    columns: [
      { title: "Node", name: true, value: (row) => row.node }, { title: "Total", number: true, value: (row) => row.total },
      ...plugins.map((name) => ({ title: name, number: true, value: (row) => row.plugins[name] })),
    ],
  }).set(decision.scores);
  new DataTable(content, {
    label: "excluded nodes", empty: "no node is excluded",
    columns: [
      { title: "Excluded node", name: true, value: (row) => row.node }, { title: "By", value: (row) => row.plugin },
      { title: "Why", name: true, value: (row) => row.reason },
    ],
  }).set(decision.excluded);
}

/** Parts inside of their places: [name, places inside, parts] as nested lists. */
function nested(parts, pods) {
  const top = { places: new Map(), parts: [] };
  for (const part of parts) {
    let at = top;
    for (const place of part.place) {
      if (!at.places.has(place)) at.places.set(place, { places: new Map(), parts: [] });
      at = at.places.get(place);
    }
    at.parts.push(part);
  }
  return drawPlace(top, pods);
}

function drawPlace({ places, parts }, pods) {
  return el("ul", { class: "parts" }, ...parts.map((part) => {
    const who = part.pods.map((at) => pods[at]).join(", ");
    const says = [who, part.used > 0 && part.used < 1 ? format.percent(part.used) : "", part.note].filter(Boolean).join("; ");
    const state = part.used >= 1 ? "full" : part.used > 0 || who ? "shared" : part.note ? "out" : "free";
    return el("li", { class: `part ${state}`, title: `${part.name}: ${says || "free"}` }, part.name);
  }), ...[...places].map(([name, inside]) => el("li", { class: "place" }, el("span", {}, name), drawPlace(inside, pods))));
}

/** The CPUs and devices of a node, and which pods have them. */
function drawNode(content, found) {
  const plugins = Object.entries(found.plugins);
  if (!plugins.length) { content.append(el("p", {}, "No plugin here gives pods parts of this node, or none are known.")); return; }
  content.append(el("p", { class: "legend" }, ...[["free", "free"], ["shared", "in part"], ["full", "a pod has it"], ["out", "not given"]]
    .flatMap(([state, text]) => [el("span", { class: `part ${state}` }, text), " "])));
  for (const [name, parts] of plugins) content.append(el("h3", {}, name), nested(parts, found.pods));
  const rows = found.pods.map((name, at) => ({ pod: name, has: plugins.flatMap(([, parts]) => parts.filter((part) => part.pods.includes(at))
    .map((part) => part.name + (part.used < 1 ? ` (in part)` : ""))).join(", ") }));
  new DataTable(content, { label: "pods with parts of the node", empty: "no pod has any", filter: true,
    columns: [{ title: "Pod", name: true, value: (row) => row.pod }, { title: "Has", name: true, value: (row) => row.has }] }).set(rows);
}

const openNode = (name) => openDetail(name, "node", name, drawNode);

const openPod = (name) => openDetail(name, "pod", name, drawExplained);
const pod = (kind) => ({ title: "Pod", name: true, value: (row) => row.pod,
  show: (row) => opener(row.pod, `${kind} ${row.uid ?? row.t} ${row.pod}`, () => openPod(row.pod)) });

/** A field for the name of any pod or node. */
function asking(parent, id, title, placeholder, button, open) {
  const field = el("input", { type: "search", id, placeholder });
  parent.append(el("form", { submit: (event) => { event.preventDefault(); if (field.value.trim()) open(field.value.trim()); } },
    el("label", { class: "filter", for: id }, title, field), " ", el("button", { class: "plain" }, button)));
}

/** Build the page; returns what draws a line of the stream. */
export function start() {
  const state = section("state", "State");
  const throughput = section("throughput", "Since this page is open");
  const chart = new Chart(throughput, { title: "Pods", unit: "pods per second", seconds: 1800,
    series: [{ key: "bound", label: "bound" }, { key: "failed", label: "attempts that failed" }] });
  const waiting = new Chart(throughput, { title: "Waiting", unit: "pods", seconds: 1800, write: (value) => format.number(value, 0),
    series: [{ key: "active", label: "active" }, { key: "backoff", label: "in backoff" }, { key: "unschedulable", label: "unschedulable" }, { key: "gated", label: "gated" }] });
  const queueBody = section("queue", "Queue");
  asking(queueBody, "asked", "Explain the pod", "namespace/name", "Explain", openPod);
  const queueNote = el("p", {}, "not known yet");
  queueBody.append(queueNote);
  const queue = new DataTable(queueBody, {
    label: "pods that wait", filter: true, sort: 2, empty: "no pod waits",
    columns: [
      pod("waits"), { title: "Place", value: (row) => row.place },
      { title: "Since", value: (row) => row.since, show: (row) => format.time(row.since) },
      { title: "Attempts", number: true, value: (row) => row.attempts }, { title: "Why", name: true, value: (row) => row.why },
    ],
  });
  const decisions = section("decisions", "Latest decisions");
  asking(decisions, "asked-node", "CPUs and devices of the node", "name", "Show", openNode);
  const recent = new DataTable(decisions, {
    label: "decisions", filter: true, descending: true, empty: "no attempt has ended here",
    columns: [
      { title: "Time", value: (row) => row.t, show: (row) => format.time(row.t) }, pod("decided"),
      { title: "Node", name: true, value: (row) => row.node, 
        show: (row) => (row.node ? opener(row.node, `node ${row.t} ${row.pod}`, () => openNode(row.node)) : el("span", { class: "warn" }, "none")) },
      { title: "Attempt, ms", number: true, value: (row) => row.seconds, show: (row) => milliseconds(row.seconds) },
      { title: "Attempts", number: true, value: (row) => row.attempts }, { title: "Why", name: true, value: (row) => row.message },
    ],
  });
  const health = healthSection();
  let last = null, counts = null;

  return ({ now, sections }) => {
    if (sections.state) {
      const { leads, serves, profiles } = sections.state;
      const words = serves ? "Answers a kube-scheduler, as its extender, and schedules nothing itself."
        : leads ? "Leads, and schedules." : "Stands by: another replica leads; the queue here is kept ready.";
      state.replaceChildren(el("p", { role: "status" }, el("strong", { class: leads && !serves ? "good" : "dim" }, words)),
        facts([["profiles", profiles.join(", ") || (serves ? "" : "the plugins are still being made")]]));
    }
    counts = sections.counts ?? counts;
    if (counts) {
      const waits = counts.active + counts.backoff + counts.unschedulable + counts.gated;
      if (sections.counts) {
        queueNote.textContent = `${waits} pods wait: ${counts.active} active, ${counts.backoff} in backoff, ${counts.unschedulable} unschedulable, `
          + `${counts.gated} gated. ${counts.in_flight} are being tried, ${counts.bindings} are being bound. ${counts.pods} pods on or for ${counts.nodes} nodes are known.`;
      }
      if (last && now > last.now) {
        const rate = (key) => Math.max(0, counts[key] - last.counts[key]) / (now - last.now);
        chart.append({ t: [now], series: { bound: [rate("bound")], failed: [rate("failed")] } });
      }
      waiting.append({ t: [now], series: Object.fromEntries(["active", "backoff", "unschedulable", "gated"].map((key) => [key, [counts[key]]])) });
      last = { now, counts };
    }
    if (sections.queue) queue.set(sections.queue);
    if (sections.recent) recent.set(sections.recent);
    if (sections.health) health(sections.health);
  };
}
