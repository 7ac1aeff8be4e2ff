"""Wire formats: what users and Kubernetes write, decoded into core values."""
