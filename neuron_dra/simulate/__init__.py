"""Which devices a claim would get: CEL selectors and the structured allocator, without a cluster."""
