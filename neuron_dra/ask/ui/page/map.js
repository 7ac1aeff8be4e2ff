// The map of the fleet: a canvas that shows the part to which one has scrolled. A reader of the screen hears the node at
// the cursor, which the arrow keys move.

import { count, isolated, make, name, show, shown } from "./dom.js";
import { SIZES, arranged, between, neighbor, nodeAt, short } from "./layout.js";
import { link } from "./routes.js";
import { MARKS, STATES, palette } from "./states.js";

const BORDER = 2; // pixels above and below, together
const HIGHEST = 800; // pixels: a higher map scrolls within its frame
const KEYS = ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"];

export class FleetMap {
  constructor(store) {
    this.store = store;
    this.size = "medium";
    this.only = ""; // the letter of the nodes that are shown, with the others of their UltraServers; empty for all
    this.cursor = "";
    this.layout = -1;
    this.canvas = make("canvas", { "aria-hidden": "true" });
    this.spacer = make("div", {});
    this.option = make("div", { id: "node-at-cursor", role: "option", class: "hidden", "aria-selected": "true" });
    this.element = make(
      "div",
      {
        class: "map", "data-key": "map", role: "listbox", tabindex: "0", "aria-label": "Map of the nodes: arrow keys move, Enter opens",
        scroll: () => this.soon(), keydown: (event) => this.onKey(event), focus: () => this.point(), blur: () => this.leave(),
        mousemove: (event) => this.onMove(event), mouseleave: () => this.tip(""), click: (event) => this.onClick(event),
      },
      this.canvas, this.spacer, this.option,
    );
    this.pending = false;
    new ResizeObserver(() => this.update()).observe(this.element);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.update());
  }

  /** Show what the store has now. */
  update() {
    this.colors = palette();
    const width = this.element.clientWidth;
    const version = this.only ? this.store.version : ""; // a node's letter changes more often than its place
    const key = [this.store.layout, this.size, width, this.only, version].join("/");
    if (width > 0 && key !== this.layout) {
      this.layout = key;
      this.arrangement = arranged(this.store, SIZES[this.size], width, this.only);
      this.fit(this.arrangement.height + BORDER);
      const height = Math.max(0, this.arrangement.height - this.element.clientHeight);
      this.spacer.style.height = `${height}px`;
      if (!this.arrangement.tiles.has(this.cursor)) this.cursor = this.arrangement.order[0] ?? "";
    }
    this.tell();
    this.soon();
  }

  /** Show a small map as a whole: nothing of it is below an edge, and nothing empty is below it. */
  fit(height) {
    this.element.style.maxHeight = `${height}px`;
    this.element.style.flexBasis = height < HIGHEST ? `${height}px` : "";
  }

  /** Choose the size of a node. */
  resize(size) {
    this.size = size;
    this.update();
    this.reveal();
  }

  /** Show the nodes with this letter, or all nodes. */
  show(only) {
    this.only = only;
    this.element.scrollTop = 0;
    this.update();
  }

  soon() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      this.paint();
    });
  }

  paint() {
    if (!this.arrangement || !this.element.isConnected) return;
    const [width, height] = [this.element.clientWidth, this.element.clientHeight];
    const scale = devicePixelRatio || 1;
    if (this.canvas.width !== Math.round(width * scale) || this.canvas.height !== Math.round(height * scale)) {
      this.canvas.width = Math.round(width * scale);
      this.canvas.height = Math.round(height * scale);
      this.canvas.style.width = `${width}px`;
      this.canvas.style.height = `${height}px`;
      this.spacer.style.height = `${Math.max(0, this.arrangement.height - height)}px`;
    }
    const pen = this.canvas.getContext("2d");
    const top = this.element.scrollTop;
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.fillStyle = this.colors.ground;
    pen.fillRect(0, 0, width, height);
    pen.translate(0, -top);
    for (const heading of this.arrangement.headings) {
      if (heading.y > top - 30 && heading.y < top + height) this.paintHeading(pen, heading);
    }
    for (const block of between(this.arrangement, top, top + height)) this.paintBlock(pen, block);
  }

  paintHeading(pen, { y, type }) {
    const row = this.store.get("types", type);
    const words = isolated(type || "unknown type");
    const text = row ? `${words}: ${shown(row.free)} of ${row.devices === null ? "?" : count(row.devices, row.unit)} free` : words;
    write(pen, text, 10, y + 17, this.colors.ink, "600 13px system-ui, sans-serif", "left");
  }

  paintBlock(pen, block) {
    if (block.server) {
      pen.strokeStyle = this.colors.quiet;
      pen.lineWidth = 1;
      pen.strokeRect(block.x + 0.5, block.y + 0.5, block.w - 1, block.h - 1);
    }
    for (const blockLink of block.links) this.paintLink(pen, blockLink);
    for (const gap of block.gaps) this.paintGap(pen, gap);
    for (const node of block.nodes) if (!node.missing) this.paintTile(pen, node.name);
    for (const blockLink of block.links) if (blockLink.up === false) this.paintCross(pen, blockLink);
  }

  /** Return the centers of the nodes of a link, or null. */
  centers({ ends }) {
    const tiles = ends.map((node) => this.arrangement.tiles.get(node));
    return tiles.every(Boolean) ? tiles.map((tile) => [tile.x + tile.w / 2, tile.y + tile.h / 2]) : null;
  }

  /** Draw a link between two nodes: a line, dashes where its state is unknown. */
  paintLink(pen, { ends, up }) {
    const centers = this.centers({ ends });
    if (!centers) return;
    const [[x1, y1], [x2, y2]] = centers;
    pen.strokeStyle = up === false ? this.colors.faulty : this.colors.quiet;
    pen.lineWidth = up === false ? 3 : 1.5;
    pen.setLineDash(up === null ? [2, 2] : []);
    pen.beginPath();
    pen.moveTo(x1, y1);
    pen.lineTo(x2, y2);
    pen.stroke();
    pen.setLineDash([]);
  }

  /** Draw the place of a node that an UltraServer lacks. */
  paintGap(pen, { x, y, w, h }) {
    pen.fillStyle = this.colors.ground;
    pen.fillRect(x, y, w, h);
    pen.strokeStyle = this.colors.faulty;
    pen.lineWidth = 1.5;
    pen.setLineDash([4, 3]);
    pen.strokeRect(x + 0.5, y + 0.5, w - 1, h - 1);
    pen.setLineDash([]);
    const [word, size] = SIZES[this.size].tile ? ["-", 11] : [fitted(pen, "missing", w, 10), 10];
    write(pen, word, x + w / 2, y + h / 2 + 4, this.colors.ink, `600 ${size}px system-ui, sans-serif`);
  }

  /** Draw a cross over a link that is down, in the gap between its nodes. */
  paintCross(pen, { ends }) {
    const centers = this.centers({ ends });
    if (!centers) return;
    const [[x1, y1], [x2, y2]] = centers;
    const [x, y] = [(x1 + x2) / 2, (y1 + y2) / 2];
    pen.fillStyle = this.colors.ground;
    pen.beginPath();
    pen.arc(x, y, SIZES[this.size].between / 2, 0, 2 * Math.PI);
    pen.fill();
    cross(pen, x - 5, y - 5, 10, this.colors.faulty, 2.5);
  }

  paintTile(pen, node) {
    const row = this.store.get("nodes", node);
    const tile = this.arrangement.tiles.get(node);
    if (!row || !tile) return;
    const size = SIZES[this.size];
    const [style] = STATES[row.letter];
    pen.fillStyle = this.colors[style];
    pen.fillRect(tile.x, tile.y, tile.w, tile.h);
    if (size.tile) {
      write(pen, row.letter, tile.x + tile.w / 2, tile.y + 13, this.colors[`${style}Ink`], "600 11px system-ui, sans-serif");
    } else {
      this.paintDevices(pen, node, row, tile, size, style);
    }
    const isCursor = node === this.cursor && document.activeElement === this.element;
    pen.strokeStyle = isCursor ? this.colors.focus : this.colors.quiet;
    pen.lineWidth = isCursor ? 3 : 1;
    pen.strokeRect(tile.x + 0.5, tile.y + 0.5, tile.w - 1, tile.h - 1);
  }

  paintDevices(pen, node, row, tile, size, style) {
    const ink = this.colors[`${style}Ink`];
    const font = `600 ${size.head - 3}px system-ui, sans-serif`;
    write(pen, row.letter, tile.x + size.head / 2 + 1, tile.y + size.head - 3, ink, font);
    const small = size.head > 15 ? 11 : 10;
    // A node that is published as a whole has no number of free devices.
    const number = row.devices > 1 ? `${row.free}/${row.devices}` : "";
    write(pen, number, tile.x + tile.w - 3, tile.y + size.head - 3, ink, `${small}px system-ui, sans-serif`, "right");
    const shape = this.store.get("shapes", row.shape);
    const left = Math.round(tile.x + (tile.w - (shape?.columns ?? row.marks.length) * size.device) / 2) + 0.5;
    const top = tile.y + size.head + size.name + 2.5;
    pen.fillStyle = this.colors.ground;
    pen.fillRect(tile.x + 1, tile.y + size.head, tile.w - 2, tile.h - size.head - 1);
    const label = isolated(fitted(pen, short(node), tile.w - 4, small));
    write(pen, label, tile.x + tile.w / 2, tile.y + size.head + small, this.colors.ink, `${small}px system-ui, sans-serif`);
    for (let at = 0; at < row.marks.length; at += 1) {
      const place = shape?.places[at] ?? [at, 0];
      this.paintDevice(pen, row.marks[at], left + place[0] * size.device, top + place[1] * size.device, size.device - 1);
    }
  }

  paintDevice(pen, mark, x, y, side) {
    const [style] = MARKS[mark] ?? MARKS["#"];
    pen.fillStyle = this.colors[style];
    pen.fillRect(x, y, side, side);
    if (style === "free" || style === "closed") {
      pen.strokeStyle = this.colors.edge;
      pen.lineWidth = 1;
      pen.strokeRect(x + 0.5, y + 0.5, side - 1, side - 1);
    } else if (style === "faulty") {
      cross(pen, x, y, side, this.colors.faultyInk);
    } else if (style === "reserved") {
      pen.fillStyle = this.colors.reservedInk;
      pen.fillRect(x + side / 2 - 1, y + side / 2 - 1, 2, 2);
    }
  }

  onKey(event) {
    if (event.key === "Enter" && this.cursor) location.hash = link("node", this.cursor);
    if (!KEYS.includes(event.key) || !this.arrangement) return;
    event.preventDefault();
    this.cursor = neighbor(this.arrangement, this.cursor, event.key);
    this.reveal();
    this.tell();
    this.point();
  }

  /** Show the name of the node at the cursor, for those who use the keyboard. */
  point() {
    const tile = this.arrangement?.tiles.get(this.cursor);
    if (!tile || !this.element.matches(":focus-visible")) return;
    const box = this.element.getBoundingClientRect();
    this.tip(this.cursor, box.left + tile.x, box.top + tile.y + tile.h - this.element.scrollTop);
    this.soon();
  }

  leave() {
    this.tip("");
    this.soon();
  }

  /** Scroll so that the node at the cursor is seen. */
  reveal() {
    const tile = this.arrangement?.tiles.get(this.cursor);
    if (!tile) return;
    const height = this.element.clientHeight;
    if (tile.y < this.element.scrollTop) this.element.scrollTop = tile.y - 30;
    if (tile.y + tile.h > this.element.scrollTop + height) this.element.scrollTop = tile.y + tile.h - height + 10;
  }

  /** Put the node at the cursor into words. */
  tell() {
    const row = this.store.get("nodes", this.cursor);
    this.element.toggleAttribute("aria-activedescendant", false);
    if (!row || !this.arrangement) return;
    this.element.setAttribute("aria-activedescendant", this.option.id);
    this.option.setAttribute("aria-setsize", String(this.arrangement.order.length));
    this.option.setAttribute("aria-posinset", String(this.arrangement.order.indexOf(this.cursor) + 1));
    show(this.option, description(this.cursor, row));
  }

  at(event) {
    const box = this.element.getBoundingClientRect();
    return this.arrangement ? nodeAt(this.arrangement, event.clientX - box.left, event.clientY - box.top + this.element.scrollTop) : "";
  }

  onClick(event) {
    const node = this.at(event);
    if (!node) return;
    this.cursor = node; // which Back returns to
    location.hash = link("node", node);
  }

  onMove(event) {
    this.tip(this.at(event), event.clientX + 14, event.clientY + 10);
  }

  tip(node, x, y) {
    const box = document.getElementById("tip");
    const row = node && this.store.get("nodes", node);
    this.element.style.cursor = row ? "pointer" : "";
    box.hidden = !row;
    if (!row) return;
    show(box, description(node, row));
    box.style.left = `${Math.max(4, Math.min(x, innerWidth - box.offsetWidth - 8))}px`;
    box.style.top = `${Math.max(4, Math.min(y + 4, innerHeight - box.offsetHeight - 8))}px`;
  }
}

