"""`neuron-dra topology`: where devices are, how they are linked, and who holds them."""
