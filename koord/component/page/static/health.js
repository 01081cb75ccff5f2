// The section of each page with the health of its daemon.

import { DataTable, el, format, section } from "./page.js";

const CLASSES = { ok: "good", degraded: "warn", unhealthy: "bad" };

const ORDER = ["ok", "degraded", "unhealthy"];
const COLUMNS = [
  { title: "Part", value: (row) => row.name, name: true },
  { title: "Status", value: (row) => ORDER.indexOf(row.status), show: (row) => el("span", { class: CLASSES[row.status] }, row.status) },
  { title: "Reason", value: (row) => row.reason, name: true },
];

/** The section of health; returns what takes {status, parts: [{name, status, reason}]}. */
export function healthSection() {
  const body = section("health", "Health");
  const whole = el("p", { role: "status" }, "not known yet");
  const troubled = el("div", { hidden: true });
  const count = el("summary", {}, "All parts");
  const all = el("details", {}, count);
  body.append(whole, troubled, all);
  const worse = new DataTable(troubled, { label: "parts that are not ok", columns: COLUMNS, sort: 1, descending: true });
  const table = new DataTable(all, { label: "all parts", columns: COLUMNS, sort: 1, descending: true, empty: "no parts" });
  return ({ status, parts }) => {
    const bad = parts.filter((part) => part.status !== "ok");
    whole.replaceChildren("This daemon is ", el("strong", { class: CLASSES[status] }, format.text(status)));
    troubled.hidden = !bad.length;
    worse.set(bad);
    count.textContent = `All ${parts.length} parts`;
    table.set(parts);
  };
}
