// The graph: modules are boxes that open in place; each level is laid out in layers (Sugiyama,
// Tagawa and Toda 1981), with barycenters for the order. Only what is in view is in the document.
const GAP = { x: 22, y: 34, pad: 16, head: 26 };
const LONGEST_ROUTE = 12;
const FIRST_BOXES = 45;

class Graph {
  constructor(parent) {
    this.open = new Set([ROOT]);
    this.openSome();
    this.svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    this.layer = this.part("g", this.svg);
    this.view = { x: 20, y: 20, k: 1 };
    const button = (text, label, act, kind = "") => element("button", { "aria-label": label, title: label, class: kind, onclick: act }, text);
    parent.append(this.svg, element("div", { class: "zoom" },
      button("collapse", "Close all modules", () => this.closeAll(), "wide"),
      button("fit", "Fit the graph to the window", () => this.fit(), "wide"),
      button("−", "Zoom out", () => this.zoom(1 / 1.3)), button("+", "Zoom in", () => this.zoom(1.3))));
    this.listen();
    new ResizeObserver(() => this.render()).observe(this.svg);
  }

  // Open the largest modules first, as long as few boxes result.
  openSome() {
    const waiting = [ROOT];
    let boxes = ROOT.items.length;
    while (waiting.length) {
      waiting.sort((a, b) => a.nodes.length - b.nodes.length);
      const module = waiting.pop();
      const more = module.items.length - 1;
      if (module !== ROOT && (boxes + more > FIRST_BOXES || module.nodes.length < 3)) continue;
      if (module !== ROOT) boxes += more;
      this.open.add(module);
      waiting.push(...module.modules.values());
    }
  }
  closeAll() {
    this.open = new Set([ROOT]);
    this.show();
    this.fit();
  }
  part(tag, parent, attributes = {}, text = "") {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (text) made.textContent = text;
    parent.append(made);
    return made;
  }

