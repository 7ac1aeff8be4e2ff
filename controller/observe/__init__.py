"""The state of the cluster: watched, decoded, and grouped into UltraServers."""
