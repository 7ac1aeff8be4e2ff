"""The plugin's gRPC servers, with liveness, reflection and the NodeInspector."""
