"""`neuron-dra inspect`: the state of the plugin on this node."""
