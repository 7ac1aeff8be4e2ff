"""`neuron-dra why`: the cause for which a pod, claim, node or workload waits, and the changes that help."""
