"use strict";
const PERIOD = 2000, ROWS = 12;
// The token lives as long as the tab does.
const TOKEN = "kvgate-token";

// call asks the JSON API of this node. Reads are stale: a page must not put load on the leader.
async function call(method, body) {
  const headers = { "Content-Type": "application/json" };
  const token = sessionStorage.getItem(TOKEN);
  if (token) headers.Authorization = "Bearer " + token;
  const answer = await fetch("/kvgate.v1." + method, {
    method: "POST",
    headers,
    body: JSON.stringify(body),
    signal: AbortSignal.timeout(5000),
  });
  const data = await answer.json();
  if (!answer.ok) {
    const problem = new Error(data.message || answer.statusText);
    problem.wantsToken = answer.status === 401 || answer.status === 403;
    throw problem;
  }
  return data;
}

// el makes an element. Text goes in as text only: ids come from callers.
function el(tag, props, ...children) {
  const node = document.createElement(tag);
  Object.assign(node, props);
  node.append(...children.filter((c) => c !== null));
  return node;
}

const number = (x) => Number(x || 0).toLocaleString("en");
const percent = (x) => (100 * Number(x || 0)).toFixed(0) + "%";

function period(text) {
  const s = parseFloat(text || "0");
  if (s < 60) return s.toFixed(1) + " s";
  if (s < 3600) return Math.floor(s / 60) + " m " + Math.floor(s % 60) + " s";
  return Math.floor(s / 3600) + " h " + Math.floor((s % 3600) / 60) + " m";
}

const word = (name, prefix) => (name || "").replace(prefix, "").toLowerCase().replaceAll("_", " ");

function meter(label, share, text, hot) {
  const width = Math.min(100, Math.max(0, 100 * share));
  const fill = el("div", { className: hot ? "fill hot" : "fill" });
  fill.style.width = width + "%";
  const track = el("div", { className: "track", role: "meter" }, fill);
  track.setAttribute("aria-label", label);
  track.setAttribute("aria-valuemin", "0");
  track.setAttribute("aria-valuemax", "100");
  track.setAttribute("aria-valuenow", width.toFixed(0));
  return el("div", { className: "meter" }, el("div", {}, el("span", { textContent: label }), el("span", { textContent: text })), track);
}

function facts(pairs) {
  return el("dl", { className: "facts" }, ...pairs.map(([name, value]) =>
    el("div", {}, el("dt", { textContent: name }), el("dd", { textContent: value }))));
}

// table shows rows under columns of [title, class, cell].
function table(title, columns, rows, total) {
  const more = total > rows.length ? `, the first ${rows.length} of ${number(total)}` : "";
  const heading = el("h3", { textContent: title + more });
  if (!rows.length) return el("section", {}, heading, el("p", { className: "none", textContent: "none" }));
  const head = el("tr", {}, ...columns.map(([name, cls]) => el("th", { textContent: name, className: cls, scope: "col" })));
  const body = rows.map((row) => el("tr", {}, ...columns.map(([, cls, cell]) => {
    const text = cell(row);
    return el("td", { textContent: text, className: cls, title: cls === "id" ? text : "" });
  })));
  return el("section", {}, heading, el("div", { className: "scroll" },
    el("table", {}, el("thead", {}, head), el("tbody", {}, ...body))));
}

function state(b) {
  if (!b.admission) return el("span", { className: "tag soft", textContent: "admission off" });
  if (b.degraded) return el("span", { className: "tag bad", textContent: "degraded" });
  if (b.pressure >= b.pressureThreshold) return el("span", { className: "tag warn", textContent: "pressure guard" });
  return el("span", { className: "tag good", textContent: "admitting" });
}

