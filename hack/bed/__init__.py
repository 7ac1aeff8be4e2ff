"""The test bed: real Kubernetes components on one machine.

    cli           the commands
    build         the programs, from pinned Go modules, cached outside the checkout
    packages      the Debian packages that are needed
    oci           OCI image layouts: write, read, check
    images        small container images, written by hand
    plugin_image  the driver's own image, built without a registry
    state         the record of what is started, on disk before it starts
    processes     start, find and end processes
    network       the network namespace
    pki           certificates, tokens and kubeconfig files
    controlplane  etcd, API server, scheduler, controller manager
    cgroups       one cgroup per node
    node          containerd and kubelet of one node
    mounts        the mount namespace of one node
    hardware      the simulated Neuron devices of one node
    controllers   LeaderWorkerSet and JobSet, if they are wanted
    dns           CoreDNS, if it is wanted
    driver        the driver: as a process per node, or as the DaemonSet
    faults        break and repair
    parts         one test bed: its layout, its state on disk, its servers and nodes
    lifecycle     up and down: the order in which parts start and end
    real_cluster  a test bed that runs, for tests and for chaos
    deployed      the driver and the controller on it, as pods

The commands use the standard library only, so that they run before anything is installed.
"""
