"""The loop that plans and writes: one leader, guarded requests, back-off."""
