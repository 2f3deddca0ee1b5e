#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs as root inside of the booted system, before any of our packages is installed; says "ok NAME",
# "not ok NAME: WHY" or "skipped NAME: WHY" on stdout.
# $PLACE: our files; $UPGRADES: how many higher versions there are; /oom: see boot_test.py.
set -u
export DEBIAN_FRONTEND=noninteractive MAN_DISABLE_SECCOMP=1
MODEL=$PLACE/source/models/bytes

check() {  # NAME COMMAND...
  local name=$1 said
  shift
  if said=$("$@" 2>&1); then echo "ok $name"; else echo "not ok $name: ${said//$'\n'/ | }"; fi
}
refuses() {  # CODE COMMAND...: the command exits with it
  local expected=$1 code=0
  shift
  "$@" || code=$?
  ((code == expected)) || { echo "exit code $code"; return 1; }
}
says() {  # TEXT COMMAND...
  local text=$1 said
  shift
  said=$("$@" 2>&1) || { echo "$said"; return 1; }
  [[ $said == *"$text"* ]] || { echo "$said"; return 1; }
}
complains() {  # TEXT COMMAND...: it fails, and says so
  local text=$1 said
  shift
  ! said=$("$@" 2>&1) || { echo "it succeeds: $said"; return 1; }
  [[ $said == *"$text"* ]] || { echo "$said"; return 1; }
}
is() {  # TEXT COMMAND...: that and no more
  local text=$1 said
  shift
  said=$("$@" 2>&1)
  [[ $said == "$text" ]] || { echo "$said"; return 1; }
}
says_nothing() {  # COMMAND...
  local said
  said=$("$@" 2>&1)
  [[ -z $said ]] || { echo "$said"; return 1; }
}
eventually() {  # COMMAND...: within half a minute
  local tries said
  for ((tries = 0; tries < 300; tries++)); do
    said=$("$@" 2>&1) && return 0
    sleep 0.1  # between two looks at a condition
  done
  echo "$said"
  return 1
}

# --- packages
take_from() {  # REPOSITORY
  local all=$PLACE/repository
  echo "deb [signed-by=$all/key.gpg] file:$all/$1 ./" >/etc/apt/sources.list
  apt-get -q update
}
apt() { apt-get -q -y -o Dpkg::Use-Pty=0 "$@"; }
is_version() { says "$1" dpkg-query -W -f '${Version}' djinnd; }
is_gone() {
  local path
  for path; do [[ ! -e $path && ! -L $path ]] || { echo "$path"; return 1; }; done
}
is_left() { ! is_gone "$@"; }
autopkgtest() { (cd "$PLACE/source" && "debian/tests/$1"); }

