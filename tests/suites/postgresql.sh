# What suites with a PostgreSQL of their own share. No port is opened: the socket is in $SUITE_SCRATCH.
pg=$(compgen -G '/usr/lib/postgresql/*/bin' | sort -V | tail -n 1)
connect=(-h "$SUITE_SCRATCH" -U owner)

need_postgresql() {
    [ -x "$pg/pg_amcheck" ] || { skip all "postgresql is missing; tests/suites/setup installs it"; exit 0; }
    mkdir pg
    # The server refuses to run as root.
    [ "$(id -u)" -ne 0 ] || chown 65534:65534 pg
    chmod 700 pg
}

as_owner() {
    if [ "$(id -u)" -eq 0 ]; then as_nobody "$@"; else "$@"; fi
}

start() {
    as_owner "$pg/pg_ctl" -s -w -t 100 -D "$PWD/pg" -l "$SUITE_SCRATCH/server.log" \
        -o "-c listen_addresses='' -c unix_socket_directories='$SUITE_SCRATCH' -c max_wal_size=64MB -c wal_consistency_checking=heap" start ||
        { tail -n 20 "$SUITE_SCRATCH/server.log"; return 1; }
}

stop() { as_owner "$pg/pg_ctl" -s -w -D "$PWD/pg" -m fast stop; }

stop_at_once() { as_owner "$pg/pg_ctl" -s -w -D "$PWD/pg" -m immediate stop; }

sql() { printf '%s;\n' "${1//; /$';\n'}" | as_owner "$pg/psql" "${connect[@]}" -qAtX -v ON_ERROR_STOP=1 bench; }

# What pgbench moves is neither lost nor doubled.
consistent() {
    [ "$(sql 'SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(bbalance) FROM pgbench_branches)
        AND (SELECT sum(bbalance) FROM pgbench_branches) = (SELECT sum(tbalance) FROM pgbench_tellers)
        AND (SELECT sum(tbalance) FROM pgbench_tellers) = (SELECT coalesce(sum(delta), 0) FROM pgbench_history)')" = t ]
}

amcheck() { as_owner "$pg/pg_amcheck" "${connect[@]}" --install-missing --heapallindexed --parent-check bench; }
