"""The cluster side: UltraServers and the workloads that reserve them."""
