// Lists of any length: only the rows that are in view are in the document.
const ROW = 27;
const FIRST_ROWS = 22;
class List {
  constructor(parent, label, draw) {
    this.spacer = element("div", { class: "spacer" });
    this.box = element("div", { class: "list", tabindex: "0", "aria-label": label }, this.spacer);
    this.draw = draw;
    this.rows = [];
    parent.append(this.box);
    this.box.addEventListener("scroll", () => this.render());
    new ResizeObserver(() => this.render()).observe(this.box);
  }
  show(rows) {
    this.rows = rows;
    this.spacer.style.height = rows.length * ROW + "px";
    this.render();
  }
  render() {
    const first = Math.max(0, Math.floor(this.box.scrollTop / ROW) - 6);
    const count = Math.ceil(this.box.clientHeight / ROW) + 12;
    const drawn = this.rows.slice(first, first + count).map((row, i) => {
      const made = this.draw(row);
      made.style.top = (first + i) * ROW + "px";
      return made;
    });
    this.spacer.replaceChildren(...drawn);
  }
  reveal(at) {
    const top = at * ROW;
    const inView = top >= this.box.scrollTop && top + ROW <= this.box.scrollTop + this.box.clientHeight;
    if (at >= 0 && !inView) this.box.scrollTop = top - this.box.clientHeight / 2;
    this.render();
  }
}

function bar(hot) {
  const inner = element("i");
  inner.style.width = Math.round(hot * 100) + "%";
  return element("span", { class: "heat" }, inner);
}
function tint(target, hot) {
  target.style.background = `color-mix(in oklab, var(--hot) ${Math.round(hot * 62)}%, var(--panel))`;
}

// ------------------------------------------------------------------ modules and nodes as a tree
class Tree {
  constructor(parent) {
    this.open = new Set([ROOT]);
    for (const module of this.open) { // a set yields what is added while it is read
      const inner = [...module.modules.values()];
      const rows = [...this.open].reduce((sum, one) => sum + one.items.length, 1);
      for (const one of inner) if (rows + one.items.length <= FIRST_ROWS && one.nodes.length > 2) this.open.add(one);
    }
    this.list = new List(parent, "modules", (row) => this.row(row));
  }
  toggle(module) {
    if (!this.open.delete(module)) this.open.add(module);
    this.show();
  }
  show() {
    const rows = [];
    const add = (item, level) => {
      rows.push({ item, level });
      if (!(item instanceof Module)) return;
      if (state.query ? !item.nodes.some((i) => state.matches.has(i)) : !this.open.has(item)) return;
      for (const inner of item.items) if (isShown(inner)) add(inner, level + 1);
    };
    if (isShown(ROOT)) add(ROOT, 0);
    this.list.show(rows);
  }
  reveal(node) {
    for (let module = node.module; module; module = module.parent) this.open.add(module);
    this.show();
    this.list.reveal(this.list.rows.findIndex((row) => row.item === node));
  }
  row({ item, level }) {
    const isModule = item instanceof Module;
    const isOpen = isModule && (state.query || this.open.has(item));
    const name = isModule ? item.name : localName(item);
    const op = isModule ? item.kind : shortOp(item.op);
    const kind = name.startsWith(op) ? "" : op;
    const value = item.values[state.column];
    const twist = element("span", { class: "twist" }, isModule ? (isOpen ? "▾" : "▸") : "");
    twist.style.marginLeft = Math.min(level, 14) * 13 + "px";
    const made = element(
      "div",
      {
        class: item.wrong ? "row wrong" : "row",
        title: isModule ? item.path : item.name,
        "aria-selected": String(state.selected === item),
        onclick: () => (isModule ? this.toggle(item) : select(item)),
      },
      twist,
      element("span", { class: "grow" }, name, element("span", { class: "kind" }, kind)),
    );
    if (value !== undefined) made.append(
      element("span", { class: "value" }, shown(value, unitOf(state.column))),
      bar(heat(value, state.column, isModule)),
    );
    return made;
  }
}
function isShown(item) {
  if (!state.query) return true;
  return item instanceof Module ? item.nodes.some((i) => state.matches.has(i)) : state.matches.has(item.index);
}
function localName(node) {
  const prefix = node.path + ".";
  return node.path && node.name.startsWith(prefix) ? node.name.slice(prefix.length) : node.name;
}
function shortOp(op) {
  return op.includes("::") ? op.slice(op.lastIndexOf("::") + 2) : op;
}
function unitOf(number) {
  return COLUMNS[number]?.unit;
}

