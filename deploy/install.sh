#!/bin/sh
# Install or update the driver from this clone's manifests, without Helm. docs/install.md describes it.
set -eu

usage() {
    cat <<'END'
usage: deploy/install.sh [--ultraserver | --connected-sets] [--no-wait] IMAGE

Apply the manifests of this clone with kubectl, in its current context, and wait until the driver runs on all nodes.

  IMAGE              image of the driver, such as registry.example.com/neuron/neuron-dra-driver:1.2.3
  --ultraserver      with the controller that reserves UltraServers, and its custom resource definitions
  --connected-sets   with resource limits for connected devices (Kubernetes 1.36 or later)
  --no-wait          do not wait
END
}

fail() {
    printf 'install.sh: %s\n' "$1" >&2
    exit 2
}

here=$(cd "$(dirname "$0")" && pwd)
manifests=$here/manifests image='' variant='' wait=yes
for word in "$@"; do
    case $word in
    -h | --help) usage && exit 0 ;;
    --ultraserver | --connected-sets)
        [ -z "$variant" ] || fail "--ultraserver and --connected-sets: give one of them"
        variant=${word#--}
        ;;
    --no-wait) wait=no ;;
    -*) fail "$word: unknown; --help lists the options" ;;
    *)
        [ -z "$image" ] || fail "two images, $image and $word: give one"
        image=$word
        ;;
    esac
done
[ -n "$image" ] || fail "name the driver's image: deploy/install.sh IMAGE (--help describes it)"
case $image in
*[!A-Za-z0-9._:/@-]*) fail "$image: not the name of an image" ;;
esac
command -v kubectl >/dev/null || fail "kubectl is not on the PATH"

in_namespace='--namespace neuron-dra-driver'
# An update without its option would leave the program of that option as it is, and its setting would be gone.
# shellcheck disable=SC2086
installed=$(kubectl get $in_namespace deployments --ignore-not-found -o name)
for part in ultraserver/neuron-ultraserver-controller connected-sets/neuron-dra-limits-watcher; do
    option=${part%/*} name=${part#*/}
    case $installed in
    *"/$name"*) [ "$variant" = "$option" ] || fail "$name is installed: give --$option, or delete that Deployment first" ;;
    esac
done

[ "$variant" != ultraserver ] || kubectl apply -f "$here/crds"
for file in "$manifests${variant:+/$variant}"/*.yaml; do
    sed "s#image: \"neuron-dra-driver:[^\"]*\"#image: \"$image\"#" "$file" | kubectl apply -f -
done
[ "$wait" = yes ] || exit 0

# shellcheck disable=SC2086
for workload in $(kubectl get $in_namespace daemonsets,deployments -o name); do
    kubectl rollout status $in_namespace "$workload" --timeout=5m || {
        echo "install.sh: $workload is not ready; kubectl $in_namespace describe pods shows the reason" >&2
        exit 1
    }
done
# shellcheck disable=SC2086
nodes=$(kubectl get $in_namespace daemonset neuron-dra-driver-kubelet-plugin -o jsonpath='{.status.desiredNumberScheduled}')
echo "The driver runs on ${nodes:-0} nodes."
