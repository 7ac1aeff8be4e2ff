"""Our scheduling beside Kubernetes' own allocator, scheduler, quotas and Kueue."""
