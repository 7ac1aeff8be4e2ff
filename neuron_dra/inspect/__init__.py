"""Shows and explains a cluster: `status`, `topology`, `why` and `simulate`, from a kubeconfig or from a file."""
