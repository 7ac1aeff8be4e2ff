#!/usr/bin/env bash
# `make test`: `make check`, the tests that need no cluster, and a smoke test on two test beds that run different releases of
# Kubernetes. The tests on the beds run beside the others, because most of their time is waiting.
# NEURON_DRA_REQUIRE_TESTBED=1 makes a skipped test bed a failure. `make night` runs everything else.
set -euo pipefail
cd "$(dirname "$0")/.."
BIN=.venv/bin
mkdir -p build
unset PYTHONDONTWRITEBYTECODE # each process would compile all tests: five seconds each

NEW=1.37 OLD=1.35 # the releases of the two test beds
NEW_BED=${NEURON_DRA_TESTBED_NAME:-neuron-dra-testbed} OLD_BED=${NEURON_DRA_TESTBED_NAME:-neuron-dra-testbed}-$OLD
ON_NEW=(env "NEURON_DRA_TESTBED_NAME=$NEW_BED" "NEURON_DRA_KUBERNETES=$NEW")
ON_OLD=(env "NEURON_DRA_TESTBED_NAME=$OLD_BED" "NEURON_DRA_KUBERNETES=$OLD" NEURON_DRA_TESTBED_STATE=)
# The contract of the scheduler and the policies against forged writes need features of the newest release.
new_smoke=(tests/bed/test_contract_scheduler.py tests/bed/test_forged_writes.py tests/bed/test_ultraserver_access.py)
old_smoke=(tests/bed/test_daemonset.py tests/bed/test_contract_pods.py tests/bed/test_ultraservers.py)
rights=tests/contract/test_rights.py # reads the audit logs of both beds

indented() { sed -u 's/^/   /'; } # without -u, sed keeps lines until it has 4 KiB
waited() { # a program in the background, which ends with this shell: bash obeys no signal before a program has ended
    trap 'kill $(jobs -p) 2>/dev/null' TERM
    "$@" &
    wait $!
}
keep_audit_log() { # keep_audit_log NAME PREFIX: of the test bed that commands with this prefix use
    mkdir -p build/audit
    local name=$1 where='from hack.bed import layout; print(layout.from_environment().audit_log)'
    cp "$("${@:2}" $BIN/python -c "$where")" "build/audit/$name.log"
}
bed_pytest() { # bed_pytest NAME ARGUMENTS
    waited $BIN/python -m pytest "${@:2}" -q -m "testbed and not long" -o "cache_dir=build/$1-cache" \
        --junitxml "build/results-testbed-$1.xml"
}
smoke_on_old() {
    hack/testbed/testbed up --kubernetes $OLD || return 1
    local failed=0
    bed_pytest $OLD "${old_smoke[@]}" || failed=1
    keep_audit_log $OLD env
    hack/testbed/testbed down || failed=1
    return $failed
}
smoke_on_new() {
    hack/testbed/testbed up --kubernetes $NEW || return 1
    local failed=0
    bed_pytest $NEW tests/contract "--ignore=$rights" "${new_smoke[@]}" || failed=1
    keep_audit_log $NEW env
    hack/testbed/testbed down || failed=1
    return $failed
}
in_bed() { # in_bed PREFIX... FUNCTION: with the variables of a test bed
    local function=${*: -1}
    (
        export "${@:2:$#-2}"
        $function
    )
}
smoke() { # both beds side by side; the older release is built while the first tests run on the newer one
    rm -rf build/audit
    hack/testbed/testbed build --kubernetes $NEW || return 1
    local new failed=0
    in_bed "${ON_NEW[@]}" smoke_on_new >build/testbed-$NEW.log 2>&1 &
    new=$!
    hack/testbed/testbed build --kubernetes $OLD || failed=1
    [ $failed = 1 ] || in_bed "${ON_OLD[@]}" smoke_on_old || failed=1
    echo "-- and on Kubernetes $NEW"
    tail -n +1 -f build/testbed-$NEW.log --pid=$new || true
    wait $new || failed=1
    echo "-- and the rights that the programs used on both"
    waited $BIN/python -m pytest $rights -m "testbed and not long" -q || failed=1
    return $failed
}

