#!/usr/bin/env bash
# Run every test. Those on the two test beds run beside those that need no cluster, as most of their time is waiting.
# NEURON_DRA_LONG=1 adds the long ones; NEURON_DRA_REQUIRE_TESTBED=1 makes a skipped test bed a failure.
set -euo pipefail
cd "$(dirname "$0")/.."
BIN=.venv/bin
mkdir -p build
unset PYTHONDONTWRITEBYTECODE # each of five processes would compile all tests: five seconds each

FLEET="${NEURON_DRA_TESTBED_NAME:-neuron-dra-testbed}-fleet" # the second test bed has the fleet of UltraServers
fleet_bed=(env NEURON_DRA_TESTBED_NAME="$FLEET" NEURON_DRA_TESTBED_STATE=)
on_fleet() { "${fleet_bed[@]}" "$@"; }
fleet_tests=(tests/bed/test_ultraserver*.py tests/bed/test_contract_{pods,scheduler}.py
    tests/bed/test_{unhealthy_devices,takeover}.py)
rights=tests/contract/test_rights.py # reads the audit logs that are kept when the tests of both test beds have ended
seeds=tests/contract/test_fleet_on_a_real_server.py # wants an API server with no controller and no nodes
unless_long() { [ -n "${NEURON_DRA_LONG:-}" ] && echo "$1" || echo "($1) and not long"; }

indented() { sed -u 's/^/   /'; } # line by line: without -u, sed keeps them until it has 4 KiB

kept=build/audit # what programs requested on each test bed, for the test of their rights
keep_audit_log() { # keep_audit_log NAME PREFIX: of the test bed that commands with this prefix use
    mkdir -p $kept
    local name=$1 where='from hack.bed import layout; print(layout.from_environment().audit_log)'
    cp "$("${@:2}" $BIN/python -c "$where")" "$kept/$name.log"
}
waited() { # run a program in the background, which ends with this shell: bash obeys no signal before a program has ended
    trap 'kill $(jobs -p) 2>/dev/null' TERM
    "$@" &
    wait $!
}

beds="" # the process that builds the test beds and runs the tests on them
fleet_bed_tests() { # the tests on the fleet of UltraServers, and then, without nodes, those that need an API server only
    local failed=0
    waited "${fleet_bed[@]}" $BIN/python -m pytest "${fleet_tests[@]}" -m "($1) and nodes" -q \
        -o cache_dir=build/fleet-cache --junitxml build/results-testbed-fleet.xml || failed=1
    keep_audit_log fleet on_fleet
    # Ten idle nodes would take a fifth of a core from the other tests.
    on_fleet hack/testbed/testbed down && on_fleet hack/testbed/testbed up || failed=1
    echo "-- and those that need an API server, and no nodes"
    waited "${fleet_bed[@]}" $BIN/python -m pytest tests --ignore=$seeds --ignore=$rights -m "($1) and not nodes" -q \
        -o cache_dir=build/fleet-cache --junitxml build/results-testbed-servers.xml || failed=1
    keep_audit_log servers on_fleet
    on_fleet hack/testbed/testbed down || failed=1
    return $failed
}
bed_tests() {
    rm -rf $kept
    hack/testbed/testbed build && hack/testbed/testbed up && on_fleet hack/testbed/testbed up || {
        echo "the test beds could not be built or started"
        return 1
    }
    local marks fleet failed=0
    marks=$(unless_long "testbed or tool") # a tool is built by the test bed
    fleet_bed_tests "$marks" >build/testbed-fleet.log 2>&1 &
    fleet=$!
    waited $BIN/python -m pytest tests/bed "${fleet_tests[@]/#/--ignore=}" -m "($marks) and nodes" -q \
        -o cache_dir=build/main-cache --junitxml build/results-testbed.xml || failed=1
    keep_audit_log nodes env
    echo "-- and on the fleet of UltraServers"
    tail -n +1 -f build/testbed-fleet.log --pid=$fleet || true
    wait $fleet || failed=1
    echo "-- and the rights that the tests on both have used"
    $BIN/python -m pytest $rights -m testbed -q || failed=1
    take_down # idle, its nodes take a quarter of a core from the tests without a cluster
    return $failed
}
take_down() { # the first bed is the last to go: it has raised the machine's limits
    [ -z "$beds" ] || kill "$beds" 2>/dev/null || true # a build that it has begun is waited for by `down`
    on_fleet hack/testbed/testbed down >build/testbed-down.log 2>&1 || true
    hack/testbed/testbed down >>build/testbed-down.log 2>&1 || true
}

