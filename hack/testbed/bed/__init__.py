"""The test bed: real Kubernetes components, started and stopped on one machine.

    cli           the commands
    build         the programs, from pinned Go modules, cached outside the checkout
    packages      the distribution's packages that are needed besides
    images        small container images, written by hand
    plugin_image  the driver's own image, built without a registry
    state         what was started, on disk, before it is started
    processes     start, find and end processes
    network       the network namespace
    pki           certificates, tokens and kubeconfig files
    controlplane  etcd, API server, scheduler, controller manager
    cgroups       one cgroup per node
    node          containerd and kubelet of one node
    mounts        the mount namespace that makes a node of them
    hardware      the simulated Neuron devices of one node
    driver        the driver: as a process per node, or as the DaemonSet
    faults        break and repair
    lifecycle     up and down: the order of all of this

Standard library only, so that it runs before anything is installed.
"""
