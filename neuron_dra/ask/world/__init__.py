"""A snapshot prepared for simulation: what pods demand, what nodes have, and what could not be read."""
