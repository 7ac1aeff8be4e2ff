"""Plan UltraServers: from the objects of a cluster to what to write. Pure."""
