"""What people ask of a cluster, a node or a manifest, and the commands that answer: a folder for each question."""
