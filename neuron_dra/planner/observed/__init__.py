"""What is observed of a cluster: its decoded objects, and the nodes grouped into UltraServers."""
