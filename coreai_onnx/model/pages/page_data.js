"use strict";
// The nodes, the tree of modules, and the numbers of both. Texts of a model are only ever shown
// through textContent.
const DATA = JSON.parse(document.getElementById("data").textContent);
const NODES = DATA.nodes.map((node, index) => ({
  index,
  name: node.name,
  op: DATA.ops[node.op],
  line: node.line,
  source: DATA.lines[node.line][0],
  code: DATA.lines[node.line][1],
  path: DATA.modules[node.module][0],
  reads: node.reads,
  readers: [],
  gives: node.gives,
  wrong: node.wrong || "",
}));
for (const node of NODES) for (const source of node.reads) NODES[source].readers.push(node.index);

function parsed(value) {
  if (typeof value !== "string") return value;
  return value === "nan" ? NaN : value.startsWith("-") ? -Infinity : Infinity;
}
const COLUMNS = DATA.columns.map((column, i) => ({ ...column, values: DATA.values[i].map(parsed) }));

class Module {
  constructor(path, name, parent) {
    Object.assign(this, { path, name, parent, kind: "", items: [], nodes: [], modules: new Map() });
    this.depth = parent ? parent.depth + 1 : 0;
    this.values = [];
    this.wrong = "";
  }
}
const ROOT = new Module("", "(model)", null);

function moduleOf(path) {
  let module = ROOT;
  if (!path) return module;
  for (const name of path.split(".")) {
    let inner = module.modules.get(name);
    if (!inner) {
      inner = new Module(module.path ? module.path + "." + name : name, name, module);
      module.modules.set(name, inner);
      module.items.push(inner);
    }
    module = inner;
  }
  return module;
}
for (const node of NODES) {
  node.module = moduleOf(node.path);
  node.module.items.push(node);
  for (let module = node.module; module; module = module.parent) module.nodes.push(node.index);
}
for (const [path, kind] of DATA.modules) if (kind) moduleOf(path).kind = kind;

// A sum of what nodes take, or the largest of their errors; undefined if no node has a number.
function total(column, indices) {
  let result;
  for (const index of indices) {
    const value = column.values[index];
    if (value === null || value === undefined) continue;
    if (result === undefined) result = value;
    else if (column.unit !== "error") result += value;
    else if (Number.isNaN(value) || value > result) result = value;
  }
  return result;
}
function eachModule(visit, module = ROOT) {
  const waiting = [module];
  while (waiting.length) {
    const next = waiting.pop();
    visit(next);
    waiting.push(...next.modules.values());
  }
}
eachModule((module) => {
  module.values = COLUMNS.map((column) => total(column, module.nodes));
  module.wrong = NODES[module.nodes.find((index) => NODES[index].wrong)]?.wrong || "";
});
for (const column of COLUMNS) {
  column.largest = column.values.reduce((most, x) => (x > most && x < Infinity ? x : most), 0);
  column.total = total(column, ROOT.nodes) || 0;
}
for (const node of NODES) node.values = COLUMNS.map((column) => column.values[node.index] ?? undefined);

// 0 … 1: how hot a number is; errors on a logarithmic scale from 1e-8 to 1.
function heat(value, number, ofSum) {
  const column = COLUMNS[number];
  if (value === undefined) return 0;
  if (Number.isNaN(value) || value === Infinity) return 1;
  if (column.unit === "error") return value > 0 ? Math.min(1, Math.max(0, Math.log10(value) / 8 + 1)) : 0;
  const most = ofSum ? column.total : column.largest;
  return most > 0 ? Math.sqrt(Math.min(1, value / most)) : 0;
}
const PREFIXES = ["", "k", "M", "G", "T", "P"];
function shown(value, unit) {
  if (value === undefined) return "";
  if (!Number.isFinite(value)) return String(value);
  if (unit === "error") return value === 0 ? "0" : value.toExponential(1);
  if (unit === "ms") return value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(3);
  let step = 0;
  while (Math.abs(value) >= 1000 && step < PREFIXES.length - 1) [value, step] = [value / 1000, step + 1];
  return (step || !Number.isInteger(value) ? value.toPrecision(3) : String(value)) + PREFIXES[step];
}

function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "class") made.className = value;
    else made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}
