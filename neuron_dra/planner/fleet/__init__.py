"""What a decision reads: the fleet, indexed, and what is reserved of it. Pure: no I/O, no clock."""