# --- the service
shown() { systemctl show djinnd.service --property "$1" --value; }
has_value() { [[ $(shown "$1") == "$2" ]] || { shown "$1"; return 1; }; }
is_another_process() {
  local now
  now=$(shown MainPID)
  [[ $now != 0 && $now != "$1" ]]
}
serves_again() { is_another_process "$1" && systemctl -q is-active djinnd.service; }  # BEFORE
set_for_now() {  # [SETTING]: of the service; none: as it was
  local dropins=/run/systemd/system/djinnd.service.d
  rm -rf "$dropins"
  (($# == 0)) || install -D <(printf '[Service]\n%s\n' "$@") "$dropins/for-now.conf"
  systemctl daemon-reload
  systemctl restart djinnd.service
}
nothing_has_failed() { says_nothing systemctl --failed --no-legend --plain; }
exposure() {
  systemd-analyze security djinnd.service | grep -o "djinnd.service: [0-9.]*" | cut -d" " -f2
}
is_hardened() { [[ $(exposure) == 0.* || $(exposure) == 1.0 ]] || { exposure; return 1; }; }

# --- djinnd
status() { djinnctl --json status; }
# A model whose files are not on a block device is opened by its bytes' hash after a restart.
has_block_device() { (($(stat -c %Hd "$MODEL") != 0)); }
bytes_read() { status | grep -o '"bytes_read":[0-9]*' | cut -d: -f2; }
read_nothing() { [[ $(bytes_read) == 0 ]] || { bytes_read; return 1; }; }
is_resident() { says "$id" djinnctl ps; }
has_begun() { [[ $(systemctl show --property=MainPID --value "$1") != 0 ]]; }
has_pinned_model() { djinnctl --json ps | grep '"name":"bytes".*"pinned":true'; }
speak() { djinnctl generate "$MODEL" --prompt "The " --max-new-tokens 20 --greedy; }
speaks() { [[ $(speak) == "$1" ]]; }
speaks_from_home() {
  says "$1" su insider -c \
    "djinnctl generate ~/models/own --prompt 'The ' --max-new-tokens 20 --greedy"
}
speaks_unread() {  # the same words, and not a byte was read for them since djinnd started
  speaks "$1" && { ! has_block_device || read_nothing; }
}
worker() { status | grep -o '"pid":[0-9]*' | head -n 1 | cut -d: -f2; }
filters() { sed -n 's/^Seccomp_filters:\t//p' "/proc/$1/status"; }
has_oom_score() { is "$1" cat "/proc/$2/oom_score_adj"; }  # SCORE PID
has_priority() { is "$1" cut -d" " -f19 "/proc/$2/stat"; }  # NICE PID
sees_own_sessions_only() {  # USER
  local seen
  seen=$(su "$1" -c 'djinnctl events --follow >/dev/null &
    until djinnctl sessions --no-legend | grep .; do :; done; kill $!') || return 1
  [[ -n $seen ]] && ! grep -v " $1 " <<<"$seen"
}
sessions_of_root() { (($(djinnctl sessions --no-legend | grep -c " root ") >= $1)); }  # COUNT
worker_is_confined() {
  says '"seccomp":true' status && says_nothing grep -o '"landlock_abi":0' <(status) &&
    (($(filters "$(worker)") > $(filters "$(shown MainPID)")))
}

# --- D-Bus
bus() {  # METHOD ARGUMENT...
  busctl call org.djinn.Manager1 /org/djinn/Manager1 org.djinn.Manager1 "$@"
}
HEAR=(env "PYTHONPATH=$PLACE/python" python3 "$PLACE/source/tests/boot/hear.py")
heard() { eventually grep "^$1" "$2"; }  # BEGINNING FILE
bus_as() { su "$1" -c "busctl call org.djinn.Manager1 /org/djinn/Manager1 org.djinn.Manager1 $2"; }

# --- the journal: entries of one kind (daemon/djinnd/events/journal.cc) with all fields of theirs
MODEL_LOADED=de1b1471320a48eab7a788d106762832
SESSION_NEW=68b4aef73eaa4e179d8a4eace693ae2d
journal_of() {  # KIND FIELD=VALUE...
  journalctl -u djinnd.service --no-pager -o export MESSAGE_ID="$1" "${@:2}"
}

hears_of_own_only() {
  local each
  heard SessionNew /heard-by-insider >/dev/null || return 1
  for each in $(sed -n "s/^SessionNew //p" /heard-by-insider); do
    eventually says "DJINN_USER=$(id -u insider)" \
      journal_of "$SESSION_NEW" DJINN_SESSION="$each" || return 1
  done
}

# --- completion: what the shell's own completion would list
completed() {  # WORD...
  local COMP_WORDS=(djinnctl "$@") COMP_CWORD=$# COMPREPLY=()
  local COMP_LINE="${COMP_WORDS[*]}"
  local COMP_POINT=${#COMP_LINE}
  _djinnctl
  printf '%s\n' "${COMPREPLY[@]}"
}
completes_soon() {  # the best of five, for others use the machine too
  local began spent best=1000000 try
  for ((try = 0; try < 5; try++)); do
    began=${EPOCHREALTIME/./}
    completed unload "" >/dev/null
    spent=$((${EPOCHREALTIME/./} - began))
    ((spent < best)) && best=$spent
  done
  ((best < 100000)) || { echo "$best us"; return 1; }
}

check "apt refuses packages that are not as they were signed" refuses 100 take_from forged
check "apt trusts the repository" take_from 0
check "the packages are installed" \
  apt install djinnd djinnctl libdjinn-client-dev python3-djinn
command -v djinnctl >/dev/null || exit 1
for unit in djinnd.socket djinnd.service; do
  check "$unit is enabled" is enabled systemctl is-enabled "$unit"
  check "and active" is active systemctl is-active "$unit"
done
check "nothing has failed on a machine without a GPU" nothing_has_failed
check "no name of Debian's djinn is taken" is_gone /usr/bin/djinn /usr/share/man/man1/djinn.1.gz
check "the first start leaves no error in the journal" says_nothing \
  bash -c "journalctl -u djinnd.service --no-pager | grep -iE 'error|denied|not on D-Bus'"
check "the configuration's directory is root's" says "755 root root" \
  stat -c "%a %U %G" /etc/djinn
check "the socket's owner and mode" says "660 root djinn" stat -c "%a %U %G" /run/djinn/djinnd.sock
check "and its directory's" says "755 root root" stat -c "%a %U %G" /run/djinn
check "it tells how it goes" says "models (0 loading)" systemctl show djinnd.service -p StatusText
check "its exposure is low" is_hardened
check "a kernel whose setting of huge pages cannot be written is no error" \
  systemd-tmpfiles --create djinn.conf
for page in djinn-overview.7 djinnd.8 djinnd.conf.5 djinnctl.1 libdjinn-client.3 djinn_close.3; do
  check "man $page" says NAME man "${page##*.}" "${page%.*}"
done
check "the journal's catalog is known" says djinn journalctl --list-catalog
for each in smoke client python; do check "autopkgtest $each" autopkgtest "$each"; done

"${HEAR[@]}" >/heard-by-root 2>&1 &
ear=$!
check "root subscribes to signals" heard subscribed /heard-by-root
id=$(djinnctl load "$MODEL")
check "a model is loaded" is_resident
check "a subscriber hears of it" heard "ModelLoaded $id [1-9]" /heard-by-root
bytes=$(sed -n "s/^ModelLoaded $id //p" /heard-by-root)
check "the journal has it, and the model's size" eventually says $'\nDJINN_BYTES='"$bytes"$'\n' \
  journal_of "$MODEL_LOADED" DJINN_MODEL="$id"
check "and its device" says $'\nDJINN_DEVICE=cpu:0\n' \
  journal_of "$MODEL_LOADED" DJINN_MODEL="$id"
check "no other model's" says_nothing journal_of "$MODEL_LOADED" DJINN_MODEL=000000000000
words=$(speak)
check "a subscriber hears of sessions" heard "SessionNew [0-9a-f]" /heard-by-root
session=$(sed -n "s/^SessionNew //p" /heard-by-root | tail -n 1)
check "the journal has them" eventually says "DJINN_USER=0" \
  journal_of "$SESSION_NEW" DJINN_SESSION="$session"
kill "$ear"
check "it speaks" test -n "$words"
check "its worker is confined" worker_is_confined
check "the bus knows the model" eventually says "$id" bus ListModels
set +u  # Debian's completion does not know it
. /usr/share/bash-completion/bash_completion
_completion_loader djinnctl
set -u
check "completion knows verbs" says unload completed unlo
check "and live ids" says "$id" completed unload ""
check "at once" completes_soon

for ((upgrade = 1; upgrade <= UPGRADES; upgrade++)); do
  before=$(shown MainPID)
  take_from "$upgrade" >/dev/null
  check "upgrade $upgrade" apt upgrade
  check "upgrade $upgrade is installed" is_version "+upgrade$upgrade"
  check "upgrade $upgrade is another process" is_another_process "$before"
  check "upgrade $upgrade has the model" is_resident
  check "upgrade $upgrade has read nothing" read_nothing
  check "upgrade $upgrade speaks as before, unread" speaks_unread "$words"
done

check "restart" systemctl restart djinnd.service
check "the model is resident after a restart" is_resident
check "nothing is read again" read_nothing
check "it speaks as before" speaks_unread "$words"
for ((kill = 1; kill <= 10; kill++)); do
  before=$(shown MainPID)
  kill -KILL "$before"
  check "kill $kill is survived" eventually serves_again "$before"
done
check "no limit of restarts ends it for good" \
  has_value StartLimitIntervalUSec 0
check "the model is resident after kills" is_resident
check "nothing is read again after kills" read_nothing
check "it speaks after kills" speaks_unread "$words"
check "the watchdog is set" has_value WatchdogUSec 30s
set_for_now WatchdogSec=5s
before=$(shown MainPID)
kill -STOP "$before"
check "the watchdog ends a daemon that stands still" eventually is_another_process "$before"
check "the model is resident after that" eventually is_resident
set_for_now

speak >/dev/null
check "a worker killed for memory does not end the unit" has_value OOMPolicy continue
check "djinnd is to be spared when memory runs out" has_value OOMScoreAdjust -500
if (echo -500 >/proc/self/oom_score_adj) 2>/dev/null; then
  check "and is" has_oom_score -500 "$(shown MainPID)"
else
  echo "skipped its score for that: nobody may lower one here, without CAP_SYS_RESOURCE"
fi
check "its worker is not" has_oom_score 500 "$(worker)"
check "djinnd's loop goes before others" has_priority -10 "$(shown MainPID)"
check "its worker does not" has_priority 0 "$(worker)"
if [[ -d /oom ]]; then
  before=$(shown MainPID)
  worker >/oom/cgroup.procs
  check "a run whose worker is killed for memory ends as if nothing were" speaks "$words"
  check "the kernel killed it" grep -q "^oom_kill [1-9]" /oom/memory.oom_control /oom/memory.events
  check "djinnd goes on" has_value MainPID "$before"
  check "with the model" is_resident
  check "which is not read again" read_nothing
else
  echo "skipped a worker is killed for memory: no control group can be made here"
fi

useradd -m outsider
useradd -m -G djinn insider
check "a user outside of the group is refused" refuses 5 su outsider -c "djinnctl status"
check "and told of the group" complains "adduser outsider djinn" su outsider -c "djinnctl status"
check "on the bus too" refuses 1 bus_as outsider ListModels
check "a user inside may call there" bus_as insider ListSessions
check "a user outside of it hears no signals" refuses 1 timeout 10 \
  setpriv --reuid outsider --regid outsider --init-groups "${HEAR[@]}"
setpriv --reuid insider --regid insider --init-groups "${HEAR[@]}" >/heard-by-insider 2>&1 &
ear=$!
check "a user inside does" heard subscribed /heard-by-insider
speak >/dev/null
check "a user inside loads and runs" su insider -c \
  "djinnctl generate '$MODEL' --prompt Hello --max-new-tokens 5 --greedy"
djinnctl events --follow >/dev/null &
follower=$!
check "root has a session" eventually sessions_of_root 1
check "which a user inside does not see" sees_own_sessions_only insider
kill "$follower"
install -d -o insider -m 700 ~insider/models
cp -r "$MODEL" ~insider/models/own && chown -R insider ~insider/models
# Its bytes are nobody else's: the lowest bits of one weight are others.
own=~insider/models/own/model.safetensors
printf 'x' | dd of="$own" bs=1 seek=$(($(stat -c %s "$own") - 4)) conv=notrunc status=none
check "a home that the service cannot read" refuses 1 \
  nsenter -t "$(shown MainPID)" -m setpriv --reuid djinn --clear-groups test -e "$own"
other=$(su insider -c "djinnctl load --no-pin ~/models/own")
check "has a model that is loaded from there" test -n "$other" -a "$other" != "$id"
check "which its user hears of" heard "ModelLoaded $other [1-9]" /heard-by-insider
check "and runs from there" speaks_from_home "$words"
check "$(grep -c SessionNew /heard-by-insider) signals are of own sessions" hears_of_own_only
kill "$ear"

mkdir -p /etc/djinn
echo 'lane.threads = "many"' >/etc/djinn/djinnd.conf
check "a reload with a bad configuration fails" refuses 1 systemctl reload djinnd.service
check "changes nothing, and says why" eventually says "djinnd.conf:1: error: lane.threads" \
  journalctl -u djinnd.service --no-pager
echo 'memory.session_quota = "1GiB"' >/etc/djinn/djinnd.conf
check "a reload with a good one" systemctl reload djinnd.service
check "is taken up" eventually says "the configuration is reloaded" \
  journalctl -u djinnd.service --no-pager

scrape() {  # PATH: what djinnd answers; a system that boots has no curl
  exec 3<>/dev/tcp/127.0.0.1/10466 || return 1
  printf 'GET %s HTTP/1.1\r\n\r\n' "$1" >&3
  cat <&3
}
check "metrics are off until they are enabled" refuses 1 bash -c 'exec 3<>/dev/tcp/127.0.0.1/10466'
systemctl enable djinnd-metrics.socket 2>/dev/null
id=$(djinnctl load "$MODEL")
check "their socket comes with a restart" systemctl restart djinnd.service
check "they are told through it" says 'djinn_models{state="resident"} ' scrape /metrics
check "the model has outlived that" is_resident
check "the watchdog is told of" says "djinn_watchdog_interval_seconds 30" scrape /metrics
check "djinnd is healthy" says "200 OK" scrape /healthz
check "and becomes ready" eventually says "200 OK" scrape /readyz

check "stop frees everything" systemctl stop djinnd.service
check "and what systemd kept" has_value NFileDescriptorStore 0
check "nothing has failed" nothing_has_failed
check "its socket is stopped" systemctl stop djinnd.socket
check "which is told to who asks" complains "systemctl start djinnd.socket" djinnctl ps
check "it listens again" systemctl start djinnd.socket
check "start" systemctl start djinnd.service
loads=djinn-load@$(systemd-escape --path "$MODEL").service
check "a model is to be loaded at each start" systemctl enable "$loads"
check "and now" systemctl start "$loads"
check "it is there, and stays" has_pinned_model
systemctl stop djinnd.service
check "a stopped djinnd has no model" has_value NFileDescriptorStore 0
systemctl start djinnd.service
check "the next one has it again" eventually has_pinned_model
systemctl stop "$loads"
systemctl kill --kill-who=main --signal=STOP djinnd.service
systemctl start --no-block "$loads"
check "a load has begun that waits for djinnd" eventually has_begun "$loads"
check "is stopped" systemctl stop "$loads"
check "and that is no failure" is inactive systemctl is-active "$loads"
systemctl kill --kill-who=main --signal=CONT djinnd.service
systemctl start "$loads"
check "one that is not there" refuses 1 systemctl start djinn-load@nowhere.service
check "is told of by its unit" says "nowhere" journalctl -u djinn-load@nowhere.service --no-pager
check "and djinnd serves" says bytes djinnctl ps
systemctl reset-failed djinn-load@nowhere.service
check "autopkgtest daemon" autopkgtest daemon

check "the packages are removed" apt remove djinnd djinnctl python3-djinn
check "nothing runs" refuses 3 systemctl is-active djinnd.socket djinnd.service
check "no program is left" is_gone /usr/bin/djinnd /usr/libexec/djinn /run/djinn/djinnd.sock
check "state is" is_left /var/lib/djinn
check "configuration is" is_left /etc/djinn/djinnd.conf
check "they are purged" \
  apt purge djinnd djinnctl python3-djinn djinn-torch djinn-reach libdjinn-client1
check "state is gone" is_gone /var/lib/djinn /var/cache/djinn /etc/djinn
check "and the models of its start" is_gone /etc/systemd/system/djinnd.service.wants
check "no package is left" says_nothing bash -c "dpkg-query -W | grep djinn"
check "and no file" says_nothing find /etc /usr /var/lib /run -not -path "$PLACE*" \
  -not -path "/var/lib/apt/*" -name "*djinn*"
check "nothing has failed in the end" nothing_has_failed
echo "done"
