# Sourced by scripts: a Python environment from the lock file, a Java for Spark, programs that tests drive, and the command that installs each.
# Owns .venv.  Needs only bash and Python 3.11+; everything else is fetched or asked for in one clear line.

# Nodes, commands and test workers start hundreds of times in a run of the tests: each would compile the project and the tests again.
unset PYTHONDONTWRITEBYTECODE

fail() {
  echo "$(basename "$0"): $*" >&2
  exit 1
}

find_python() {
  local candidate
  for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11 python3.14; do
    if [ -n "$candidate" ] && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null; then
      command -v "$candidate"
      return
    fi
  done
  fail "Python 3.11 or newer is needed (set PYTHON to its path)"
}

# prepare_python [run|spark]: makes or refreshes .venv with what nodes and clients need, and what Spark needs; without an argument with all that
# tests and tools need.  All versions are those of requirements.lock.  Quick when nothing changed.
prepare_python() {
  local part=${1:-all} stamp=.venv/.lock-stamp locked python parts first project size
  locked=$(cat requirements.lock pyproject.toml | cksum)
  if grep -qsx "$locked $part" "$stamp" && .venv/bin/python -c 'import dledger_wire' 2> /dev/null; then
    return
  fi
  case "$part" in
    run) parts=(run) first=(-c requirements.lock setuptools) project=. size="60 MB" ;;
    spark) parts=(run spark) first=(-c requirements.lock setuptools) project=".[spark]" size="560 MB, most of it Spark" ;;
    all) parts=(run spark all) first=(-r requirements.lock) project=. size="900 MB: Spark, and tools for developers" ;;
    *) fail "no part '$part' of the environment; there are run, spark, all" ;;
  esac
  python=$(find_python) || exit 1
  echo "making .venv by requirements.lock (the first time fetches some $size)" >&2
  if [ ! -x .venv/bin/pip ] && ! "$python" -m venv .venv; then
    rm -rf .venv
    fail "cannot make a virtual environment with $python (on Debian: apt-get install python3-venv)"
  fi
  .venv/bin/python -m pip install -q --disable-pip-version-check "${first[@]}" || fail "installing packages of requirements.lock failed"
  # compat: Spark finds data sources by listing sys.path, which the import hooks of a plain editable install do not show up in
  .venv/bin/python -m pip install -q --disable-pip-version-check -c requirements.lock --no-build-isolation --config-settings editable_mode=compat \
    -e "$project" || fail "installing the project failed"
  printf "$locked %s\n" "${parts[@]}" > "$stamp"
}

java_major() {
  "$1" -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' | head -1
}

# Spark 4.1 and newer run on Java 17 or newer.
find_java() {
  local candidate
  for candidate in "${JAVA_HOME:+$JAVA_HOME/bin/java}" java /usr/lib/jvm/*/bin/java; do
    if [ -n "$candidate" ] && command -v "$candidate" > /dev/null && [ "$(java_major "$candidate")" -ge 17 ] 2> /dev/null; then
      if [ "$candidate" != java ]; then
        JAVA_HOME=$(dirname "$(dirname "$candidate")")
        export JAVA_HOME
      fi
      return
    fi
  done
  return 1
}

prepare_java() {
  find_java || provide java || fail "Spark needs Java 17 or newer: $(install_command java), or set JAVA_HOME"
}

go_minor() {
  "$1" version 2> /dev/null | sed -n 's/^go version go1\.\([0-9]*\).*/\1/p'
}

# Tests build Go modules: a linearizability checker of others, and RocketMQ's Go client.
find_go() {
  local candidate
  for candidate in go /usr/local/go/bin/go /usr/lib/go-*/bin/go; do
    if command -v "$candidate" > /dev/null && [ "$(go_minor "$candidate")" -ge 23 ] 2> /dev/null; then
      if [ "$candidate" != go ]; then
        PATH=$(dirname "$candidate"):$PATH
        export PATH
      fi
      return
    fi
  done
  return 1
}

# has NEED: a command (chromium may be Google's Chrome), `java` or `go` new enough for us, or `root`.
has() {
  case "$1" in
    java) find_java ;;
    go) find_go ;;
    chromium) command -v chromium > /dev/null || command -v google-chrome > /dev/null ;;
    root) [ "$(id -u)" = 0 ] ;;
    *) command -v "$1" > /dev/null ;;
  esac
}

package_of() {
  case "$1" in
    java) echo openjdk-17-jre-headless ;;
    go) echo golang-go ;;
    cc) echo gcc ;;
    ip) echo iproute2 ;;
    nft) echo nftables ;;
    mvn) echo maven ;;
    ssh) echo openssh-client ;;
    *) echo "$1" ;;
  esac
}

# The line that gives this machine what it lacks.
install_command() {
  if command -v apt-get > /dev/null || ! command -v dnf > /dev/null; then
    echo "sudo apt-get install $(package_of "$1")"
  else
    case "$1" in
      java) echo "sudo dnf install java-17-openjdk-headless" ;;
      go) echo "sudo dnf install golang" ;;
      cc) echo "sudo dnf install gcc" ;;
      ip) echo "sudo dnf install iproute" ;;
      ssh) echo "sudo dnf install openssh-clients" ;;
      *) echo "sudo dnf install $(package_of "$1")" ;;
    esac
  fi
}

# provide NEED: install it where that may be done without a question.
provide() {
  local package
  if [ "$1" = root ] || ! can_install; then
    return 1
  fi
  echo "installing $(package_of "$1")" >&2
  for package in "$(package_of "$1")" $([ "$1" = java ] && echo openjdk-21-jre-headless default-jre-headless); do
    install_package "$package" && has "$1" && return
  done
  return 1
}

can_install() {
  [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null
}

# Tries once more with fresh lists: those of the image may name versions that are gone.
install_package() {
  apt_install "$1" && return
  apt-get update -q > /dev/null 2>&1 || return
  apt_install "$1"
}

apt_install() {
  DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "$1" > /dev/null 2>&1
}
