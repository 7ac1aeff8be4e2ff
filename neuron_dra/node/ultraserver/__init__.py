"""The node's part in a reservation: watches its NeuronUltraServer, tags its slices, refuses other claims."""