function description(node, row) {
  const devices = row.devices > 1 ? `, ${row.free} of ${count(row.devices, "device")} free` : "";
  const server = row.server ? [", UltraServer ", name(row.server), `, node ${row.position}`] : [];
  return [make("p", {}, name(node), ": ", name(row.state)), make("p", {}, name(row.type || "unknown type"), devices, server)];
}

function write(pen, text, x, y, color, font, align = "center") {
  pen.fillStyle = color;
  pen.font = font;
  pen.textAlign = align;
  pen.fillText(text, x, y);
}

/** Return a text that fits a width, cut in its middle if it must be: both ends tell nodes apart. */
function fitted(pen, text, width, size) {
  pen.font = `${size}px system-ui, sans-serif`;
  const wide = pen.measureText(text).width;
  if (wide <= width) return text;
  const half = Math.floor((text.length * width) / wide / 2) - 1;
  return half > 0 ? `${text.slice(0, half)}…${text.slice(-half)}` : "";
}

function cross(pen, x, y, side, color, wide = 1.2) {
  pen.strokeStyle = color;
  pen.lineWidth = wide;
  pen.beginPath();
  pen.moveTo(x + 1, y + 1);
  pen.lineTo(x + side - 1, y + side - 1);
  pen.moveTo(x + side - 1, y + 1);
  pen.lineTo(x + 1, y + side - 1);
  pen.stroke();
}
