"""A virtual fleet: UltraServers, plugins, controllers and users in one process, and everything that goes wrong."""
