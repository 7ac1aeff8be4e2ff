"""`neuron-dra ui`: a page of the fleet in the browser, live from a cluster or from a file."""
