"""Does `why` name the true cause? Seeded faults, judged by Kubernetes' own scheduler: `python -m tests.support.causes`."""