  // ---------------------------------------------------------------- layout
  boxOf(node) {
    let box = node;
    for (let module = node.module; module; module = module.parent) if (!this.open.has(module)) box = module;
    return box;
  }
  show() {
    const containerOf = (box) => (box instanceof Module ? box.parent : box.module);
    const boxes = NODES.map((node) => this.boxOf(node));
    const levels = new Map();
    const seen = new Map();
    this.lines = [];
    for (const node of NODES) for (const source of node.reads) {
      const from = boxes[source], to = boxes[node.index];
      if (from === to || seen.get(from)?.has(to)) continue;
      if (!seen.has(from)) seen.set(from, new Set());
      seen.get(from).add(to);
      let a = from, b = to, up = containerOf(a), vp = containerOf(b);
      while (up !== vp) {
        if (up.depth >= vp.depth) [a, up] = [up, up.parent];
        else [b, vp] = [vp, vp.parent];
      }
      if (!levels.has(up)) levels.set(up, []);
      const line = { from, to, a, b, points: null };
      levels.get(up).push(line);
      this.lines.push(line);
    }
    this.boxes = [];
    this.at = new Map();
    const size = this.arrange(ROOT, levels);
    this.place(ROOT, size, 0, 0);
    this.size = size;
    for (const line of this.lines) this.route(line);
    this.render();
  }
  sizeOf(item, levels) {
    if (item instanceof Module && this.open.has(item)) return this.arrange(item, levels);
    const title = item instanceof Module ? item.name : shortOp(item.op);
    const below = item instanceof Module ? moduleLabel(item) : localName(item);
    const longest = Math.max(title.length + 8, below.length * 0.92);
    return { w: Math.min(230, Math.max(96, longest * 7.1 + 18)), h: 42, item };
  }
  arrange(module, levels) {
    const cells = module.items.map((item) => ({ ...this.sizeOf(item, levels), item, rank: 0, ins: [], outs: [] }));
    const of = new Map(cells.map((cell, order) => [cell.item, Object.assign(cell, { order })]));
    const lines = (levels.get(module) || []).map((line) => ({ line, a: of.get(line.a), b: of.get(line.b) }));
    const forward = lines.filter(({ a, b }) => a.order < b.order).sort((x, y) => x.b.order - y.b.order);
    const pairs = new Set();
    for (const { a, b } of forward) b.rank = Math.max(b.rank, a.rank + 1);
    const ranks = [];
    const put = (cell) => (ranks[cell.rank] ||= []).push(cell);
    cells.forEach(put);
    for (const { line, a, b } of forward) {
      const key = a.order + ">" + b.order;
      const isWhole = line.from === a.item && line.to === b.item;
      if (b.rank - a.rank > LONGEST_ROUTE || (pairs.has(key) && !isWhole)) continue;
      pairs.add(key);
      const route = [a];
      for (let rank = a.rank + 1; rank < b.rank; rank++) {
        const bend = { w: 8, h: 0, rank, ins: [], outs: [], order: a.order };
        put(bend);
        route.push(bend);
      }
      route.push(b);
      for (let i = 1; i < route.length; i++) {
        route[i - 1].outs.push(route[i]);
        route[i].ins.push(route[i - 1]);
      }
      if (isWhole) line.route = route;
    }
    ordered(ranks);
    spread(ranks);
    return { ...bounds(ranks), item: module, cells };
  }
  place(module, size, x, y) {
    for (const cell of size.cells) {
      const box = { item: cell.item, x: x + cell.x, y: y + cell.y, w: cell.w, h: cell.h, isOpen: Boolean(cell.cells) };
      this.boxes.push(box);
      this.at.set(cell.item, box);
      if (cell.cells) this.place(cell.item, cell, box.x, box.y);
    }
    size.originX = x;
    size.originY = y;
    for (const cell of size.cells) cell.origin = size;
  }
  route(line) {
    const from = this.at.get(line.from), to = this.at.get(line.to);
    const start = [from.x + from.w / 2, from.y + from.h], end = [to.x + to.w / 2, to.y];
    const level = line.route?.[0].origin;
    const bends = (line.route || []).slice(1, -1).map((bend) => [level.originX + bend.x + bend.w / 2, level.originY + bend.y]);
    const points = [start, ...bends, end];
    let path = `M${start[0].toFixed(1)} ${start[1].toFixed(1)}`;
    for (let i = 1; i < points.length; i++) {
      const [[x1, y1], [x2, y2]] = [points[i - 1], points[i]];
      const middle = ((y1 + y2) / 2).toFixed(1);
      path += `C${x1.toFixed(1)} ${middle} ${x2.toFixed(1)} ${middle} ${x2.toFixed(1)} ${y2.toFixed(1)}`;
    }
    line.path = path;
    line.far = !line.route && Math.abs(end[1] - start[1]) > 400;
    line.top = Math.min(start[1], end[1]);
    line.bottom = Math.max(start[1], end[1]);
    line.left = Math.min(...points.map((p) => p[0]));
    line.right = Math.max(...points.map((p) => p[0]));
  }

