#!/bin/sh
# Starts both binaries on loopback addresses, as the user who calls it, with Corefile.example and
# Caddyfile.example; shows both logs; stops both on Ctrl-C, and the other one when one ends.
# BIN is the folder of the binaries (default bin). The variables below are what the examples take.
set -eu

cd "$(dirname "$0")/.."
bin=${BIN:-bin}
state=$(mktemp -d "${TMPDIR:-/tmp}/sandboxallow.XXXXXX")

: "${SANDBOXALLOW_DNS_ADDR:=127.0.0.1}" "${SANDBOXALLOW_DNS_PORT:=1053}"
: "${SANDBOXALLOW_GATEWAY:=127.0.0.1}" "${SANDBOXALLOW_TLS_PORT:=8443}"
: "${SANDBOXALLOW_POLICY:=policy.example}"
: "${SANDBOXALLOW_HTTP_PORT:=8880}" "${SANDBOXALLOW_PROXY_PORT:=8890}"
: "${SANDBOXALLOW_TLS_LISTEN:=$SANDBOXALLOW_GATEWAY:$SANDBOXALLOW_TLS_PORT}"
: "${SANDBOXALLOW_HTTP_LISTEN:=http://:$SANDBOXALLOW_HTTP_PORT}"
: "${SANDBOXALLOW_PROXY_LISTEN:=http://:$SANDBOXALLOW_PROXY_PORT}"
: "${SANDBOXALLOW_HTTP_BIND:=$SANDBOXALLOW_GATEWAY}"
export SANDBOXALLOW_DNS_ADDR SANDBOXALLOW_DNS_PORT SANDBOXALLOW_GATEWAY SANDBOXALLOW_POLICY \
	SANDBOXALLOW_TLS_LISTEN SANDBOXALLOW_HTTP_LISTEN SANDBOXALLOW_PROXY_LISTEN SANDBOXALLOW_HTTP_BIND

# start NAME COMMAND...: runs it in the background; NAME.up appears once it serves, NAME.gone once it has
# ended. A file and not `kill -0`: that succeeds for a child that has ended too, until it is waited for.
start() {
	name=$1
	shift
	mkfifo "$state/$name"
	show "$name" <"$state/$name" &
	"$@" >"$state/$name" 2>&1 &
	pids="$pids $!"
}

# show NAME: prefixes the log on standard input, which ends when its writer ends. Both binaries log a line
# once their listeners are open; a probe would leave a denied question in the log.
show() {
	trap '' INT TERM HUP # a terminal sends these to all; the last lines are still to come
	while IFS= read -r line; do
		printf '%-7s | %s\n' "$1" "$line"
		case $line in
		CoreDNS-* | *'serving initial configuration'*) : >"$state/$1.up" ;;
		esac
	done
	: >"$state/$1.gone"
}

# both SUFFIX, either SUFFIX: whether the files of both, or of one of them, are there.
both() { [ -e "$state/coredns.$1" ] && [ -e "$state/caddy.$1" ]; }
either() { [ -e "$state/coredns.$1" ] || [ -e "$state/caddy.$1" ]; }

hints() {
	ask="dig @$SANDBOXALLOW_DNS_ADDR -p $SANDBOXALLOW_DNS_PORT"
	get="curl --connect-to ::$SANDBOXALLOW_TLS_LISTEN"
	plain="curl --connect-to ::$SANDBOXALLOW_HTTP_BIND:${SANDBOXALLOW_HTTP_LISTEN##*:}"
	proxy="curl --proxy http://$SANDBOXALLOW_HTTP_BIND:${SANDBOXALLOW_PROXY_LISTEN##*:}"
	cat <<EOF

DNS is on $SANDBOXALLOW_DNS_ADDR:$SANDBOXALLOW_DNS_PORT, the gateway on $SANDBOXALLOW_TLS_LISTEN, the policy is $SANDBOXALLOW_POLICY. In another terminal:

  an allowed name: the address of the gateway, which leads to the real server
    $ask api.github.com
    $get https://api.github.com/
    $plain http://api.github.com/
  any other name: NXDOMAIN, a TLS alert (unrecognized_name), and 403
    $ask example.org
    $get https://example.org/
    $plain http://example.org/
  the same, from a client that is told of a forward proxy
    $proxy https://api.github.com/
    $proxy https://example.org/

Ctrl-C stops both.

EOF
}

pids=
asked=
trap 'asked=yes' INT TERM HUP
trap 'rm -rf "$state"' EXIT

start coredns "$bin/coredns" -conf Corefile.example
# Caddy keeps its state below these; nothing of the user's own Caddy is touched.
start caddy env XDG_DATA_HOME="$state/data" XDG_CONFIG_HOME="$state/config" \
	"$bin/caddy" run --config Caddyfile.example --adapter caddyfile

shown=
until [ -n "$asked" ] || either gone; do
	if [ -z "$shown" ] && both up; then
		hints
		shown=yes
	fi
	sleep 0.2 || :
done

code=0
if [ -z "$asked" ]; then
	code=1
	for name in coredns caddy; do
		[ ! -e "$state/$name.gone" ] || echo "$0: $name ended by itself, see its last lines above" >&2
	done
fi

# shellcheck disable=SC2086 # pids is a list
kill -TERM $pids 2>/dev/null || :
tries=0
until both gone || [ $tries -ge 50 ]; do # 10 s
	tries=$((tries + 1))
	sleep 0.2 || :
done
# shellcheck disable=SC2086
both gone || kill -KILL $pids 2>/dev/null || :
wait
exit $code
