"""`neuron-dra uninstall-check`: which claims, pods and workloads still need the driver."""
