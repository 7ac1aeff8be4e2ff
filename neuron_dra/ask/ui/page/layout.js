// Where each node is on the map: UltraServers as blocks, the other nodes alone, by type and name. Nothing is drawn here.

import { sorted } from "./dom.js";

const GAP = 8;
const MARGIN = 10;
const HEADING = 26;

export const SIZES = {
  small: { device: 0, head: 0, name: 0, widest: 18, tile: 18, between: 8 },
  medium: { device: 9, head: 13, name: 12, widest: 86, tile: 0, between: 14 },
  large: { device: 18, head: 20, name: 15, widest: 120, tile: 0, between: 22 },
};
const LETTER = 6; // the width of a letter of a name, about

/** Return a node's name without its domain. */
export function short(node) {
  return node.split(".", 1)[0];
}

/** Return headings, blocks and tiles, from top to bottom, and the height of all; `only` is a letter, or empty for all. */
export function arranged(store, size, width, only = "") {
  const arrangement = { headings: [], blocks: [], tiles: new Map(), order: [], height: MARGIN };
  const longest = [...store.all("nodes").keys()].reduce((most, node) => Math.max(most, short(node).length), 0);
  const named = size.name ? Math.min(size.widest, longest * LETTER + 6) : 0;
  for (const [type, blocks] of byType(store, only)) {
    arrangement.headings.push({ y: arrangement.height, type });
    arrangement.height += HEADING;
    flow(arrangement, blocks, size, width, store, named);
    arrangement.height += GAP;
  }
  return arrangement;
}

function byType(store, only) {
  const types = new Map();
  const isShown = (node) => !only || store.get("nodes", node)?.letter === only;
  const add = (type, block) => {
    if (!types.has(type)) types.set(type, []);
    types.get(type).push(block);
  };
  const servers = store.all("servers");
  for (const server of sorted(servers.keys())) {
    const row = servers.get(server);
    if (!row.nodes.some((node) => isShown(node.name))) continue;
    add(row.type, { server, nodes: row.nodes, links: row.links });
  }
  const alone = [...store.all("nodes").entries()].filter(([node, row]) => !row.server && isShown(node)).map(([node]) => node);
  for (const node of sorted(alone)) {
    add(store.get("nodes", node).type, { server: "", nodes: [{ name: node, x: 0, y: 0, missing: false }], links: [] });
  }
  return sorted(types.keys()).map((type) => [type, types.get(type)]);
}

/** Put the blocks of a type in rows, each as high as its highest block. */
function flow(arrangement, blocks, size, width, store, named) {
  let x = MARGIN;
  let high = 0;
  for (const block of blocks) {
    const tile = tileOf(block, size, store, named);
    block.gaps = [];
    const columns = Math.max(...block.nodes.map((node) => node.x)) + 1;
    const rows = Math.max(...block.nodes.map((node) => node.y)) + 1;
    const pad = block.server ? 4 : 0;
    block.w = columns * tile.w + (columns - 1) * size.between + 2 * pad;
    block.h = rows * tile.h + (rows - 1) * size.between + 2 * pad;
    if (x > MARGIN && x + block.w > width - MARGIN) {
      x = MARGIN;
      arrangement.height += high + GAP;
      high = 0;
    }
    block.x = x;
    block.y = arrangement.height;
    for (const node of block.nodes) {
      const left = x + pad + node.x * (tile.w + size.between);
      const top = arrangement.height + pad + node.y * (tile.h + size.between);
      const place = { x: left, y: top, w: tile.w, h: tile.h };
      if (node.missing) {
        block.gaps.push(place);
        continue;
      }
      arrangement.tiles.set(node.name, place);
      arrangement.order.push(node.name);
    }
    arrangement.blocks.push(block);
    x += block.w + GAP;
    high = Math.max(high, block.h);
  }
  arrangement.height += high + GAP;
}

function tileOf(block, size, store, named) {
  if (size.tile) return { w: size.tile, h: size.tile };
  let [columns, rows] = [1, 1];
  for (const node of block.nodes) {
    const shape = store.get("shapes", store.get("nodes", node.name)?.shape);
    columns = Math.max(columns, shape?.columns ?? 1);
    rows = Math.max(rows, shape?.rows ?? 1);
  }
  return { w: Math.max(Math.max(columns, 4) * size.device + 5, named), h: rows * size.device + size.head + size.name + 5 };
}

/** Return the node at a point, or an empty text. */
export function nodeAt(arrangement, x, y) {
  for (const block of between(arrangement, y, y)) {
    for (const { name } of block.nodes) {
      const tile = arrangement.tiles.get(name);
      if (!tile) continue; // it is missing
      if (x >= tile.x && x < tile.x + tile.w && y >= tile.y && y < tile.y + tile.h) return name;
    }
  }
  return "";
}

/** Return the blocks that reach into a strip of the map. */
export function between(arrangement, top, bottom) {
  let [low, high] = [0, arrangement.blocks.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (arrangement.blocks[middle].y + tallest(arrangement) < top) low = middle + 1;
    else high = middle;
  }
  const blocks = [];
  for (let at = low; at < arrangement.blocks.length && arrangement.blocks[at].y <= bottom; at += 1) blocks.push(arrangement.blocks[at]);
  return blocks;
}

function tallest(arrangement) {
  arrangement.tallest ??= arrangement.blocks.reduce((most, block) => Math.max(most, block.h), 0);
  return arrangement.tallest;
}

/** Return the node to which a key leads from another one. */
export function neighbor(arrangement, from, key) {
  const at = arrangement.order.indexOf(from);
  if (at < 0) return arrangement.order[0] ?? "";
  if (key === "Home") return arrangement.order[0];
  if (key === "End") return arrangement.order.at(-1);
  const here = arrangement.tiles.get(from);
  let best = from;
  let least = Infinity;
  for (const name of arrangement.order) {
    const tile = arrangement.tiles.get(name);
    const distance = away(key, tile.x - here.x, tile.y - here.y);
    if (distance < least) [least, best] = [distance, name];
  }
  if (best === from && key === "ArrowRight") return arrangement.order[Math.min(at + 1, arrangement.order.length - 1)];
  if (best === from && key === "ArrowLeft") return arrangement.order[Math.max(at - 1, 0)];
  return best;
}

/** Return how far a tile is in the direction of a key; those that are not straight ahead are farther. */
function away(key, dx, dy) {
  if (key === "ArrowRight") return dx > 0 && dy === 0 ? dx : Infinity;
  if (key === "ArrowLeft") return dx < 0 && dy === 0 ? -dx : Infinity;
  const ahead = key === "ArrowDown" ? dy : -dy;
  return ahead > 0 ? ahead * 1000 + Math.abs(dx) : Infinity;
}
