"""`neuron-dra templates`: ResourceClaimTemplates for the usual jobs."""
