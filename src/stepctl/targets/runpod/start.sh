#!/bin/sh
# The command of a pod's container: starts the watchdog before anything that may hang, then sshd, and keeps both alive.
# It never ends by itself, since the provider starts a container that ends again and again, and bills on. POSIX sh.
#
# Reads PUBLIC_KEY, STEPCTL_HOST_KEY, and what watchdog.sh reads. For tests: STEPCTL_{DIR,SHM,HOME,SBIN,ETC,SSH_PORT}.
set -f
umask 077
LC_ALL=C
PATH=${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}
export LC_ALL PATH
trap '' HUP PIPE
trap 'say "TERM: stays, until it is killed"' TERM

DIR=${STEPCTL_DIR:-/var/lib/stepctl}
HOME_DIR=${STEPCTL_HOME:-/root}
SBIN=${STEPCTL_SBIN:-/usr/local/sbin:/usr/sbin:/sbin}
ETC=${STEPCTL_ETC:-/etc}
PORT=${STEPCTL_SSH_PORT:-22}
# Nothing but the watchdog needs these.
KEY=${RUNPOD_API_KEY:-}
HOST_KEY=${STEPCTL_HOST_KEY:-}
unset RUNPOD_API_KEY STEPCTL_HOST_KEY HF_TOKEN HUGGING_FACE_HUB_TOKEN JUPYTER_PASSWORD
case ${STEPCTL_TICK:-} in
  [1-4] | [0-4].[0-9]*) NAP=$STEPCTL_TICK ;;
  *) NAP=5 ;;
esac

say() {
  printf 'stepctl-start: %s\n' "$*"
}

doze() {
  sleep "$1" || sleep 1
}

# NAME -> TOOL, its path; some shells have tools of their own, which `command -v` would find everywhere.
tool() {
  rest=$PATH:$SBIN:
  while [ -n "$rest" ]; do
    TOOL=${rest%%:*}/$1 rest=${rest#*:}
    [ -f "$TOOL" ] && [ -x "$TOOL" ] && return 0
  done
  TOOL=
  return 1
}

# FILE TEXT: write a line by rename.
note() {
  { printf '%s\n' "$2" >"$1.new" && mv -f "$1.new" "$1"; } 2>/dev/null
}

# What nothing can mend: the watchdog ends the pod for it at once.
broken() {
  say "NO TRAINING IS POSSIBLE HERE: $1"
  note "$DIR/broken" "$1"
}

count_starts() {
  starts=
  { read -r starts <"$DIR/starts"; } 2>/dev/null
  case $starts in '' | *[!0-9]* | ?????????*) starts=0 ;; esac
  starts=$((starts + 1))
  note "$DIR/starts" "$starts"
  up=
  { read -r up rest <"${STEPCTL_UPTIME:-/proc/uptime}"; } 2>/dev/null
  [ -s "$DIR/first" ] || note "$DIR/first" "${up%%.*}"
  say "start $starts of this container"
}

# ---------------------------------------------------------------- the watchdog

watchdog_text() {
  : # @WATCHDOG@
}

# The script is in a file whole, or in none: a full disk must not cost the guard.
start_watchdog() {
  for folder in "$DIR" "${STEPCTL_SHM:-/dev/shm}"; do
    { watchdog_text >"$folder/watchdog.new" && mv -f "$folder/watchdog.new" "$folder/watchdog.sh"; } 2>/dev/null
    [ ! -s "$folder/watchdog.sh" ] || break
    folder=
  done
  if [ -n "$folder" ]; then
    RUNPOD_API_KEY=$KEY sh "$folder/watchdog.sh" &
  else
    RUNPOD_API_KEY=$KEY sh -c "$(watchdog_text)" &
  fi
  GUARD=$!
}

# ---------------------------------------------------------------- sshd

# PACKAGES for apt, apk, and dnf, in three tries; false when none of them could be installed.
install() {
  for try in 1 2 3; do
    say "installs $1 (try $try)"
    if tool apt-get; then
      with_apt "$1" && return
    elif tool apk; then
      # shellcheck disable=SC2086
      "$TOOL" add --no-cache -q $2 && return
    elif tool dnf || tool microdnf || tool yum; then
      # shellcheck disable=SC2086
      "$TOOL" install -y -q $3 && return
    else
      broken "$4, and no package manager to install it with"
      return 1
    fi
    doze "$NAP"
  done
  say "$1 could not be installed"
  return 1
}

with_apt() {
  DEBIAN_FRONTEND=noninteractive
  export DEBIAN_FRONTEND
  set -- "$1" -o Acquire::Retries=2 -o Acquire::http::Timeout=30 -o DPkg::Lock::Timeout=60
  packages=$1
  shift
  # shellcheck disable=SC2086
  "$TOOL" "$@" update -qq && "$TOOL" "$@" install -y -qq --no-install-recommends $packages
}

