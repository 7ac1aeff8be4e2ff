"""Does `why` name the true cause? Seeded faults, judged by Kubernetes' scheduler: `python -m tests.support.causes`."""
