"""What the controller knows of the cluster: watched, decoded, grouped into UltraServers."""
