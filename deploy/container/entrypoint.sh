#!/bin/sh
# Runs tinkex with the secrets that were mounted as files. For each variable below, NAME_FILE names a
# file whose content becomes NAME. `exec` makes tinkex process 1, so that it gets SIGTERM itself.
set -eu

for name in TINKEX_DATABASE_URL TINKEX_BOOTSTRAP_KEY AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY; do
    eval "file=\${${name}_FILE:-}"
    [ -n "$file" ] || continue
    if [ ! -r "$file" ]; then
        echo "tinkex-entrypoint: ${name}_FILE=$file cannot be read by user $(id -u)." >&2
        echo "Mount it there, readable by this user." >&2
        exit 2
    fi
    value=$(cat "$file")
    export "$name=$value"
    unset "${name}_FILE"
done

exec tinkex "$@"
