// The page: header, tabs, search, selection.
const state = { column: 0, query: "", matches: new Set(), selected: null, tab: "graph" };
const app = document.getElementById("app");

function buttons(names, isOn, act) {
  const made = names.map((name, i) => element("button", { "aria-pressed": String(isOn(i)), onclick: () => {
    act(i);
    made.forEach((button, k) => button.setAttribute("aria-pressed", String(k === i)));
  } }, name));
  return element("span", { class: "choices" }, ...made);
}

const field = element("input", { type: "search", placeholder: "Search  ( / )", "aria-label": "Search nodes, operators, modules, code" });
const colors = COLUMNS.length
  ? buttons(COLUMNS.map((column) => column.name), (i) => i === 0, (i) => { state.column = i; update(); })
  : element("span");
const wrong = NODES.filter((node) => node.wrong);
app.append(element("header", {},
  element("div", { class: "top" },
    element("h1", {}, DATA.title),
    element("span", { title: "colored by" }, element("span", { class: "legend" })), colors, field,
    element("button", { "aria-label": "Light or dark", title: "Light or dark",
      onclick: () => themed(document.documentElement.dataset.theme === "dark" ? "light" : "dark") }, "◐")),
  element("ul", { class: "facts" }, element("li", {}, `${NODES.length} nodes`),
    ...DATA.facts.map((fact) => element("li", {}, fact)),
    wrong.length ? element("li", { class: "bad" }, `● ${wrong.length} wrong`) : null)));

const side = element("div", { class: "view" });
app.append(element("nav", {}, element("h2", {}, "Modules"), side));
const panes = Object.fromEntries(["graph", "table", "source"].map((name) => [name, element("div", { class: "view" })]));
const tabs = buttons(["Graph", "Table", "Source"], (i) => i === 0, (i) => open(Object.keys(panes)[i]));
const groups = buttons(Object.keys(GROUPS), (i) => i === 0, (i) => {
  [table.group, table.sorted] = [Object.keys(GROUPS)[i], { key: COLUMNS.length ? state.column : "order", down: COLUMNS.length > 0 }];
  table.show();
});
const found = element("span", { class: "found", role: "status" });
const next = element("button", { hidden: "", onclick: () => nextWrong() }, "next wrong node");
if (wrong.length) next.hidden = false;
const details = element("aside", { hidden: "" });
app.append(element("main", {}, element("div", { class: "bar" }, tabs, groups, next, found), ...Object.values(panes), details));

const tree = new Tree(side), graph = new Graph(panes.graph), table = new Table(panes.table), source = new Source(panes.source);
const views = { graph, table, source };

function open(name) {
  state.tab = name;
  for (const [key, pane] of Object.entries(panes)) pane.hidden = key !== name;
  groups.hidden = name !== "table";
  refresh();
  if (name === "graph" && state.selected) graph.reveal(state.selected);
}
function update() {
  const words = state.query.toLowerCase().split(/\s+/).filter(Boolean);
  state.matches = new Set(NODES.filter((node) => {
    const text = `${node.name} ${node.op} ${node.path} ${node.module.kind} ${node.source} ${node.code}`.toLowerCase();
    return words.every((word) => text.includes(word));
  }).map((node) => node.index));
  found.textContent = state.query ? `${state.matches.size} of ${NODES.length} nodes` : "";
  tree.show();
  refresh();
}
function refresh() {
  if (state.tab === "graph") graph.render();
  else views[state.tab].show();
}
function search(text) {
  field.value = state.query = text;
  update();
}
function select(node) {
  state.selected = node;
  describe(node);
  tree.reveal(node);
  if (state.tab === "graph") graph.reveal(node);
  else refresh();
}
function nextWrong() {
  const at = wrong.indexOf(state.selected);
  select(wrong[(at + 1) % wrong.length]);
}
function links(indices) {
  const shownLinks = indices.slice(0, 12).map((index) => element("a", { tabindex: "0", onclick: () => select(NODES[index]) }, NODES[index].name));
  return [...shownLinks, indices.length > 12 ? `… ${indices.length - 12} more` : ""];
}
function describe(node) {
  const rows = [
    ["operator", [node.op]],
    ["module", [node.path || "(model)", node.module.kind ? ` (${node.module.kind})` : ""]],
    ["line", node.source ? [node.source, element("pre", {}, node.code)] : []],
    ["results", node.gives.map(([name, type]) => element("div", { class: "mono" }, type ? `${name}: ${type}` : name))],
    ["reads", links(node.reads)],
    ["read by", links(node.readers)],
    ...COLUMNS.map((column, i) => [column.name, node.values[i] === undefined ? [] : [shown(node.values[i], column.unit)]]),
    ["wrong", node.wrong ? [element("span", { class: "bad" }, node.wrong)] : []],
  ].filter(([, content]) => content.some((part) => part !== ""));
  details.replaceChildren(
    element("button", { class: "close", "aria-label": "Close", onclick: () => { details.hidden = true; state.selected = null; update(); } }, "×"),
    element("h3", {}, node.name),
    element("dl", {}, ...rows.flatMap(([name, content]) => [element("dt", {}, name), element("dd", {}, ...content)])),
  );
  details.hidden = false;
}

let pause = 0;
field.addEventListener("input", () => {
  clearTimeout(pause);
  pause = setTimeout(() => search(field.value), 80);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && document.activeElement !== field) {
    event.preventDefault();
    field.focus();
  } else if (event.key === "Escape") search("");
});
graph.show();
update();
open("graph");
graph.fit();
if (wrong.length) select(wrong[0]);
document.body.dataset.ready = "true";