# A way to speak HTTP; then the word of the watchdog that the provider hears this pod. Before that nobody is let in.
wait_for_provider() {
  tool curl || tool python3 || tool wget || tool python \
    || install 'curl ca-certificates' 'curl ca-certificates' 'curl ca-certificates' 'no curl, python3 or wget' || return
  [ -e "$DIR/reached" ] || say 'waits until the provider is heard: no login before that'
  until [ -e "$DIR/reached" ]; do doze "$NAP"; done
}

have_sshd() {
  tool ssh-keygen && KEYGEN=$TOOL && tool sshd && SSHD=$TOOL
}

let_client_in() {
  case ${PUBLIC_KEY:-} in
    ssh-* | ecdsa-* | sk-*) ;;
    *)
      broken 'PUBLIC_KEY is no public key: nobody could log in'
      return 1
      ;;
  esac
  mkdir -p "$HOME_DIR/.ssh" && chmod 700 "$HOME_DIR/.ssh" && note "$HOME_DIR/.ssh/authorized_keys" "$PUBLIC_KEY" \
    && chmod 600 "$HOME_DIR/.ssh/authorized_keys" || return
  unlock_root
}

# sshd lets nobody in whose password is locked, not even with a key.
unlock_root() {
  locked='' lines=''
  [ -f "$ETC/shadow" ] && while IFS= read -r line; do
    case $line in root:!*) locked=1 line="root:*:${line#root:*:}" ;; esac
    lines="$lines$line
"
  done <"$ETC/shadow"
  [ -z "$locked" ] || printf '%s' "$lines" >"$ETC/shadow"
}

# FILE -> PUBLIC, the public half of an ed25519 key; false for anything else.
public_half() {
  PUBLIC=$("$KEYGEN" -y -P '' -f "$1" 2>/dev/null) || return
  # shellcheck disable=SC2086
  set -- $PUBLIC
  PUBLIC="$1 $2"
  [ "$1" = ssh-ed25519 ]
}

# The key that the client gave; else the one that this container has, or makes, and prints for the client to read.
find_host_key() {
  case $HOST_KEY in
    # Nothing, or the name of a secret that was not filled in.
    '' | '{'*) ;;
    *)
      printf '%s' "$HOST_KEY" | base64 -d >"$DIR/host_key.new" 2>/dev/null
      if public_half "$DIR/host_key.new"; then
        mv -f "$DIR/host_key.new" "$DIR/host_key"
      else
        say 'STEPCTL_HOST_KEY is no ed25519 key in base64: this pod makes its own'
        rm -f "$DIR/host_key.new"
      fi
      ;;
  esac
  if ! public_half "$DIR/host_key"; then
    rm -f "$DIR/host_key"
    "$KEYGEN" -q -t ed25519 -N '' -C '' -f "$DIR/host_key" && public_half "$DIR/host_key" || return
  fi
  printf 'stepctl-host-key: %s\n' "$PUBLIC"
}

configure_sshd() {
  note "$DIR/sshd_config" "Port $PORT
HostKey $DIR/host_key
AuthorizedKeysFile $HOME_DIR/.ssh/authorized_keys
AuthenticationMethods publickey
PubkeyAuthentication yes
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitEmptyPasswords no
PermitRootLogin prohibit-password
UsePAM no
StrictModes no
DisableForwarding yes
PermitUserEnvironment no
UseDNS no
PrintMotd no
PrintLastLog no
LoginGraceTime 30
MaxStartups 20:30:100
ClientAliveInterval 15
ClientAliveCountMax 4
PidFile none
LogLevel INFO
Subsystem sftp internal-sftp"
  [ -d /run/sshd ] || { mkdir -p /run/sshd && chmod 755 /run/sshd; }
  "$SSHD" -t -f "$DIR/sshd_config"
}

# In a process of its own, which becomes sshd. When it fails it is tried again, after a pause.
serve() {
  let_client_in && wait_for_provider && {
    have_sshd || {
      install 'openssh-server ca-certificates' 'openssh ca-certificates' 'openssh-server ca-certificates' 'no sshd' \
        && have_sshd
    }
  } && find_host_key && configure_sshd && {
    trap - HUP PIPE TERM
    exec "$SSHD" -D -e -f "$DIR/sshd_config"
  }
  say 'sshd could not be started; tries again'
  doze "$PAUSE"
  exit 1
}

# ----------------------------------------------------------------

mkdir -p "$DIR" && chmod 700 "$DIR"
rm -f "$DIR/broken"
count_starts
start_watchdog
PAUSE=$NAP
serve &
SERVER=$!
while :; do
  doze "$NAP"
  kill -0 "$GUARD" 2>/dev/null || {
    say 'the watchdog died: it is started again'
    start_watchdog
  }
  kill -0 "$SERVER" 2>/dev/null || {
    say 'sshd ended: it is started again'
    case $NAP in 5) [ "$PAUSE" -ge 60 ] || PAUSE=$((PAUSE * 2)) ;; esac
    serve &
    SERVER=$!
  }
done