const WAITERS = [
  ["#", "num", (w) => w.position],
  ["ticket", "id", (w) => w.ticketId],
  ["tokens", "num", (w) => number(w.reservationTokens)],
  ["waits for", "", (w) => word(w.waitReason, "WAIT_REASON_")],
  ["waited", "num", (w) => period(w.waited)],
  ["ages in", "num", (w) => period(w.agesIn)],
  ["holder", "id", (w) => w.holderId],
];
const LEASES = [
  ["lease", "id", (x) => x.leaseId],
  ["tokens", "num", (x) => number(x.reservationTokens)],
  ["held", "num", (x) => period(x.held)],
  ["expires in", "num", (x) => period(x.expiresIn)],
  ["holder", "id", (x) => x.holderId],
  ["session", "id", (x) => x.sessionId],
];
const ENGINES = [
  ["engine", "id", (e) => e.url],
  ["state", "", (e) => (e.healthy ? "healthy" : e.error || "unhealthy")],
  ["role", "", (e) => word(e.role, "ENGINE_ROLE_").replace("unspecified", "regular")],
  ["used", "num", (e) => number(e.usedTokens)],
  ["capacity", "num", (e) => number(e.capacityTokens)],
  ["usage", "num", (e) => percent(e.usage)],
  ["pressure", "num", (e) => percent(e.pressure)],
  ["running", "num", (e) => number(e.runningRequests)],
  ["queued", "num", (e) => number(e.queuedRequests)],
];

async function pool(name) {
  const ask = { pool: name, stale: true };
  const [b, leases, waiters, engines] = await Promise.all([
    call("ObserveService/GetBudget", ask),
    call("ObserveService/ListLeases", { ...ask, pageSize: ROWS }),
    call("ObserveService/ListWaiters", { ...ask, pageSize: ROWS }),
    call("ObserveService/ListEngines", ask),
  ]);
  const ceiling = Number(b.ceiling), reserved = Number(b.reserved);
  const age = engines.snapshotAge ? period(engines.snapshotAge) + " old" : "no snapshot yet";
  return el("article", { className: "pool" },
    el("div", { className: "title" }, el("h2", { textContent: name }), state(b),
      b.degradedReason ? el("span", { className: "soft", textContent: b.degradedReason }) : null),
    el("div", { className: "meters" },
      meter("reserved", ceiling ? reserved / ceiling : 0, `${number(reserved)} of ${number(ceiling)} tokens`, reserved > ceiling),
      meter("pressure", b.pressure, `${percent(b.pressure)}, guard at ${percent(b.pressureThreshold)}`, b.pressure >= b.pressureThreshold)),
    facts([["leases", number(b.leases)], ["waiting", number(b.waiting)], ["oldest wait", period(b.oldestWait)],
      ["available", number(b.available)], ["epoch", number(b.epoch)], ["engines", `${engines.discovery || "unknown"}, ${age}`]]),
    table("Queue", WAITERS, waiters.waiters, Number(b.waiting)),
    table("Leases", LEASES, leases.leases, Number(b.leases)),
    table("Engines", ENGINES, engines.engines, engines.engines.length));
}

function node(s) {
  const leader = s.leaderId ? (s.leaderId === s.nodeId ? "leads" : `follows ${s.leaderId}`) : "has no leader";
  const voters = s.nodes.filter((n) => n.voter).length;
  return `${s.nodeId} ${leader}, term ${s.term}, ${voters} ${voters === 1 ? "voter" : "voters"}, may lose ${s.failureTolerance}` + (s.writable ? "" : `, read only: ${s.health}`);
}

function freshness(text, bad) {
  const line = document.getElementById("freshness");
  line.textContent = text;
  line.className = bad ? "bad" : "";
}

// askForToken shows or hides the form for a token.
function askForToken(wanted) {
  const form = document.getElementById("token");
  if (form.hidden === !wanted) return;
  form.hidden = !wanted;
  if (wanted) form.elements.token.focus();
}

document.getElementById("token").addEventListener("submit", (event) => {
  event.preventDefault();
  const field = event.target.elements.token;
  sessionStorage.setItem(TOKEN, field.value.trim());
  field.value = "";
  clearTimeout(timer);
  refresh();
});

let timer;

async function refresh() {
  try {
    const [status, list] = await Promise.all([call("ClusterService/GetStatus", {}), call("ObserveService/ListPools", { stale: true })]);
    const cards = await Promise.all(list.pools.map(pool));
    document.getElementById("node").textContent = node(status);
    document.getElementById("pools").replaceChildren(...cards);
    freshness("updated " + new Date().toLocaleTimeString(), false);
    askForToken(false);
  } catch (problem) {
    freshness("not updated: " + problem.message, true);
    if (problem.wantsToken) askForToken(true);
  }
  clearTimeout(timer);
  timer = setTimeout(refresh, PERIOD);
}

refresh();