if [ "$(uname -s)" = Linux ] && [ "$(id -u)" = 0 ]; then
    # The nodes' images are a hundred thousand files, too: 6 GB.
    [ "$(awk '$1 == "MemAvailable:" {print $2}' /proc/meminfo)" -lt 16000000 ] || export NEURON_DRA_TESTBED_IN_MEMORY=1
    echo "== test beds: built and started, and their tests run, beside the others (log: build/testbed-tests.log)"
    trap take_down EXIT
    # The test beds go first: what waits for them takes longest. A machine that forbids this says so, and goes on.
    (renice -n -5 $BASHPID >/dev/null || true; bed_tests) >build/testbed-tests.log 2>&1 &
    beds=$!
fi

status=0
echo "== generated code is what proto/ says"
make --no-print-directory build/gen-venv/.installed
build/gen-venv/bin/python -m hack.generate.proto --check || status=1
echo "== format, lint, types, import contracts"
make --no-print-directory check || status=1
echo "== tests without a cluster"
marks=$(unless_long "not testbed${beds:+ and not tool}")
# A hundred thousand files of simulated nodes: in memory where it has room, for a disk takes minutes to remove them.
scratch=$(df --output=avail -k /dev/shm 2>/dev/null | tail -1 || true)
[ "${scratch:-0}" -gt 2000000 ] && [ -w /dev/shm ] && scratch=/dev/shm || scratch=${TMPDIR:-/tmp}
# Files in their order, not the ones with most tests first: a slow file with few tests would run alone at the end.
TMPDIR=$scratch PYTEST_DEBUG_TEMPROOT=$scratch $BIN/python -m pytest tests -m "$marks" -n 2 --dist loadfile \
    --no-loadscope-reorder -q --junitxml build/results-cluster-free.xml || status=1

if [ -z "$beds" ]; then
    reason="the test bed needs Linux and root (network and mount namespaces); this is $(uname -s), uid $(id -u)"
    echo "== SKIPPED: tests on the test bed: $reason"
    if [ -n "${NEURON_DRA_REQUIRE_TESTBED:-}" ]; then
        echo "NEURON_DRA_REQUIRE_TESTBED is set: that is a failure"
        exit 1
    fi
    exit $status
fi

echo "== tests on the test beds: real kube-apiserver, scheduler, kubelet, containerd; on two of them, side by side"
tail -n +1 -f build/testbed-tests.log --pid=$beds | indented || true
wait $beds || status=1
beds=""
if [ -n "${NEURON_DRA_LONG:-}" ]; then
    echo "== the virtual fleet on a real API server; the deployed driver on Kubernetes 1.34"
    take_down
    $BIN/python -m pytest $seeds -q --junitxml build/results-seeds.xml || status=1
    take_down
    hack/testbed/testbed build --kubernetes 1.34
    NEURON_DRA_KUBERNETES=1.34 $BIN/python -m pytest tests/bed/test_daemonset.py tests/bed/test_contract_updates.py \
        tests/bed/test_takeover.py tests/bed/test_ultraservers.py tests/bed/test_forged_writes.py -q || status=1
fi
if [ $status = 0 ]; then echo "make test: everything passed"; else echo "make test: FAILED"; fi
exit $status
