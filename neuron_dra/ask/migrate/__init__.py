"""`neuron-dra migrate`: manifests written for the Neuron device plugin, rewritten for this driver."""
