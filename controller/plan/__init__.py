"""What to write, decided from what is known. Pure: no I/O, no clock."""
