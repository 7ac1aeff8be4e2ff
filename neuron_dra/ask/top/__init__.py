"""`neuron-dra top`: how busy devices and cores are, by pod."""
