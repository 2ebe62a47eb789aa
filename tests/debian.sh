# What tests/setup, tests/e2e/setup and tests/e2e/build-image take from Debian. To be sourced.

# tail_of LOG [LINES]: the end of what a failed command said, without the addresses of the registries that it asked.
tail_of() {
    tail -n "${2:-5}" "$1" |
        sed -E 's#[a-zA-Z][a-zA-Z0-9+.-]*://[^ ]*#(address)#g; s#([a-zA-Z0-9-]+\.)+[a-zA-Z]{2,}(:[0-9]+)?/[^ ]*#(address)#g'
}

# absent PROGRAM=PACKAGE…: the packages whose program is not there, a line each.
absent() {
    local pair
    for pair; do command -v "${pair%%=*}" >/dev/null || printf '%s\n' "${pair#*=}"; done
}

# apt starts the services of what it installs; a policy that says no keeps them off until allow_services.
deny_services() {
    [ -e /usr/sbin/policy-rc.d ] && return
    policy=/usr/sbin/policy-rc.d
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
}

allow_services() { [ -z "${policy:-}" ] || rm -f "$policy"; }

# apt_install PACKAGE…: as root.
apt_install() {
    deny_services
    export DEBIAN_FRONTEND=noninteractive
    apt-get update && apt-get install -y --no-install-recommends "$@"
}

# debian_root DIR SUITE [OPTION…]: the least that is a Debian, from where this machine's apt has its packages.
debian_root() {
    local dir=$1 suite=$2 mirror
    shift 2
    mirror=$({ grep -rhoP '^(URIs:|deb) *\K[a-z]+:\S+' /etc/apt/ --include='*.sources' --include='*.list' || true; } |
        head -n 1)
    debootstrap --variant=minbase "$@" "$suite" "$dir" ${mirror:+"$mirror"} &&
        rm -f "$dir"/var/cache/apt/archives/*.deb
}
