# Libraries against real servers, which the tests start on 127.0.0.1 in folders of their own, and in simulated runs. Sourced by run.

# What needs the libraries beside tests/libraries.
SIMULATED=(tests/virtual/test_programs.py tests/testing/test_testing_libraries.py tests/testing/test_testing_clients.py tests/testing/test_testing_threads_on_nodes.py)

# services NAME...: tests/libraries, where these servers must be there (tests/libraries/services.py has their names).
services() {
    local tree=$SCRATCH/services
    step "libraries against real servers: $*"
    if [ ! -d "$tree" ]; then
        find_newest
        install_editable "$NEWEST" "$tree"
        (cd "$tree" && .venv/bin/python -m pip install -qq --group libraries)
    fi
    PYFIBER_SERVICES_REQUIRED=$* run_pytest "$tree" tests/libraries "${SIMULATED[@]}"
}

services_quick() {
    need redis-server postgresql
    services redis postgres
}

services_full() {
    need redis-server postgresql mariadb-server openssh-server
    services redis postgres mariadb sshd
}
