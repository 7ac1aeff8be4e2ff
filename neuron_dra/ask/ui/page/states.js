// Letters and words of the states of nodes and the marks of devices. Colors are in app.css; none is needed to read them.

export const STATES = {
  F: ["free", "free"],
  H: ["held", "held by pods"],
  R: ["reserved", "reserved for a workload"],
  "!": ["faulty", "unhealthy devices"],
  C: ["closed", "cordoned"],
  N: ["down", "not Ready"],
  S: ["silent", "publishes nothing"],
  "?": ["unknown", "unknown"],
};

export const MARKS = {
  "·": ["free", "free"],
  "#": ["held", "held"],
  R: ["reserved", "reserved"],
  "!": ["faulty", "unhealthy or not published"],
  "-": ["closed", "free, on a node that takes no pods"],
};

const NAMES = ["free", "held", "reserved", "faulty", "closed", "down", "silent", "unknown", "ink", "quiet", "ground", "edge", "focus"];

/** Return the colors of the page as it is now, light or dark: `held`, and `heldInk` for the letter on it. */
export function palette() {
  const style = getComputedStyle(document.documentElement);
  const colors = {};
  for (const colorName of NAMES) {
    colors[colorName] = style.getPropertyValue(`--${colorName}`).trim();
    colors[`${colorName}Ink`] = style.getPropertyValue(`--${colorName}-ink`).trim();
  }
  return colors;
}
