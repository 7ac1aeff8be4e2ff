"""What a decision says: states, reasons, actions, and the objects that are written. Pure: no I/O, no clock."""
