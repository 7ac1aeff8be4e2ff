"""The node's part in a reservation: watches its NeuronUltraServer, tags its slices, rejects other claims."""
