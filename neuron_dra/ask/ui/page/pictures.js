// Pictures of the devices of one node, with their links.

import { draw } from "./dom.js";
import { MARKS } from "./states.js";

const LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
const HOLDERS = 7; // colors of holders

/** Return the picture of a node: `cells` are marks with words, as `topology` has them. */
export function torus(shape, cells, label, side = 56, step = 84) {
  const margin = shape.switched ? 8 : 20;
  const wide = (shape.columns - 1) * step + side + 2 * margin;
  const high = (shape.rows - 1) * step + side + 2 * margin + (shape.switched ? 14 : 0);
  const at = shape.places.map(([x, y]) => [margin + x * step, margin + y * step]);
  const links = shape.links.map(([one, other]) => wire(at[one], at[other], side, step, shape.rows));
  if (shape.switched) links.push(line([margin, high - 8], [wide - margin, high - 8]));
  const devices = cells.map(([mark, title], number) => device(mark, title, number, at[number], side));
  return draw("svg", { viewBox: `0 0 ${wide} ${high}`, width: wide, height: high, role: "img", "aria-label": label }, links, devices);
}

function device(mark, title, number, [x, y], side) {
  const style = styleOf(mark);
  const ink = style === "free" ? "" : `on ${style}`;
  const parts = [
    draw("title", {}, `device ${number}: ${title}`),
    draw("rect", { class: `cell ${style}`, x, y, width: side, height: side, rx: 3 }),
  ];
  if (side >= 40) {
    parts.push(draw("text", { class: ink, x: x + side / 2, y: y + side / 2 + 1 }, mark));
    parts.push(draw("text", { class: `small ${ink}`, x: x + side / 2, y: y + side - 7 }, String(number)));
  }
  return draw("g", {}, parts);
}

/** Return the class of a mark, which gives it its color: that of its meaning, or of its holder. */
export function styleOf(mark) {
  if (Object.hasOwn(MARKS, mark)) return MARKS[mark][0];
  const place = LETTERS.indexOf(mark);
  return place < 0 ? "closed" : `h${place % HOLDERS}`;
}

/** Return one link; one that wraps around is two stubs. */
function wire([x1, y1], [x2, y2], side, step, rows) {
  const half = side / 2;
  const [one, other] = [[x1 + half, y1 + half], [x2 + half, y2 + half]];
  if (Math.abs(x1 - x2) + Math.abs(y1 - y2) <= step * 1.01 || rows === 2) return [line(one, other)];
  const [dx, dy] = y1 === y2 ? [half + 14, 0] : [0, half + 14];
  return [line(one, [one[0] - dx, one[1] - dy]), line(other, [other[0] + dx, other[1] + dy])];
}

function line([x1, y1], [x2, y2]) {
  return draw("line", { class: "wire", x1, y1, x2, y2 });
}
