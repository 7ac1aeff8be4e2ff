// Each view has a link: a fragment of parts, such as #node/NAME.

/** Return the fragment of a view. */
export function link(...parts) {
  return `#${parts.map(encodeURIComponent).join("/")}`;
}

/** Return the parts of the fragment in the address. */
export function route() {
  try {
    const parts = location.hash.slice(1).split("/").map(decodeURIComponent);
    return parts[0] ? parts : ["fleet"];
  } catch {
    return ["fleet"]; // not a link of this page
  }
}
