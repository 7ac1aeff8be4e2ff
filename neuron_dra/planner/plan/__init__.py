"""Plans: the writes that a state of the cluster calls for. Pure: no I/O, no clock."""
