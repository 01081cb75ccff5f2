// The scheduler's page: throughput, the queue, the latest decisions, and the scores of a pod.

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

const openPod = (name) => openDetail(name, "pod", name, drawExplained);
const pod = (kind) => ({ title: "Pod", name: true, value: (row) => row.pod,
  show: (row) => opener(row.pod, `${kind} ${row.uid ?? row.t} ${row.pod}`, () => openPod(row.pod)) });

/** A field for the name of any pod. */
function asking(parent) {
  const field = el("input", { type: "search", id: "asked", placeholder: "namespace/name" });
  parent.append(el("form", { submit: (event) => { event.preventDefault(); if (field.value.trim()) openPod(field.value.trim()); } },
    el("label", { class: "filter", for: "asked" }, "Explain the pod", field), " ", el("button", { class: "plain" }, "Explain")));
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
  asking(queueBody);
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
  const recent = new DataTable(section("decisions", "Latest decisions"), {
    label: "decisions", filter: true, descending: true, empty: "no attempt has ended here",
    columns: [
      { title: "Time", value: (row) => row.t, show: (row) => format.time(row.t) }, pod("decided"),
      { title: "Node", name: true, value: (row) => row.node, show: (row) => row.node || el("span", { class: "warn" }, "none") },
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
