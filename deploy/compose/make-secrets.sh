#!/bin/sh
# Makes the secrets of compose.yaml as files, once: what is there already stays as it is.
# Run it as root, so that the files can belong to the user of the image (10001).
#   deploy/compose/make-secrets.sh FOLDER
set -eu

folder=${1:?"give the folder of the secrets, such as deploy/compose/secrets"}
owner=${TINKEX_SECRETS_OWNER:-10001:10001}
umask 077
mkdir -p "$folder"

hex() { od -An -N"$1" -tx1 /dev/urandom | tr -d ' \n'; }
keep() {
    [ -e "$folder/$1" ] || printf '%s\n' "$2" >"$folder/$1"
    chmod 0400 "$folder/$1"
    [ "$(id -u)" -ne 0 ] || chown "$owner" "$folder/$1"
}

keep database-password "$(hex 24)"
keep database-url "postgresql://tinkex:$(cat "$folder/database-password")@database/tinkex"
keep bootstrap-key "tml-$(hex 32)"
keep signing-secret "$(hex 32)"
keep worker-token "$(hex 32)"
keep operator-token "$(hex 32)"
keep object-store-user tinkex
keep object-store-password "$(hex 24)"
