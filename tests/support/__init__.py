"""What only tests need: the virtual fleet, crash points, power cuts, faulty files."""