beds="" # the process that builds the test beds and runs the tests on them
heartbeat=""
take_down() { # the first bed is the last to go: it has raised the machine's limits
    [ -z "$heartbeat" ] || kill "$heartbeat" 2>/dev/null || true
    [ -n "$beds" ] || return 0
    kill "$beds" 2>/dev/null || true # `down` waits for a build that it has begun
    "${ON_OLD[@]}" hack/testbed/testbed down >build/testbed-down.log 2>&1 || true
    "${ON_NEW[@]}" hack/testbed/testbed down >>build/testbed-down.log 2>&1 || true
}
trap take_down EXIT

if [ "$(uname -s)" = Linux ] && [ "$(id -u)" = 0 ]; then
    # The nodes' images are a hundred thousand files: 6 GB.
    [ "$(awk '$1 == "MemAvailable:" {print $2}' /proc/meminfo)" -lt 16000000 ] || export NEURON_DRA_TESTBED_IN_MEMORY=1
    echo "== smoke tests on Kubernetes $NEW and $OLD: started beside the other tests (log: build/testbed-tests.log)"
    # The test beds go first: what waits for them takes longest. A machine that forbids this says so, and goes on.
    (renice -n -5 $BASHPID >/dev/null || true; smoke) >build/testbed-tests.log 2>&1 &
    beds=$!
fi
while sleep 25; do printf "\n   make test: %s s; test beds: %s\n" $SECONDS "$(tail -n 1 build/testbed-tests.log 2>/dev/null | tail -c 100)"; done &
heartbeat=$!

status=0
echo "== generated code is what proto/ says"
make --no-print-directory build/gen-venv/.installed
build/gen-venv/bin/python -m hack.generate.proto --check || status=1
echo "== make check"
make --no-print-directory check || status=1
echo "== tests without a cluster"
# A hundred thousand files of simulated nodes: in memory where it has room, because a disk takes minutes to remove them.
scratch=$(df --output=avail -k /dev/shm 2>/dev/null | tail -1 || true)
[ "${scratch:-0}" -gt 2000000 ] && [ -w /dev/shm ] && scratch=/dev/shm || scratch=${TMPDIR:-/tmp}
# Four workers on two cores, because half of the time is waiting.
# Files in their order, not the ones with most tests first: a slow file with few tests would run alone at the end.
TMPDIR=$scratch PYTEST_DEBUG_TEMPROOT=$scratch $BIN/python -m pytest tests --ignore=tests/oracle \
    -m "not testbed and not long${beds:+ and not tool}" -n 4 --dist loadfile --no-loadscope-reorder -q \
    --junitxml build/results-cluster-free.xml || status=1
$BIN/python -m hack.slow_tests build/results-cluster-free.xml

if [ -z "$beds" ]; then
    reason="the test bed needs Linux and root (network and mount namespaces); this is $(uname -s), uid $(id -u)"
    echo "== SKIPPED: tests on the test beds: $reason"
    if [ -n "${NEURON_DRA_REQUIRE_TESTBED:-}" ]; then
        echo "NEURON_DRA_REQUIRE_TESTBED is set: that is a failure"
        exit 1
    fi
    exit $status
fi

echo "== smoke tests on the test beds: real kube-apiserver, scheduler, kubelet, containerd of Kubernetes $NEW and $OLD"
tail -n +1 -f build/testbed-tests.log --pid=$beds | indented || true
wait $beds || status=1
echo "== tests that run a program which the test bed builds"
$BIN/python -m pytest tests --ignore=tests/oracle --ignore=tests/bed -m "tool and not testbed and not long" -q \
    --junitxml build/results-tools.xml || status=1
if [ $status = 0 ]; then echo "make test: everything passed in $SECONDS s"; else echo "make test: FAILED"; fi
exit $status