  // ---------------------------------------------------------------- drawing
  render() {
    if (!this.boxes || !this.svg.clientWidth) return;
    const { x, y, k } = this.view;
    const left = -x / k, top = -y / k, right = left + this.svg.clientWidth / k, bottom = top + this.svg.clientHeight / k;
    const isIn = (l, t, r, b) => r >= left && l <= right && b >= top && t <= bottom;
    const layer = document.createElementNS("http://www.w3.org/2000/svg", "g");
    layer.setAttribute("transform", `translate(${x} ${y}) scale(${k})`);
    const boxes = this.boxes.filter((box) => isIn(box.x, box.y, box.x + box.w, box.y + box.h));
    for (const box of boxes) if (box.isOpen) this.drawCluster(layer, box);
    const chosen = state.selected && this.boxOf(state.selected);
    const lines = this.lines.filter((line) => isIn(line.left, line.top, line.right, line.bottom));
    for (const line of lines.slice(0, 4000)) {
      const near = chosen && (line.from === chosen || line.to === chosen);
      this.part("path", layer, { d: line.path, class: near ? "near" : line.far ? "far" : "" });
    }
    for (const box of boxes) if (!box.isOpen) this.drawBox(layer, box, k);
    this.layer.replaceWith(layer);
    this.layer = layer;
  }
  drawCluster(parent, { item, x, y, w, h }) {
    const group = this.part("g", parent, { class: "cluster" });
    this.part("rect", group, { x, y, width: w, height: h });
    const title = this.part("text", group, { x: x + 26, y: y + 17, class: "title" }, clipped(item.name, w - 40));
    if (item.kind) this.part("tspan", title, { class: "sub", dx: 7 }, clipped(item.kind, Math.max(0, w - 60 - item.name.length * 8)));
    const plus = this.part("g", group, { class: "box" });
    this.part("text", plus, { x: x + 10, y: y + 18, class: "plus" }, "−");
    this.onClick(group, () => this.toggle(item));
    this.part("title", group, {}, item.path);
  }
  drawBox(parent, { item, x, y, w, h }, k) {
    const isModule = item instanceof Module;
    const kinds = ["box"];
    if (item === state.selected) kinds.push("selected");
    if (item.wrong) kinds.push("bad");
    if (state.query && !isShown(item)) kinds.push("dim");
    const group = this.part("g", parent, { class: kinds.join(" ") });
    group.dataset.name = isModule ? item.path : item.name;
    const hot = heat(item.values[state.column], state.column, isModule);
    const rect = this.part("rect", group, { x, y, width: w, height: h });
    tint(rect, hot);
    rect.style.fill = rect.style.background;
    if (k > 0.35) {
      const value = shown(item.values[state.column], unitOf(state.column));
      const taken = value.length * 7 + 26;
      this.part("text", group, { x: x + 9, y: y + 17, class: "title" }, clipped(isModule ? item.name : shortOp(item.op), w - taken));
      this.part("text", group, { x: x + 9, y: y + 33, class: "sub" }, clipped(isModule ? moduleLabel(item) : localName(item), w - (isModule ? 34 : 14)));
      this.part("text", group, { x: x + w - 9, y: y + 17, class: "sub", "text-anchor": "end" }, value);
      if (isModule) this.part("text", group, { x: x + w - 10, y: y + 35, class: "plus", "text-anchor": "end" }, "+");
    }
    this.part("title", group, {}, isModule ? `${item.path} ${item.kind} (${item.nodes.length} nodes)` : `${item.name}\n${item.op}\n${item.source} ${item.code}`);
    this.onClick(group, () => (isModule ? this.toggle(item) : select(item)));
  }
  toggle(module) {
    const box = this.at.get(module);
    const before = box ? [this.view.x + box.x * this.view.k, this.view.y + box.y * this.view.k] : null;
    if (!this.open.delete(module)) this.open.add(module);
    this.show();
    const after = this.at.get(module);
    if (before && after) {
      this.view.x = before[0] - after.x * this.view.k; // the box stays where it was clicked
      this.view.y = before[1] - after.y * this.view.k;
      this.render();
    }
  }

