#!/usr/bin/env bash
# Run every test. The test bed is built beside the tests that need no cluster; then the tests on it run, on two beds.
# NEURON_DRA_LONG=1 adds the long ones; NEURON_DRA_REQUIRE_TESTBED=1 makes a skipped test bed a failure.
set -euo pipefail
cd "$(dirname "$0")/.."
BIN=.venv/bin
mkdir -p build

# Two test beds beside each other: most of the time a test waits. The second has the fleet of UltraServers.
FLEET="${NEURON_DRA_TESTBED_NAME:-neuron-dra-testbed}-fleet"
on_fleet() { NEURON_DRA_TESTBED_NAME="$FLEET" NEURON_DRA_TESTBED_STATE= "$@"; }
fleet="" builder=""
take_down() { # the first is the last to go: it has raised the machine's limits
    [ -z "$fleet" ] || kill "$fleet" 2>/dev/null || true
    [ -z "$builder" ] || kill "$builder" 2>/dev/null || true # what it has begun is waited for by `down`
    on_fleet hack/testbed/testbed down >build/testbed-down.log 2>&1 || true
    hack/testbed/testbed down >>build/testbed-down.log 2>&1 || true
}

can_bed=""
if [ "$(uname -s)" = Linux ] && [ "$(id -u)" = 0 ]; then
    can_bed=1
    echo "== test bed: built and started beside the other tests (minutes the first time; log: build/testbed-build.log)"
    trap take_down EXIT
    {
        hack/testbed/testbed build && hack/testbed/testbed up && on_fleet hack/testbed/testbed up
    } >build/testbed-build.log 2>&1 &
    builder=$!
fi

status=0
echo "== generated code is what proto/ says"
make --no-print-directory build/gen-venv/.installed
build/gen-venv/bin/python hack/gen_proto.py --check || status=1
echo "== format, lint, types, import contracts"
make --no-print-directory check || status=1
echo "== tests without a cluster"
marks="not testbed${can_bed:+ and not tool}" # what runs a program that the test bed builds waits for it
[ -n "${NEURON_DRA_LONG:-}" ] || marks="($marks) and not long"
# A hundred thousand files of simulated nodes: in memory where it has room, for a disk takes minutes to remove them.
scratch=$(df --output=avail -k /dev/shm 2>/dev/null | tail -1 || true)
[ "${scratch:-0}" -gt 2000000 ] && [ -w /dev/shm ] && scratch=/dev/shm || scratch=${TMPDIR:-/tmp}
PYTEST_DEBUG_TEMPROOT=$scratch $BIN/python -m pytest tests -m "$marks" -n 3 --dist loadfile -q \
    --junitxml build/results-cluster-free.xml || status=1

if [ -z "$can_bed" ]; then
    reason="the test bed needs Linux and root (network and mount namespaces); this is $(uname -s), uid $(id -u)"
    echo "== SKIPPED: tests on the test bed: $reason"
    if [ -n "${NEURON_DRA_REQUIRE_TESTBED:-}" ]; then
        echo "NEURON_DRA_REQUIRE_TESTBED is set: that is a failure"
        exit 1
    fi
    exit $status
fi

echo "== waiting for the test beds"
tail -n +1 -f build/testbed-build.log --pid=$builder | sed 's/^/   /' || true
if ! wait $builder; then
    echo "the test bed could not be built or started; the end of its log:"
    tail -40 build/testbed-build.log
    exit 1
fi
builder=""
marks="testbed or tool"
[ -n "${NEURON_DRA_LONG:-}" ] || marks="($marks) and not long"
echo "== tests on the test bed: real kube-apiserver, scheduler, kubelet, containerd; two of them, side by side"
fleet_tests=(tests/bed/test_ultraserver*.py tests/bed/test_contract_{pods,scheduler}.py
    tests/bed/test_{sick_devices,takeover}.py)
seeds=tests/contract/test_fleet_on_a_real_server.py # wants an API server with no controller and no nodes
on_fleet $BIN/python -m pytest "${fleet_tests[@]}" -m "$marks" -q -o cache_dir=build/fleet-cache \
    --junitxml build/results-testbed-fleet.xml >build/testbed-fleet.log 2>&1 &
fleet=$!
$BIN/python -m pytest tests "${fleet_tests[@]/#/--ignore=}" --ignore=$seeds -m "$marks" -q --junitxml build/results-testbed.xml || status=1
echo "== those on the fleet of UltraServers"
tail -n +1 -f build/testbed-fleet.log --pid=$fleet || true
wait $fleet || status=1
fleet=""
if [ -n "${NEURON_DRA_LONG:-}" ]; then
    echo "== the virtual fleet on a real API server; the deployed driver on Kubernetes 1.34"
    take_down
    $BIN/python -m pytest $seeds -q --junitxml build/results-seeds.xml || status=1
    take_down
    hack/testbed/testbed build --kubernetes 1.34
    NEURON_DRA_KUBERNETES=1.34 $BIN/python -m pytest tests/bed/test_daemonset.py tests/bed/test_contract_updates.py \
        tests/bed/test_takeover.py tests/bed/test_ultraservers.py -q || status=1
fi
if [ $status = 0 ]; then echo "make test: everything passed"; else echo "make test: FAILED"; fi
exit $status
