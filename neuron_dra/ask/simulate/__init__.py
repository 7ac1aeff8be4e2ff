"""`neuron-dra simulate`: what the pods of manifests would get."""
