"""What probes and people reach: gRPC servers, liveness, reflection, the NodeInspector."""
