"""`neuron-dra status`: the fleet on one screen."""
