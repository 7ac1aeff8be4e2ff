"""Files that are written from the code."""
