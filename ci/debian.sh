# shellcheck shell=bash
# Packages of another Debian release, unpacked beside the machine's own: sourced by scripts of ci/, installs nothing.
#
#   . ci/debian.sh
#   debian_unpack SUITE APT FOLDER PACKAGE...                packages with all that they depend on
#   debian_unpack_only SUITE APT FOLDER PATTERN PACKAGE...   of those, the packages whose names match the pattern
#
# APT is a scratch folder for lists and archives of that release. A second call with the same APT downloads no list again.
# `debian_architectures` names the architectures of packages, the first one for packages that name none (`gcc`, `gcc:arm64`);
# without it they are those of this machine.

# The mirror of Debian that this machine's own apt uses.
debian_mirror() {
    # shellcheck disable=SC2016 # apt replaces $(REPO_URI)
    apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
        grep -m 1 -E '/debian/?$' || true
}

# The lines of that configuration about architectures.
debian_architectures_conf() {
    [[ -n ${debian_architectures:-} ]] || return 0
    echo "APT::Architecture \"${debian_architectures%% *}\";"
    # shellcheck disable=SC2086 # one word each
    echo "APT::Architectures { $(printf '"%s"; ' $debian_architectures)};"
}

# Writes the configuration of an apt that knows one release only and believes that nothing is installed.
debian_apt() {
    local suite=$1 apt=$2 uri
    if [[ ! -e $apt/apt.conf ]]; then
        uri=$(debian_mirror)
        [[ -n $uri ]] || return 1
        mkdir -p "$apt"/{lists/partial,cache/archives/partial,etc/preferences.d,etc/sources.list.d,etc/apt.conf.d,log}
        echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $uri $suite main" >"$apt/etc/sources.list"
        : >"$apt/status"
        cat >"$apt/apt.conf.new" <<CONF
Dir::State "$apt";
Dir::State::lists "$apt/lists";
Dir::State::status "$apt/status";
Dir::Cache "$apt/cache";
Dir::Etc "$apt/etc";
Dir::Log "$apt/log";
Acquire::Languages "none";
Acquire::Check-Valid-Until "false";
Acquire::Retries "2";
APT::Install-Recommends "false";
APT::Sandbox::User "";
Debug::NoLocking "true";
$(debian_architectures_conf)
CONF
        APT_CONFIG=$apt/apt.conf.new timeout 600 apt-get -qq update </dev/null || return 1
        mv "$apt/apt.conf.new" "$apt/apt.conf"
    fi
    echo "$apt/apt.conf"
}

debian_unpack() (
    local suite=$1 apt=$2 into=$3 package
    shift 3
    APT_CONFIG=$(debian_apt "$suite" "$apt") || return 1
    export APT_CONFIG
    mkdir -p "$into"
    rm -f "$apt"/cache/archives/*.deb
    timeout 600 apt-get -qq -y --download-only install "$@" </dev/null || return 1
    for package in "$apt"/cache/archives/*.deb; do
        dpkg-deb -x "$package" "$into" || return 1
    done
)

debian_unpack_only() (
    local suite=$1 apt=$2 into=$3 pattern=$4 packages package
    shift 4
    APT_CONFIG=$(debian_apt "$suite" "$apt") || return 1
    export APT_CONFIG
    mkdir -p "$into" "$apt/only"
    rm -f "$apt"/only/*.deb
    mapfile -t packages < <(apt-get -qq -s install "$@" </dev/null | awk '/^Inst/ { print $2 }' | grep -E "$pattern")
    ((${#packages[@]})) || return 1
    (cd "$apt/only" && timeout 600 apt-get -qq download "${packages[@]}" </dev/null) || return 1
    for package in "$apt"/only/*.deb; do
        dpkg-deb -x "$package" "$into" || return 1
    done
)
