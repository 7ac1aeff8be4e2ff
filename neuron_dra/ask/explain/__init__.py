"""`neuron-dra explain`: what an attribute, a field, a condition or a reason means."""
