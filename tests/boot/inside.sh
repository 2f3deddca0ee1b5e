#!/bin/bash
# Runs as root inside of the booted system; says "ok NAME" or "not ok NAME: WHY" on stdout.
# $MODEL: a directory of a byte-level model.
set -u

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
eventually() {  # COMMAND...: within half a minute
  local tries said
  for ((tries = 0; tries < 300; tries++)); do
    said=$("$@" 2>&1) && return 0
    sleep 0.1  # between two looks at a condition
  done
  echo "$said"
  return 1
}
shown() { systemctl show djinnd.service --property "$1" --value; }
has_value() { [[ $(shown "$1") == "$2" ]] || { shown "$1"; return 1; }; }
is_another_process() { [[ $(shown MainPID) != 0 && $(shown MainPID) != "$1" ]]; }
bytes_read() { djinnctl --json status | grep -o '"bytes_read":[0-9]*' | cut -d: -f2; }
read_nothing() { [[ $(bytes_read) == 0 ]] || { bytes_read; return 1; }; }
is_resident() { says "$id" djinnctl ps; }
speaks() { [[ $(speak) == "$1" ]]; }

speak() { djinnctl generate "$MODEL" --prompt "The " --max-new-tokens 20 --greedy; }
exposure() {
  systemd-analyze security djinnd.service | grep -o "djinnd.service: [0-9.]*" | cut -d" " -f2
}
is_hardened() { [[ $(exposure) < 1.1 ]] || { exposure; return 1; }; }

systemd-sysusers
systemctl daemon-reload
check "the socket is enabled and active" systemctl enable --now djinnd.socket
check "its directory and mode are root's and the group's" \
  says "660 root djinn" stat -c "%a %U %G" /run/djinn/djinnd.sock
check "a connection starts the service" djinnctl status
check "it is active" says active systemctl is-active djinnd.service
check "it tells how it goes" says "models (0 loading)" systemctl show djinnd.service -p StatusText
check "its exposure is low" is_hardened

id=$(djinnctl load "$MODEL")
check "a model is loaded" is_resident
words=$(speak)
check "it speaks" test -n "$words"

check "restart" systemctl restart djinnd.service
check "the model is resident after a restart" is_resident
check "nothing is read again" read_nothing
check "it speaks as before" speaks "$words"
for ((kill = 0; kill < 10; kill++)); do
  before=$(shown MainPID)
  kill -KILL "$before"
  eventually is_another_process "$before" >/dev/null
done
check "ten kills are survived" eventually is_resident
check "nothing is read again after kills" read_nothing
check "it speaks after kills" speaks "$words"
before=$(shown MainPID)
kill -STOP "$before"
check "the watchdog ends a daemon that stands still" eventually is_another_process "$before"
check "the model is resident after that" eventually is_resident

useradd -m outsider
useradd -m -G djinn insider
check "a user outside of the group is refused" refuses 5 su outsider -c "djinnctl status"
check "a user inside loads and runs" su insider -c \
  "djinnctl generate '$MODEL' --prompt Hello --max-new-tokens 5 --greedy"
check "and sees own sessions only" bash -c \
  '[[ $(su insider -c "djinnctl sessions --no-legend" | grep -vc insider) == 0 ]]'
install -d -o insider -m 700 ~insider/models
cp -r "$MODEL" ~insider/models/own && chown -R insider ~insider/models
check "a home that the service cannot read" su insider -c "djinnctl load --no-pin ~/models/own"

mkdir -p /etc/djinn
echo 'lane.threads = "many"' >/etc/djinn/djinnd.conf
check "a reload with a bad configuration" systemctl reload djinnd.service
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
check "they are told through it" says 'djinn_models{state="resident"} 1' scrape /metrics
check "the model has outlived that" is_resident
check "the watchdog is told of" says "djinn_watchdog_interval_seconds 30" scrape /metrics
check "djinnd is healthy" says "200 OK" scrape /healthz
check "and becomes ready" eventually says "200 OK" scrape /readyz

check "stop frees everything" systemctl stop djinnd.service
check "and what systemd kept" has_value NFileDescriptorStore 0
check "nothing has failed" bash -c '[[ -z $(systemctl --failed --no-legend | grep djinn) ]]'
echo "done"
poweroff
