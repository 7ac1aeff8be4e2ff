"""Test support: the virtual fleet, crash points, power cuts, faulty files."""