// ------------------------------------------------------------------ the sortable table
const GROUPS = {
  nodes: (node) => node.index,
  operators: (node) => node.op,
  modules: (node) => node.path,
  lines: (node) => node.line,
};
class Table {
  constructor(parent) {
    this.group = "nodes";
    this.sorted = { key: COLUMNS.length ? 0 : "order", down: COLUMNS.length > 0 };
    this.head = element("div", { class: "head", role: "row" });
    const body = element("div", { class: "body" });
    parent.append(element("div", { class: "table" }, this.head, body));
    this.list = new List(body, "table", (row) => this.row(row));
  }
  titles() {
    const texts = {
      nodes: [["name", "node", 300], ["op", "operator", 190], ["path", "module", 230], ["code", "line", 340]],
      operators: [["name", "operator", 340], ["count", "nodes", 80]],
      modules: [["name", "module", 340], ["op", "class", 190], ["count", "nodes", 80]],
      lines: [["name", "line", 190], ["code", "code", 460], ["count", "nodes", 80]],
    }[this.group];
    const numbers = COLUMNS.map((column, i) => [i, column.name, Math.max(104, column.name.length * 8 + 44)]);
    return [...texts.slice(0, 1), ...numbers, ...texts.slice(1)];
  }
  show() {
    this.head.replaceChildren(...this.titles().map(([key, title, width]) => {
      const direction = this.sorted.key === key ? (this.sorted.down ? "descending" : "ascending") : "none";
      const mark = { descending: " ↓", ascending: " ↑", none: "" }[direction];
      const cell = element("div", {
        class: typeof key === "number" || key === "count" ? "cell number" : "cell",
        role: "columnheader", tabindex: "0", "aria-sort": direction,
        onclick: () => this.sort(key), onkeydown: (e) => e.key === "Enter" && this.sort(key),
      }, title + mark);
      cell.style.width = width + "px";
      return cell;
    }));
    this.list.show(this.rows());
  }
  sort(key) {
    const numeric = typeof key === "number" || key === "count";
    this.sorted = { key, down: this.sorted.key === key ? !this.sorted.down : numeric };
    this.show();
  }
  rows() {
    const rows = new Map();
    for (const node of NODES) {
      if (!isShown(node)) continue;
      const key = GROUPS[this.group](node);
      if (!rows.has(key)) rows.set(key, []);
      rows.get(key).push(node.index);
    }
    const made = [...rows.values()].map((indices, order) => this.summary(indices, order));
    const { key, down } = this.sorted;
    const read = (row) => (typeof key === "number" ? row.values[key] : row[key]);
    const sign = down ? -1 : 1;
    return made.sort((a, b) => sign * compared(read(a), read(b)) || a.order - b.order);
  }
  summary(indices, order) {
    const first = NODES[indices[0]];
    const names = { nodes: first.name, operators: first.op, modules: first.path || "(model)", lines: first.source || "(unknown)" };
    const code = this.group === "nodes" && first.source ? first.source + "  " + first.code : first.code;
    return {
      name: names[this.group], op: this.group === "modules" ? first.module.kind : first.op, path: first.path,
      code, count: indices.length, order, node: first,
      values: this.group === "nodes" ? first.values : COLUMNS.map((column) => total(column, indices)),
      wrong: NODES[indices.find((i) => NODES[i].wrong)]?.wrong || "",
    };
  }
  row(row) {
    const cells = this.titles().map(([key, , width]) => {
      const numeric = typeof key === "number";
      const value = numeric ? row.values[key] : row[key];
      const text = numeric ? shown(value, unitOf(key)) : String(value);
      const cell = element("div", { class: numeric || key === "count" ? "cell number" : "cell", title: text }, text);
      if (numeric && key === state.column && value !== undefined) {
        cell.classList.add("tinted");
        tint(cell, heat(value, key, this.group !== "nodes"));
      }
      if (key === "code") cell.classList.add("mono");
      if (key === "name" && row.wrong) cell.prepend(element("span", { class: "flag", title: row.wrong }, "●"));
      cell.style.width = width + "px";
      return cell;
    });
    return element("div", {
      class: "row", role: "row", "aria-selected": String(state.selected === row.node),
      onclick: () => (this.group === "nodes" ? select(row.node) : search(this.term(row))),
    }, ...cells);
  }
  term(row) {
    return row.name.startsWith("(") ? "" : row.name;
  }
}
function compared(a, b) {
  if (typeof a === "string" || typeof b === "string") return String(a).localeCompare(String(b), "en", { numeric: true });
  const rank = (x) => (x === undefined || x === null ? -Infinity : Number.isNaN(x) ? Infinity : x);
  return rank(a) === rank(b) ? 0 : rank(a) - rank(b);
}

// ------------------------------------------------------------------ lines of Python
class Source {
  constructor(parent) {
    this.box = element("div", { class: "source" });
    parent.append(this.box);
    this.list = new List(this.box, "source", (row) => this.row(row));
  }
  show() {
    const byLine = new Map();
    for (const node of NODES) {
      if (!isShown(node) || !node.source) continue;
      if (!byLine.has(node.line)) byLine.set(node.line, []);
      byLine.get(node.line).push(node.index);
    }
    const byFile = new Map();
    for (const [line, indices] of byLine) {
      const [source, code] = DATA.lines[line];
      const colon = source.lastIndexOf(":");
      const file = source.slice(0, colon);
      if (!byFile.has(file)) byFile.set(file, []);
      byFile.get(file).push({ number: Number(source.slice(colon + 1)), source, code, indices });
    }
    const rows = [];
    for (const [file, lines] of byFile) {
      rows.push({ file });
      rows.push(...lines.sort((a, b) => a.number - b.number));
    }
    this.list.show(rows);
  }
  row(row) {
    if (row.file !== undefined) return element("div", { class: "row file" }, row.file);
    const value = total(COLUMNS[state.column] || { values: [] }, row.indices);
    const code = element("span", { class: "code" }, row.code);
    const made = element(
      "div",
      { class: "row", title: row.indices.length + " nodes", onclick: () => search(row.source) },
      element("span", { class: "no" }, String(row.number)),
      element("span", { class: "value" }, shown(value, unitOf(state.column))),
      value === undefined ? element("span", { class: "heat" }) : bar(heat(value, state.column, true)),
      code,
    );
    if (row.indices.some((i) => NODES[i].wrong)) code.prepend(element("span", { class: "bad" }, "● "));
    return made;
  }
}
