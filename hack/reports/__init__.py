"""The reports of the long suites and of the contract."""
