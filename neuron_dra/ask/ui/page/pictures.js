// Pictures of the devices of one node, with their links.

import { draw } from "./dom.js";
import { MARKS } from "./states.js";

/** Return the picture of a node: `cells` are letters, as `topology` has them, marks of states, and words. */
export function torus(shape, cells, label, side = 56, step = 84) {
  const margin = shape.switched ? 8 : 20;
  const wide = (shape.columns - 1) * step + side + 2 * margin;
  const high = (shape.rows - 1) * step + side + 2 * margin + (shape.switched ? 14 : 0);
  const at = shape.places.map(([x, y]) => [margin + x * step, margin + y * step]);
  const links = shape.links.map(([start, end]) => wire(at[start], at[end], side, step, shape.rows));
  if (shape.switched) links.push(line([margin, high - 8], [wide - margin, high - 8]));
  const devices = cells.map(([letter, mark, title], number) => device(letter, mark, title, number, at[number], side));
  return draw("svg", { viewBox: `0 0 ${wide} ${high}`, width: wide, height: high, role: "img", "aria-label": label }, links, devices);
}

function device(letter, mark, title, number, [x, y], side) {
  const style = styleOf(letter, mark);
  const parts = [
    draw("title", {}, `device ${number}: ${title}`),
    draw("rect", { class: `cell ${style}`, x, y, width: side, height: side, rx: 3 }),
  ];
  if (side >= 40) {
    parts.push(draw("text", { class: style, x: x + side / 2, y: y + side / 2 + 1 }, letter));
    parts.push(draw("text", { class: `small ${style}`, x: x + side / 2, y: y + side - 7 }, String(number)));
  }
  return draw("g", {}, parts);
}

/** Return the class of a device, which gives it the color of its state. Two shades of it alternate between holders. */
export function styleOf(letter, mark) {
  const [style] = MARKS[mark] ?? MARKS["#"];
  return style === "held" && letter.codePointAt(0) % 2 === 0 ? "held other" : style;
}

/** Return one link; one that wraps around is two stubs. */
function wire([x1, y1], [x2, y2], side, step, rows) {
  const half = side / 2;
  const [start, end] = [[x1 + half, y1 + half], [x2 + half, y2 + half]];
  if (Math.abs(x1 - x2) + Math.abs(y1 - y2) <= step * 1.01 || rows === 2) return [line(start, end)];
  const [dx, dy] = y1 === y2 ? [half + 14, 0] : [0, half + 14];
  return [line(start, [start[0] - dx, start[1] - dy]), line(end, [end[0] + dx, end[1] + dy])];
}

function line([x1, y1], [x2, y2]) {
  return draw("line", { class: "wire", x1, y1, x2, y2 });
}