  // ---------------------------------------------------------------- view
  onClick(group, act) {
    group.addEventListener("click", (event) => {
      event.stopPropagation();
      if (!this.dragged) act();
    });
  }
  listen() {
    let last = null;
    this.svg.addEventListener("pointerdown", (event) => ([last, this.dragged] = [[event.clientX, event.clientY], false]));
    this.svg.addEventListener("pointermove", (event) => {
      if (!last || !event.buttons) return;
      const [dx, dy] = [event.clientX - last[0], event.clientY - last[1]];
      if (!this.dragged && Math.abs(dx) + Math.abs(dy) < 4) return;
      this.dragged = true;
      last = [event.clientX, event.clientY];
      this.view.x += dx;
      this.view.y += dy;
      this.render();
    });
    this.svg.addEventListener("pointerup", () => (last = null));
    this.svg.addEventListener("wheel", (event) => {
      event.preventDefault();
      if (event.ctrlKey || event.metaKey) return this.zoom(Math.exp(-event.deltaY / 250), event.offsetX, event.offsetY);
      this.view.x -= event.deltaX;
      this.view.y -= event.deltaY;
      this.render();
    }, { passive: false });
  }
  zoom(factor, x = this.svg.clientWidth / 2, y = this.svg.clientHeight / 2) {
    const k = Math.min(3, Math.max(0.03, this.view.k * factor));
    const ratio = k / this.view.k;
    this.view = { k, x: x - (x - this.view.x) * ratio, y: y - (y - this.view.y) * ratio };
    this.render();
  }
  fit() {
    const { clientWidth: width, clientHeight: height } = this.svg;
    const k = Math.min(1, Math.max(0.03, (width - 40) / this.size.w), Math.max(0.75, (height - 40) / this.size.h));
    this.view = { k, x: Math.max(20, (width - this.size.w * k) / 2), y: 20 };
    this.render();
  }
  reveal(node) {
    if (this.boxOf(node) !== node) {
      for (let module = node.module; module; module = module.parent) this.open.add(module);
      this.show();
    }
    const box = this.at.get(node);
    const k = Math.max(this.view.k, 0.7);
    this.view = { k, x: this.svg.clientWidth / 2 - (box.x + box.w / 2) * k, y: this.svg.clientHeight / 2 - box.y * k };
    this.render();
  }
}
function moduleLabel(module) {
  const only = module.nodes.length === 1 ? shortOp(NODES[module.nodes[0]].op) : `${module.nodes.length} nodes`;
  return module.kind ? `${module.kind} · ${only}` : only;
}
function clipped(text, width) {
  const most = Math.max(1, Math.floor(width / 6.7));
  return text.length <= most ? text : text.slice(0, Math.max(1, most - 1)) + "…";
}

// The order in each rank: by the mean position of the neighbors, downwards and upwards in turn.
function ordered(ranks) {
  const number = (rank) => rank.forEach((cell, i) => (cell.position = i));
  ranks.forEach(number);
  for (let sweep = 0; sweep < 4; sweep++) {
    const down = sweep % 2 === 0;
    for (const rank of down ? ranks : [...ranks].reverse()) {
      for (const cell of rank) {
        const near = down ? cell.ins : cell.outs;
        cell.wish = near.length ? near.reduce((sum, x) => sum + x.position, 0) / near.length : cell.position;
      }
      rank.sort((a, b) => a.wish - b.wish || a.order - b.order);
      number(rank);
    }
  }
}
// Horizontal positions: each cell near the middle of its neighbors, without overlaps.
function spread(ranks) {
  for (const rank of ranks) {
    let x = 0;
    for (const cell of rank) [cell.x, x] = [x, x + cell.w + GAP.x];
    for (const cell of rank) cell.x -= x / 2;
  }
  for (let sweep = 0; sweep < 6; sweep++) {
    const down = sweep % 2 === 0;
    for (const rank of down ? ranks : [...ranks].reverse()) settle(rank, down ? "ins" : "outs");
  }
}
function settle(rank, side) {
  const middle = (cell) => cell.x + cell.w / 2;
  let edge = -Infinity, drift = 0;
  const wishes = rank.map((cell) => {
    const near = cell[side];
    return near.length ? near.reduce((sum, x) => sum + middle(x), 0) / near.length - cell.w / 2 : cell.x;
  });
  rank.forEach((cell, i) => {
    cell.x = Math.max(wishes[i], edge);
    edge = cell.x + cell.w + GAP.x;
    drift += wishes[i] - cell.x;
  });
  for (const cell of rank) cell.x += drift / rank.length;
}
function bounds(ranks) {
  let left = Infinity, right = -Infinity, y = GAP.head + 6;
  for (const rank of ranks) {
    const height = Math.max(...rank.map((cell) => cell.h));
    for (const cell of rank) {
      cell.y = y + (height - cell.h) / 2;
      left = Math.min(left, cell.x);
      right = Math.max(right, cell.x + cell.w);
    }
    y += height + GAP.y;
  }
  for (const rank of ranks) for (const cell of rank) cell.x += GAP.pad - left;
  return { w: Math.max(130, right - left + 2 * GAP.pad), h: y - GAP.y + GAP.pad };
}
