// The rows that the server has sent, and what became of workloads while this page was open.

const LONGEST_HISTORY = 200;

export class Store {
  constructor() {
    this.sections = new Map();
    this.version = 0;
    this.history = new Map(); // by workload: what changed, the newest last
    this.seen = null; // the time of the rows: when the cluster was last known to be so, or when the file was written
    this.layout = 0; // grows when nodes come, go, or change their place
  }

  /** Return the rows of a section. */
  all(section) {
    return this.sections.get(section) ?? new Map();
  }

  /** Return one row, or undefined. */
  get(section, key) {
    return this.sections.get(section)?.get(key);
  }

  /** Take a line of the server; return true if it changed something. */
  apply(line) {
    const before = this.sections;
    if (line.whole) this.sections = new Map();
    for (const [section, rows] of Object.entries(line.set)) this.put(before, section, rows);
    for (const [section, keys] of Object.entries(line.gone)) {
      for (const key of keys) this.sections.get(section)?.delete(key);
      if (section === "nodes" || section === "servers") this.layout += 1;
      if (section === "workloads") for (const key of keys) this.note(key, "is gone");
    }
    if (line.whole) this.layout += 1;
    const written = Date.parse(this.get("source", "written") ?? "");
    if (this.get("connection", "")?.state === "live") this.seen = new Date();
    else if (written) this.seen = new Date(written);
    const changed = this.version !== line.version || line.whole;
    this.version = line.version;
    return changed;
  }

  put(before, section, rows) {
    if (!this.sections.has(section)) this.sections.set(section, new Map());
    const into = this.sections.get(section);
    for (const [key, row] of Object.entries(rows)) {
      const last = before.get(section)?.get(key);
      if (section === "workloads" && before.size > 1) this.compare(key, last, row);
      if (moved(section, last, row)) this.layout += 1;
      into.set(key, row);
    }
  }

  compare(key, last, row) {
    for (const text of changes(last, row)) this.note(key, text);
  }

  note(key, text) {
    if (!this.history.has(key)) this.history.set(key, []);
    const list = this.history.get(key);
    list.push({ at: new Date(), text });
    if (list.length > LONGEST_HISTORY) list.shift();
  }
}

function moved(section, last, row) {
  if (section === "servers") return true;
  if (section !== "nodes") return false;
  return last === undefined || last.type !== row.type || last.server !== row.server || last.shape !== row.shape;
}

function* changes(last, row) {
  if (last === undefined) {
    yield `was created, ${row.state}`;
    return;
  }
  if (last.state !== row.state) yield `${last.state} → ${row.state}`;
  const lastByType = new Map(last.conditions.map((condition) => [condition.type, condition]));
  for (const condition of row.conditions) {
    const lastCondition = lastByType.get(condition.type);
    if (lastCondition?.status === condition.status && lastCondition?.reason === condition.reason) continue;
    yield `${condition.type} is ${condition.status}${condition.reason ? `: ${condition.reason}` : ""}`;
  }
  if (JSON.stringify(last.ranks) !== JSON.stringify(row.ranks)) {
    const nodes = row.ranks.map(([rank, node]) => `${rank} ${node}`).join(", ");
    yield `ranks: ${nodes || "none"}`;
  }
}
