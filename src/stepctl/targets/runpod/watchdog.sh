#!/bin/sh
# Ends this pod when nobody holds it: see docs/runpod.md. POSIX sh; started by start.sh before anything else.
#
# Reads STEPCTL_{MAX_SECONDS,MAX_REASON,BOOT_GRACE,LEASE,STALL,GRACE,SAVE_AHEAD,TICK,API}, RUNPOD_POD_ID and
# RUNPOD_API_KEY. For tests: STEPCTL_{DIR,SHM,UPTIME,CALL}.
#
# A shell that dies guards nothing, so: no set -e or -u, no arithmetic on a text that `number` has not passed, and no
# redirection on a special builtin (a failed one ends the shell).
set -f
umask 077
LC_ALL=C
export LC_ALL
trap '' HUP PIPE
trap : ALRM
trap 'say "TERM: goes on guarding"' TERM

DIR=${STEPCTL_DIR:-/var/lib/stepctl}
UPTIME=${STEPCTL_UPTIME:-/proc/uptime}
API=${STEPCTL_API:-https://api.runpod.io/v2}
API=${API%/}
POD=${RUNPOD_POD_ID:-}
KEY=${RUNPOD_API_KEY:-}
unset RUNPOD_API_KEY STEPCTL_HOST_KEY
AGENT=stepctl-watchdog
LOG_BYTES=262144
NL='
'
CR=$(printf '\r')

# ---------------------------------------------------------------- words, numbers, files

# To the container's log, and to a file of bounded size.
say() {
  printf 'stepctl-watchdog: %s\n' "$*"
  LOGGED=$((${LOGGED:-LOG_BYTES} + ${#1} + 40))
  if [ "$LOGGED" -gt "$LOG_BYTES" ]; then
    LOGGED=$(wc -c 2>/dev/null <"$DIR/watchdog.log") || LOGGED=0
    LOGGED=$((LOGGED))
    [ "$LOGGED" -gt "$LOG_BYTES" ] && LOGGED=0 && mv -f "$DIR/watchdog.log" "$DIR/watchdog.log.1"
  fi
  { printf 'age %s s: %s\n' "${AGE:-0}" "$*" >>"$DIR/watchdog.log"; } 2>/dev/null
}

# TEXT -> N without leading zeros (they would make it octal); false unless it is 1 to 9 digits.
number() {
  case $1 in '' | *[!0-9]* | ??????????*) return 1 ;; esac
  N=$1
  while :; do case $N in 0?*) N=${N#0} ;; *) return 0 ;; esac; done
}

# NAME DEFAULT: the setting of that name -> N
setting() {
  eval "N=\${STEPCTL_$1:-}"
  number "$N" && return
  say "STEPCTL_$1 is not a number of seconds: $2 is used"
  N=$2
}

# FILE -> TEXT, its lines in one; false when there is none.
slurp() {
  TEXT=
  [ -f "$1" ] || return 1
  { while IFS= read -r line || [ -n "$line" ]; do TEXT=$TEXT$line; done <"$1"; } 2>/dev/null
}

# NAME JSON -> VALUE: the first member of that name, a text or a whole number.
member() {
  VALUE=${2#*"\"$1\""}
  [ "$VALUE" != "$2" ] || return 1
  VALUE=${VALUE#*:}
  VALUE=${VALUE#"${VALUE%%[! ]*}"}
  case $VALUE in
    \"*) VALUE=${VALUE#\"} VALUE=${VALUE%%\"*} ;;
    *) VALUE=${VALUE%%[!0-9]*} ;;
  esac
  [ -n "$VALUE" ]
}

# NAME -> TOOL, its path; some shells have tools of their own, which `command -v` would find everywhere.
tool() {
  rest=$PATH:
  while [ -n "$rest" ]; do
    TOOL=${rest%%:*}/$1 rest=${rest#*:}
    [ -f "$TOOL" ] && [ -x "$TOOL" ] && return 0
  done
  TOOL=
  return 1
}

# ---------------------------------------------------------------- time

# YEAR MONTH DAY HOUR MINUTE SECOND -> EPOCH; false for what cannot be a time of a pod (Go's zero time is year 1).
epoch() {
  for part in "$@"; do number "$part" || return 1; done
  [ "${1#0}" -ge 2020 ] || return 1
  y=$1 m=${2#0} d=${3#0}
  [ "$m" -gt 2 ] || y=$((y - 1)) m=$((m + 12))
  EPOCH=$(((365 * y + y / 4 - y / 100 + y / 400 + (153 * (m - 3) + 2) / 5 + d - 719469) * 86400 \
    + ${4#0} * 3600 + ${5#0} * 60 + ${6#0}))
}

# 2026-06-01T12:00:00.25Z, also with an offset -> EPOCH
epoch_of_iso() {
  case $1 in
    [0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9][Tt\ ][0-9][0-9]:[0-9][0-9]:[0-9][0-9]*) ;;
    *) return 1 ;;
  esac
  iso=$1 zone=${1#???????????????????}
  case $zone in .*) zone=${zone#.} zone=${zone#"${zone%%[!0-9]*}"} ;; esac
  iso=${iso%"${iso#???????????????????}"}
  # shellcheck disable=SC2141
  IFS='-Tt :'
  # shellcheck disable=SC2086
  set -- $iso
  unset IFS
  epoch "$@" || return 1
  case $zone in
    '' | Z | z) ;;
    [-+][0-9][0-9]:[0-9][0-9])
      hours=${zone#?} hours=${hours%:*} minutes=${zone#*:}
      minutes=$((${hours#0} * 60 + ${minutes#0}))
      EPOCH=$((EPOCH - ${zone%"${zone#?}"}minutes * 60))
      ;;
    *) return 1 ;;
  esac
}

# Sun, 06 Nov 2026 08:49:37 GMT -> EPOCH
epoch_of_http() {
  case $1 in
    *,\ [0-9][0-9]\ [A-Z]??\ [0-9][0-9][0-9][0-9]\ [0-9][0-9]:[0-9][0-9]:[0-9][0-9]\ GMT) ;;
    *) return 1 ;;
  esac
  IFS=' :'
  # shellcheck disable=SC2086
  set -- ${1#*, }
  unset IFS
  month=JanFebMarAprMayJunJulAugSepOctNovDec
  month=${month%%"$2"*}
  [ "${#month}" -lt 36 ] || return 1
  epoch "$3" $((${#month} / 3 + 1)) "$1" "$4" "$5" "$6"
}

# Seconds of a clock that nobody sets -> NOW; false when there is none. The wall clock stands in for a missing one.
clock() {
  if [ "$SOURCE" = uptime ]; then
    NOW=
    { read -r NOW rest <"$UPTIME"; } 2>/dev/null
    number "${NOW%%.*}" && NOW=$N
  else
    tool date && NOW=$("$TOOL" +%s) && case $NOW in '' | *[!0-9]*) false ;; esac
  fi
}

# Bring C, the seconds since the container's first start, up to now. It goes on over restarts of the container.
advance() {
  if clock; then
    passed=$((NOW - ${CLOCK:-NOW}))
    CLOCK=$NOW
  else
    passed=$TICKS
  fi
  if [ "$passed" -lt 0 ]; then
    # An uptime that went back: the host was started again, at least so long ago.
    passed=0
    [ "$SOURCE" = uptime ] && passed=$NOW
  elif [ "$SOURCE" != uptime ] && [ "$passed" -gt $((TICKS + 600)) ]; then
    passed=$TICKS
  fi
  C=$((C + passed))
  AGE=$((C + ${OFFSET:-0}))
}

# ---------------------------------------------------------------- what is kept over restarts

save_state() {
  { printf '%s\n' "C=$C" "SOURCE=$SOURCE" "CLOCK=$CLOCK" "OFFSET=$OFFSET" "LOOKS=$LOOKS" "MAX=$MAX" \
    "MAX_REASON=$MAX_REASON" "LEASE_AT=$LEASE_AT" "LEASE_SEEN=$LEASE_SEEN" "JOB=$JOB" "PROCESS=$PROCESS" \
    "JOB_START=$JOB_START" "EVENTS=$EVENTS" "EVENTS_AT=$EVENTS_AT" "ENDED_AT=$ENDED_AT" "STOP_AT=$STOP_AT" \
    "STOP_WHY=$STOP_WHY" "KEPT=$KEPT" "KEPT_AT=$KEPT_AT" "CLAIMED=$CLAIMED" "CLAIMED_AT=$CLAIMED_AT" end >"$DIR/state.new" && mv -f "$DIR/state.new" "$DIR/state"; } 2>/dev/null
}

load_state() {
  C=0 CLOCK='' OFFSET='' LOOKS=0 LEASE_AT=0 LEASE_SEEN='' JOB='' PROCESS='' JOB_START='' EVENTS='' EVENTS_AT=0
  ENDED_AT='' STOP_AT='' STOP_WHY='' KEPT='' KEPT_AT='' CLAIMED='' CLAIMED_AT='' SOURCE=uptime STARTS=1 was=''
  clock || SOURCE=wall
  { read -r STARTS <"$DIR/starts"; } 2>/dev/null
  number "$STARTS" && STARTS=$N || STARTS=1
  # The first start as start.sh wrote it down counts when the state was lost.
  { read -r CLOCK <"$DIR/first"; } 2>/dev/null
  [ "$SOURCE" = uptime ] && number "$CLOCK" || CLOCK=
  slurp "$DIR/state" || return
  case $TEXT in *end) ;; *) return ;; esac
  while IFS= read -r line; do
    name=${line%%=*} value=${line#*=}
    case $name in
      C | LOOKS | LEASE_AT | EVENTS_AT | CLOCK | OFFSET | JOB_START | ENDED_AT | STOP_AT | KEPT_AT | CLAIMED_AT)
        case $value in '' | *[!0-9]*) ;; *) eval "$name=\$value" ;; esac ;;
      MAX) number "$value" && [ "$N" -lt "$MAX" ] && MAX=$N ;;
      MAX_REASON | STOP_WHY) case $value in deadline | cost | stall) eval "$name=\$value" ;; esac ;;
      LEASE_SEEN | PROCESS | EVENTS | KEPT | CLAIMED) eval "$name=\$value" ;;
      JOB) case $value in /*) JOB=$value ;; esac ;;
      SOURCE) was=$value ;;
    esac
  done <"$DIR/state"
  case $was in '' | "$SOURCE") ;; *) CLOCK= ;; esac
}

# ---------------------------------------------------------------- the provider's API

# Send a signal (arguments of kill) in HARD seconds, and again each second: bash loses one that comes together with the
# end of a child. USR1 ends this process, `alarm`, before that; nobody traps USR1 before the fork, so it always does.
set_alarm() {
  {
    trap 'kill "$sleeper"; exit 0' USR1
    sleep "$HARD" &
    sleeper=$!
    wait "$sleeper"
    while kill "$@"; do
      sleep 1 &
      sleeper=$!
      wait "$sleeper"
    done
  } >/dev/null 2>&1 </dev/null 3<&- &
  alarm=$!
}

# Run a program for at most HARD seconds; it has this function's stdin.
limited() {
  exec 3<&0
  "$@" <&3 3<&- &
  held=$!
  set_alarm -9 "$held"
  wait "$held"
  held=$?
  kill -s USR1 "$alarm" 2>/dev/null
  return "$held"
}

PYTHON='import sys
try: import http.client as h
except ImportError: import httplib as h
key=sys.stdin.read().strip()
method,scheme,host,path,body,agent,limit=sys.argv[1:]
c=(h.HTTPSConnection if scheme=="https" else h.HTTPConnection)(host,timeout=float(limit))
c.request(method,path,body or None,{"Authorization":"Bearer "+key,"User-Agent":agent,"Content-Type":"application/json"})
r=c.getresponse()
lines=["HTTP/1.1 %d"%r.status]+["%s: %s"%x for x in r.getheaders()]+["",""]
getattr(sys.stdout,"buffer",sys.stdout).write("\n".join(lines).encode("utf-8","replace")+r.read(262144))'

# shellcheck disable=SC2016
PERL='use HTTP::Tiny;
my ($method,$url,$body,$agent,$limit)=@ARGV; my $key=<STDIN>; chomp $key;
my $r=HTTP::Tiny->new(agent=>$agent,timeout=>$limit,max_redirect=>0,verify_SSL=>1)->request($method,$url,{
headers=>{Authorization=>"Bearer $key","Content-Type"=>"application/json"},content=>$body});
die "$r->{content}\n" if $r->{status}==599;
print "HTTP/1.1 $r->{status}\n"; print "$_: $r->{headers}{$_}\n" for keys %{$r->{headers}}; print "\n$r->{content}";'

# Each of these: METHOD PATH BODY; prints the answer with its headers, and follows no redirect. The key goes over stdin.
by_curl() {
  method=$1 path=$2 body=$3
  set --
  [ -z "$body" ] || set -- --data-binary "$body" -H 'Content-Type: application/json'
  printf 'header = "Authorization: Bearer %s"\n' "$KEY" | limited "$TOOL" -q -sS -i -K - -m "$CALL" -A "$AGENT" \
    -X "$method" -w '\nstepctl-status %{http_code}\n' "$@" "$API$path"
}

by_python() {
  printf '%s\n' "$KEY" | limited "$TOOL" -ESs -c "$PYTHON" "$1" "$SCHEME" "$HOST" "$BASE$2" "$3" "$AGENT" "$CALL"
}

by_perl() {
  printf '%s\n' "$KEY" | limited "$TOOL" -e "$PERL" "$1" "$API$2" "$3" "$AGENT" "$CALL"
}

# GNU wget takes no pipe as its configuration.
by_wget() {
  method=$1 path=$2
  set -- --method="$1" --body-data="$3" --header='Content-Type: application/json'
  [ "$method" = POST ] || set -- --method="$method"
  printf 'header = Authorization: Bearer %s\n' "$KEY" >"$SCRATCH/wget.conf" || return
  limited "$TOOL" --config="$SCRATCH/wget.conf" -q -S -O - -T "$CALL" -t 1 --max-redirect=0 -U "$AGENT" "$@" \
    "$API$path" </dev/null
  held=$?
  rm -f "$SCRATCH/wget.conf"
  return "$held"
}

# BusyBox's wget is the last means: GET and POST alone, the key in its arguments, often no check of certificates, and it
# follows redirects (only the first answer counts).
by_small_wget() {
  path=$2
  case $1 in
    GET) set -- ;;
    POST) set -- --header 'Content-Type: application/json' --post-data "$3" ;;
    *) echo "this wget has no $1" && return 1 ;;
  esac
  limited "$TOOL" -q -S -O - -U "$AGENT" --header "Authorization: Bearer $KEY" "$@" "$API$path" </dev/null
}

by_openssl() {
  name=${HOST%%:*} port=443
  case $HOST in *:*) port=${HOST##*:} ;; esac
  printf '%s %s HTTP/1.0\r\nHost: %s\r\nUser-Agent: %s\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r
Content-Length: %s\r\nConnection: close\r\n\r\n%s' "$1" "$BASE$2" "$HOST" "$AGENT" "$KEY" "${#3}" "$3" \
    | limited "$TOOL" s_client -quiet -verify_return_error -verify_hostname "$name" -servername "$name" \
      -connect "$name:$port"
}

# A way of HTTP, and METHOD PATH BODY -> ANSWER; false when there is no such program, or it cannot do this.
try() {
  case $1 in
    curl | perl) tool "$1" || return 1; by=by_$1 ;;
    python*) tool "$1" || return 1; by=by_python ;;
    openssl) [ "$SCHEME" = https ] && tool openssl || return 1; by=by_openssl ;;
    wget | small_wget)
      tool wget || return 1
      case $WGET in
        '') case $(limited "$TOOL" --help 2>&1 </dev/null) in *--method*) WGET=wget ;; *) WGET=small_wget ;; esac ;;
      esac
      [ "$1" = "$WGET" ] || { TOOL= && return 1; }
      by=by_$1
      ;;
  esac
  ANSWER=$("$by" "$2" "$3" "$4" 2>&1)
}

# ANSWER -> STATUS, DATE and TYPE. Only curl is trusted to tell the answer from that of a proxy.
parse() {
  STATUS='' DATE='' TYPE='' TROUBLE=''
  IFS=$NL
  for line in $ANSWER; do
    line=${line#"${line%%[! ]*}"} line=${line%"$CR"}
    case $line in
      stepctl-status\ [1-9][0-9][0-9]) STATUS=${line#* } ;;
      HTTP/*\ [2-9][0-9][0-9] | HTTP/*\ [2-9][0-9][0-9]\ *)
        line=${line#* }
        [ "$1" = curl ] || [ -n "$STATUS" ] || STATUS=${line%% *}
        ;;
      [Dd][Aa][Tt][Ee]:*) [ -n "$DATE" ] || DATE=${line#*: } ;;
      [Cc][Oo][Nn][Tt][Ee][Nn][Tt]-[Tt][Yy][Pp][Ee]:*) TYPE=${line#*: } ;;
      stepctl-status*) ;;
      ?*) TROUBLE=$line ;;
    esac
  done
  unset IFS
  [ -n "$STATUS" ]
}

# METHOD PATH BODY [one] -> STATUS, ANSWER, WAY by the first means that gets an answer; else TROUBLE. With `one` only
# the means that worked before is tried, where there is one.
call() {
  order=$WORKS found='' said=''
  for WAY in curl python3 python wget perl openssl small_wget; do
    [ "$WAY" = "$WORKS" ] || [ "${4:-} ${WORKS:+known}" = 'one known' ] || order="$order $WAY"
  done
  for WAY in $order; do
    STATUS='' TOOL='' ANSWER=''
    try "$WAY" "$1" "$2" "$3"
    [ -n "$TOOL" ] || continue
    found=1
    parse "$WAY" && WORKS=$WAY && return
    said="$said $WAY: $TROUBLE;"
  done
  [ -z "${4:-}" ] || WORKS=
  TROUBLE=$(printf '%.400s' "${said# }")
  [ -n "$found" ] || TROUBLE='no curl, python3 or wget: no training'
  return 1
}

# The pod's age by the provider's own clock -> OFFSET, what C lacks of it. Asked at the start, every ten minutes, and
# more often while it is not known.
ask() {
  [ "$C" -ge "$ASK_AT" ] && [ -n "$POD" ] || return
  call GET "/pods/$POD" '' one
  advance
  known=
  case $STATUS in
    2??)
      reach
      member createdAt "$ANSWER" && epoch_of_iso "$VALUE" && created=$EPOCH && epoch_of_http "$DATE" \
        && known=$((EPOCH - created))
      ;;
    403) case $TYPE in *json*) reach ;; esac ;;
  esac
  if [ -n "$known" ] && [ "$known" -gt -300 ]; then
    before=$AGE OFFSET=$((known - C))
    [ "$OFFSET" -gt 0 ] || OFFSET=0
    advance
    [ "$ASKED" = known ] && [ $((AGE - before)) -lt 60 ] || say "this pod is $AGE s old by the provider's clock"
    ASKED=known ASK_AT=$((C + 600)) GAP=5
    return
  fi
  trouble=${STATUS:-no answer ($TROUBLE)}
  [ "$ASKED" = "$trouble" ] || say "the provider does not tell this pod's age: $trouble"
  ASKED=$trouble ASK_AT=$((C + GAP)) GAP=$((GAP * 2))
  # Asking again does not help where it is not allowed, and the account's requests are counted.
  case $STATUS in 403) most=600 ;; *) most=60 ;; esac
  [ "$GAP" -le "$most" ] || GAP=$most
}

# Lets start.sh open the door: the provider has heard this pod's key, so that the pod can be ended from here.
reach() {
  [ -e "$DIR/reached" ] || { printf '%s\n' "$STATUS" >"$DIR/reached"; } 2>/dev/null
}

# ---------------------------------------------------------------- the job

# In a process of its own, since a volume that hangs must not hang the guard.
# NUMBER, the job that the mark names, the job so far, the reason to ask it for a save -> the file report
probe() {
  dir='' flags='' size='' pid='' begun=''
  if [ -n "$2" ] && [ -e "$2/process.json" ]; then dir=$2; else dir=$3; fi
  if [ -n "$dir" ]; then
    slurp "$dir/process.json" && member pid "$TEXT" && pid=$VALUE && member started "$TEXT" && begun=$VALUE
    [ -z "$4" ] || ask_save "$dir" "$4"
    [ ! -e "$dir/exit_code" ] || flags="$flags exit"
    [ ! -e "$dir/taken" ] || flags="$flags taken"
    committed "$dir" && flags="$flags committed"
    size=$(wc -c 2>/dev/null <"$dir/events.jsonl")
  fi
  printf '%s\n' "$dir" "$pid $begun" "$((size))" "$flags" "$1" >"$SCRATCH/report"
}

# JOBDIR REASON: leave a request to save and end, and why. One that somebody made before is left alone.
ask_save() {
  [ -d "$1" ] && [ ! -e "$1/control/stop" ] && [ ! -e "$1/control/cancel" ] || return
  mkdir -p "$1/control"
  printf '%s\n' "$2" >"$1/control/reason.new" && mv -f "$1/control/reason.new" "$1/control/reason"
  printf '' >"$1/control/stop"
}

# JOBDIR: whether the job ended with a checkpoint that it committed to a bucket on the Hub itself.
committed() {
  slurp "$1/result.json" && member state "$TEXT" || return
  case $VALUE in done | stopped) ;; *) return 1 ;; esac
  slurp "$1/job.json" && member bucket "$TEXT" || return
  case $VALUE in hf://*) ;; *) return 1 ;; esac
}

# Start a probe unless one still hangs, and wait for it, but not for ever -> HEARD, and what it found.
look_at_job() {
  mark='' HEARD=''
  { read -r mark <"$DIR/job"; } 2>/dev/null
  case $mark in /*) ;; *) mark= ;; esac
  [ -n "$mark$JOB" ] || return
  if [ -z "$PROBE" ]; then
    PROBED=$((PROBED + 1))
    probe "$PROBED" "$mark" "$JOB" "$STOP_WHY" </dev/null >/dev/null 2>&1 &
    PROBE=$!
  fi
  set_alarm -s ALRM "$$"
  wait "$PROBE" 2>/dev/null
  kill -s USR1 "$alarm" 2>/dev/null
  wait "$alarm" 2>/dev/null
  upto=
  { IFS= read -r dir && IFS= read -r process && IFS= read -r size && IFS= read -r flags \
    && IFS= read -r upto; } 2>/dev/null <"$SCRATCH/report"
  [ "$upto" != "$PROBED" ] || HEARD=1
  [ -n "$HEARD" ] || say 'the job cannot be looked at: its disk does not answer'
  kill -0 "$PROBE" 2>/dev/null || PROBE=
}

# PID STARTED: whether exactly this process still runs. What cannot be told is left to the stall rule.
alive() {
  number "$1" && [ "$N" -gt 1 ] || return 0
  begun=$2 TEXT=''
  { read -r TEXT <"/proc/$N/stat"; } 2>/dev/null || return
  # The name, in parentheses, may hold spaces; after it come the state, and the start time as the 20th field.
  # shellcheck disable=SC2086
  set -- ${TEXT##*) }
  case $1 in Z | X) return 1 ;; esac
  case $begun in
    *?:[0-9]*) [ "${begun##*:}" = "${20}" ] && { [ -z "$BOOT" ] || [ "${begun%:*}" = "$BOOT" ]; } ;;
    *) [ "$JOB_START" = "$STARTS" ] ;;
  esac
}

# What the probe found -> JOB, PROCESS, EVENTS_AT, ENDED, ENDED_AT. A trainer that is started anew begins anew.
follow_job() {
  if [ -n "$HEARD" ] && [ -n "$dir" ]; then
    if [ "$dir" != "$JOB" ] || { [ "$process" != "$PROCESS" ] && [ "$process" != ' ' ]; }; then
      say "the job has started: $dir"
      JOB=$dir PROCESS=$process JOB_START=$STARTS EVENTS='' ENDED_AT='' STOP_AT='' STOP_WHY=''
    fi
    FLAGS=$flags
    [ "$size" = "$EVENTS" ] || EVENTS=$size EVENTS_AT=$C
  fi
  [ -n "$JOB" ] || return
  ENDED=
  case $FLAGS in
    *exit*) ENDED="done" ;;
    *) alive "${PROCESS%% *}" "${PROCESS#* }" || ENDED=died ;;
  esac
  if [ -z "$ENDED" ]; then
    ENDED_AT=
  elif [ -z "$ENDED_AT" ]; then
    ENDED_AT=$C
    case $ENDED$JOB_START in
      "done"*) say 'the job has ended' ;;
      "died$STARTS") say 'the job is gone: its process died' ;;
      *) say 'the job is gone: the container was started again' ;;
    esac
  fi
}

# ---------------------------------------------------------------- the rules

# Any new content says that a client is there.
read_lease() {
  lease=
  { IFS= read -r lease <"$DIR/lease"; } 2>/dev/null
  [ -n "$lease" ] && [ "$lease" != "$LEASE_SEEN" ] || return
  [ -n "$LEASE_SEEN" ] || say 'a client is there'
  LEASE_SEEN=$lease LEASE_AT=$C
}

# A client that leaves the pod for the next call says for how long (`kept`: seconds, then anything that makes it new);
# the next call takes that away, and says so (`claimed`: any new content). Either way there is no job until a new mark.
read_handover() {
  kept='' claimed=''
  { IFS= read -r kept <"$DIR/kept"; } 2>/dev/null
  number "${kept%% *}" || kept=
  if [ -z "$kept" ]; then
    KEPT=
  elif [ "$kept" != "$KEPT" ] || [ -z "$KEPT_AT" ]; then
    KEPT=$kept KEPT_AT=$C
    forget_job
    say "is kept for the next call, for $N s"
  fi
  { IFS= read -r claimed <"$DIR/claimed"; } 2>/dev/null
  [ -n "$claimed" ] && [ "$claimed" != "$CLAIMED" ] || return
  CLAIMED=$claimed CLAIMED_AT=$C LEASE_AT=$C
  forget_job
  say 'was kept, and is taken by a call'
}

forget_job() {
  JOB='' PROCESS='' JOB_START='' EVENTS='' EVENTS_AT=$C ENDED='' ENDED_AT='' STOP_AT='' STOP_WHY='' FLAGS=''
  # What a probe that still hangs finds is of the job before.
  PROBED=$((PROBED + 1))
}

# Limits may only be tightened. A line counts once its end is there.
read_limits() {
  [ -r "$DIR/limits" ] || return
  while read -r line; do
    case $line in
      MAX_SECONDS=*) number "${line#*=}" && [ "$N" -lt "$MAX" ] && MAX=$N && say "this pod may now be $MAX s old" ;;
      MAX_REASON=deadline | MAX_REASON=cost) MAX_REASON=${line#*=} ;;
    esac
  done <"$DIR/limits"
}

want() {
  WANT=$1 WHY=$2 BECAUSE=$3
}

# -> WANT: `end`, `stop` or nothing; WHY, one word; BECAUSE, for people
judge() {
  want '' '' ''
  if [ "$AGE" -ge "$MAX" ]; then
    want end "$MAX_REASON" "this pod is $AGE s old, and may be $MAX s"
  elif [ -n "$KEPT" ]; then
    number "${KEPT%% *}" || N=0
    [ $((C - KEPT_AT)) -lt "$N" ] || want end kept "no call took it in $((C - KEPT_AT)) s"
  elif [ -z "$JOB" ]; then
    judge_start
  elif [ -n "$ENDED" ]; then
    case $FLAGS in
      *taken*) want end taken 'the client has everything' ;;
      *exit*committed*) want end "done" 'the checkpoint is in the bucket' ;;
      *) judge_wait ;;
    esac
  else
    judge_running
  fi
}

# A client that is heard may be fetching: the grace counts from its last sign.
judge_wait() {
  since=$ENDED_AT
  [ "$since" -ge "$LEASE_AT" ] || since=$LEASE_AT
  [ $((C - since)) -lt "$GRACE" ] \
    || want end "$ENDED" "the job ended $((C - ENDED_AT)) s ago, and no client was heard for $((C - since)) s"
}

judge_start() {
  begun=$((C - AGE))
  [ -z "$CLAIMED_AT" ] || begun=$CLAIMED_AT
  if [ -s "$DIR/broken" ]; then
    slurp "$DIR/broken"
    want end boot "$TEXT"
  elif [ $((C - begun)) -ge "$BOOT_GRACE" ]; then
    want end boot "this pod is $AGE s old, and no job has started in $BOOT_GRACE s"
  elif [ $((C - LEASE_AT)) -ge "$LEASE" ]; then
    want end lease "no client was heard for $((C - LEASE_AT)) s, and no job has started"
  fi
}

judge_running() {
  quiet=$((C - EVENTS_AT))
  if [ -z "$STOP_WHY" ]; then
    if [ "$AGE" -ge $((MAX - SAVE_AHEAD)) ]; then
      want stop "$MAX_REASON" "this pod is $AGE s old, and may be $MAX s"
    elif [ "$quiet" -ge "$STALL" ]; then
      want stop stall "no event for $quiet s"
    fi
  elif [ "$STOP_WHY" = stall ] && [ "$quiet" -ge "$SAVE_AHEAD" ] && [ $((C - STOP_AT)) -ge "$SAVE_AHEAD" ]; then
    want end stall "no event for $quiet s, and nothing saved in $SAVE_AHEAD s"
  fi
}

# Two looks in a row must agree: nothing ends by one torn read.
act() {
  case $WANT:$LAST in
    end:end) ending "$WHY" "$BECAUSE" ;;
    stop:stop)
      STOP_WHY=$WHY STOP_AT=$C
      say "asks the job to save and end: $WHY ($BECAUSE)"
      look_at_job
      ;;
  esac
  LAST=$WANT
}

# ---------------------------------------------------------------- the end

# Every way to end the pod until one is accepted; all of them when `thorough`. False when none was.
end_once() {
  accepted=
  for way in terminate delete stop; do
    case $way in
      delete) call DELETE "/pods/$POD" '' ;;
      *) call POST "/pods/$POD/action" "{\"action\":\"$way\"}" ;;
    esac
    advance
    if [ -n "$STATUS" ]; then say "$way: $STATUS, by $WAY"; else say "$way: no answer ($TROUBLE)"; fi
    case $way$STATUS in
      *2?? | terminate404 | delete404)
        accepted=1
        [ -n "$thorough" ] || return 0
        ;;
      terminate) break ;;
    esac
  done
  if tool runpodctl; then
    for way in 'remove pod' 'pod delete'; do
      limited runpodctl_end </dev/null >/dev/null 2>&1 && say "runpodctl $way: accepted" && accepted=1 && break
      say "runpodctl $way: refused"
    done
  fi
  [ -n "$accepted" ]
}

# shellcheck disable=SC2086,SC2317,SC2329
runpodctl_end() {
  RUNPOD_API_KEY=$KEY
  export RUNPOD_API_KEY
  exec "$TOOL" $way "$POD"
}

# WHY BECAUSE: never returns. An accepted request that is not followed by the end is made again, by all ways.
ending() {
  { printf '%s\n' "$1" >"$DIR/ending"; } 2>/dev/null
  say "ends this pod: $1 ($2)"
  [ -n "$POD" ] || say 'RUNPOD_POD_ID is not set: this pod cannot end itself; delete it by hand'
  [ -n "$KEY" ] || say 'RUNPOD_API_KEY is not set: this pod can hardly end itself; delete it by hand'
  nap=1 thorough=''
  while :; do
    save_state
    if [ -n "$POD" ] && end_once; then
      thorough=1
      [ "$nap" -ge 10 ] || nap=10
    fi
    if [ "$nap" -lt "$TICKS" ]; then doze "$nap"; else doze "$TICK"; fi
    advance
    nap=$((nap * 2))
    [ "$nap" -le 60 ] || nap=60
  done
}

doze() {
  sleep "$1" || sleep 1
}

# ----------------------------------------------------------------

prepare() {
  mkdir -p "$DIR" && chmod 700 "$DIR"
  SCRATCH=${STEPCTL_SHM:-/dev/shm}/stepctl-watchdog
  { mkdir -p "$SCRATCH" && chmod 700 "$SCRATCH" && printf '' >"$SCRATCH/report"; } 2>/dev/null || SCRATCH=$DIR
  SCHEME=${API%%://*} HOST=${API#*://}
  case $HOST in */*) BASE=/${HOST#*/} HOST=${HOST%%/*} ;; *) BASE='' ;; esac
  BOOT=''
  { read -r BOOT </proc/sys/kernel/random/boot_id; } 2>/dev/null
  AGE=0 WORKS='' WGET='' LAST='' PROBE='' PROBED=0 ENDED='' FLAGS='' ASKED='' ASK_AT=0 GAP=5
  setting MAX_SECONDS 3600 && MAX=$N
  setting BOOT_GRACE 1800 && BOOT_GRACE=$N
  setting LEASE 900 && LEASE=$N
  setting STALL 1800 && STALL=$N
  setting GRACE 3600 && GRACE=$N
  setting SAVE_AHEAD 300 && SAVE_AHEAD=$N
  STEPCTL_CALL=${STEPCTL_CALL:-20}
  setting CALL 20 && CALL=$N HARD=$((N * 2))
  case ${STEPCTL_MAX_REASON:-} in cost) MAX_REASON=cost ;; *) MAX_REASON=deadline ;; esac
  # Tests look more often than once a second.
  TICK=${STEPCTL_TICK:-30}
  case $TICK in 0 | *[!0-9.]* | *.*.* | .*) TICK=30 ;; esac
  number "${TICK%%.*}" && TICKS=$N || TICK=30 TICKS=30
}

prepare
load_state
advance
say "guards pod ${POD:-(no id)}, start $STARTS: boot $BOOT_GRACE s, lease $LEASE s, stall $STALL s," \
  "$MAX_REASON $MAX s, save $SAVE_AHEAD s ahead, grace $GRACE s, every $TICK s"
if [ -s "$DIR/ending" ]; then
  slurp "$DIR/ending"
  ending "$TEXT" 'decided before the container was started again'
fi
while :; do
  advance
  read_limits
  ask
  read_lease
  read_handover
  [ -n "$KEPT" ] || {
    look_at_job
    follow_job
  }
  judge
  act
  LOOKS=$((LOOKS + 1))
  save_state
  doze "$TICK"
done
