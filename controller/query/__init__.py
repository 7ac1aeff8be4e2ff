"""What people ask the controller: Plan and ListUltraServers over gRPC, `plan --snapshot`."""
