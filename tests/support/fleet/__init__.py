"""A virtual fleet: The virtual fleet: UltraServers, plugins, controllers and users in one process, with injected
failures.
"""
