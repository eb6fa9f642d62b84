// A checkpoint as the views name it.

/** The id of the run that made it. */
export function runOf(checkpoint) {
  return checkpoint.tinker_path.replace("tinker://", "").split("/")[0];
}

/** The name it was saved under. */
export function nameOf(checkpoint) {
  return checkpoint.tinker_path.split("/").slice(-1)[0];
}
