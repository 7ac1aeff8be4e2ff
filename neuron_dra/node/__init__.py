"""The kubelet plugin: reads the hardware, serves the kubelet, publishes slices."""
