"""Reservations that Kueue admits: a Workload of Kueue for each, and what its admission means for the nodes."""
