"""Wire formats: the objects that users and Kubernetes write, decoded into core's values."""
