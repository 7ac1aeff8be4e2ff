"""Programs for the people who work on the project; none of them is installed."""
