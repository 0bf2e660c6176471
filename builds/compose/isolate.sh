#!/bin/sh
# Closes a Docker network that a container which nobody trusts shares with others: it may open connections to
# the ports that are named, and to nothing else on that network, the host and its published ports included.
#
#   isolate.sh add    NETWORK FROM TO:PORT[/udp]...
#   isolate.sh status NETWORK FROM TO:PORT[/udp]...
#   isolate.sh remove NETWORK
#
# NETWORK is the name that `docker network ls` shows. FROM and TO are running containers on it, by their name or
# by their Compose service, of which there may be several. FROM can be `any`: whoever is on the network. Without
# it the other containers on the network are trusted and may do what they could before; one that joins later,
# or comes back with another address, may not until `add` is run again. Replies pass always.
#
# add     makes the rules, or replaces those that it made for NETWORK before. Run it after every `up`.
#         What is connected already stays so.
# status  tells whether the rules are those that `add` would make now: exit status 0, else 1.
# remove  takes them out again, also when the network is gone.
#
# The rules match addresses, so FROM must not be able to change its own: drop its capabilities. They are gone
# after a reboot. IPTABLES names another iptables (iptables-legacy), if that is what Docker uses.
set -eu

iptables=${IPTABLES:-iptables}
ip6tables=${IP6TABLES:-$(echo "$iptables" | sed 's/iptables\([^/]*\)$/ip6tables\1/')}

die() {
	echo "isolate.sh: $*" >&2
	exit 1
}

usage() {
	die "accepted are: add NETWORK FROM TO:PORT[/udp]..., status NETWORK FROM TO:PORT[/udp]..., remove NETWORK"
}

# inspect_network FORMAT: one property of the network, or the end.
inspect_network() {
	docker network inspect -f "$1" "$network" || die "network $network cannot be looked up"
}

# shellcheck disable=SC2016 # the variables are of Docker's templates
# look_up: sets bridge, ipv6 and members, a line for each container on the network: NAME SERVICE IPV4 IPV6, each
# address with its prefix, `-` for what it has not.
look_up() {
	driver=$(inspect_network '{{.Driver}}')
	[ "$driver" = bridge ] || die "network $network: its driver is $driver, accepted is bridge"
	ipv6=$(inspect_network '{{.EnableIPv6}}')
	bridge=$(inspect_network '{{index .Options "com.docker.network.bridge.name"}}')
	if [ -z "$bridge" ]; then
		id=$(inspect_network '{{.Id}}')
		bridge=br-$(printf %.12s "$id")
	fi
	[ -e "/sys/class/net/$bridge" ] || die "network $network: there is no interface $bridge on this host"
	attached=$(inspect_network '{{range $id, $c := .Containers}}{{$id}} {{or $c.IPv4Address "-"}} {{or $c.IPv6Address "-"}}
{{end}}')
	members=$(echo "$attached" | while read -r id addr4 addr6; do
		[ -n "$id" ] || continue
		names=$(docker inspect -f '{{.Name}} {{or (index .Config.Labels "com.docker.compose.service") "-"}}' "$id") ||
			exit 1
		echo "${names#/} $addr4 $addr6"
	done) || die "a container on network $network cannot be looked up"
	[ -n "$members" ] || die "network $network: no container is running on it"
}

# addresses WHO: the addresses of the family in column $column of the running containers named WHO.
addresses() {
	found=$(echo "$members" | awk -v who="$1" -v column="$column" '
		($1 == who || $2 == who) && $column ~ "^[0-9a-f.:]+/" { sub("/.*", "", $column); print $column }')
	[ -n "$found" ] || die "network $network: no running container or service $1 with an IPv$family address"
	echo "$found"
}

# others: the addresses of those that are not FROM.
others() {
	echo "$members" | awk -v who="$from" -v column="$column" '
		$1 != who && $2 != who && $column ~ "^[0-9a-f.:]+/" { sub("/.*", "", $column); print $column }'
}

# rules TO:PORT[/udp]...: the rules of the chain, as `iptables -S` prints them.
rules() {
	echo "-A $chain -m conntrack --ctstate RELATED,ESTABLISHED -j RETURN"
	# Neighbours are found by ICMPv6, RFC 4861; without it nobody on the network reaches anybody.
	[ "$family" = 4 ] || echo "-A $chain -p ipv6-icmp -j RETURN"
	if [ "$from" = any ]; then
		sources=any
	else
		sources=$(addresses "$from") || exit 1
		for a in $(others); do
			echo "-A $chain -s $a/$bits -j RETURN"
		done
	fi
	for target in "$@"; do
		port=${target##*:}
		protocol=tcp
		case $port in
		*/udp) protocol=udp port=${port%/udp} ;;
		esac
		to=$(addresses "${target%:*}") || exit 1
		for a in $sources; do
			for b in $to; do
				echo "-A $chain$([ "$a" = any ] || echo " -s $a/$bits") -d $b/$bits -p $protocol -m $protocol --dport $port -j RETURN"
			done
		done
	done
	# A reset, so that what is denied fails at once.
	echo "-A $chain -p tcp -j REJECT --reject-with tcp-reset"
	echo "-A $chain -j DROP"
}

# check_target TO:PORT[/udp]
check_target() {
	port=${1##*:}
	port=${port%/udp}
	case $1 in
	?*:?*) ;;
	*) die "$1: accepted is TO:PORT or TO:PORT/udp" ;;
	esac
	case $port in
	*[!0-9]* | ??????*) die "$1: accepted is TO:PORT or TO:PORT/udp" ;;
	esac
	if [ "$port" -lt 1 ] || [ "$port" -gt 65535 ]; then
		die "$1: accepted are ports 1 to 65535"
	fi
}

# use 4|6: sets what depends on the address family.
use() {
	family=$1
	if [ "$family" = 4 ]; then
		ipt=$iptables bits=32 column=3 knob=/proc/sys/net/bridge/bridge-nf-call-iptables
	else
		ipt=$ip6tables bits=128 column=4 knob=/proc/sys/net/bridge/bridge-nf-call-ip6tables
	fi
}

# can_filter: ends unless the rules would be asked at all.
can_filter() {
	command -v "$ipt" >/dev/null || die "$ipt is missing"
	$ipt -w -S DOCKER-USER >/dev/null 2>&1 ||
		die "$ipt has no chain DOCKER-USER: Docker makes none for IPv$family here, or uses another iptables (see IPTABLES)"
	[ "$(cat "$knob" 2>/dev/null)" = 1 ] ||
		die "$knob is not 1, so packets within a bridge are not filtered: modprobe br_netfilter, then sysctl -w net.bridge.${knob##*/}=1"
}

# jumps CHAIN: the rules of CHAIN that lead to ours.
jumps() {
	$ipt -w -S "$1" 2>/dev/null | grep -e " -j $chain\$" || :
}

# unjump [KEEP]: takes out the rules that lead to our chain, but for interface KEEP.
unjump() {
	for hook in DOCKER-USER INPUT; do
		jumps "$hook" | while read -r rule; do
			case $rule in
			"-A $hook -i ${1:-} "*) continue ;;
			esac
			# shellcheck disable=SC2086 # the words of a rule
			$ipt -w -D ${rule#-A }
		done
	done
}

add() {
	wanted=$(rules "$@") || exit 1
	# One transaction: the chain is emptied and filled at once. Nobody passes meanwhile.
	printf '*filter\n:%s - [0:0]\n%s\nCOMMIT\n' "$chain" "$wanted" | "$ipt-restore" -w --noflush ||
		die "$ipt-restore failed"
	for hook in DOCKER-USER INPUT; do
		$ipt -w -C "$hook" -i "$bridge" -j "$chain" 2>/dev/null || $ipt -w -I "$hook" -i "$bridge" -j "$chain"
	done
	unjump "$bridge" # of a former network of that name
}

stale() {
	die "network $network: the IPv$family rules are missing or stale, run add"
}

status() {
	wanted=$(rules "$@") || exit 1
	for hook in DOCKER-USER INPUT; do
		[ "$(jumps "$hook")" = "-A $hook -i $bridge -j $chain" ] || stale
	done
	[ "$($ipt -w -S "$chain" 2>/dev/null | grep '^-A')" = "$wanted" ] || stale
}

remove() {
	command -v "$ipt" >/dev/null || return 0
	unjump
	if $ipt -w -S "$chain" >/dev/null 2>&1; then
		$ipt -w -F "$chain"
		$ipt -w -X "$chain"
	fi
}

[ $# -ge 2 ] || usage
verb=$1 network=$2
shift 2
[ "$(id -u)" = 0 ] || die "must be root, for $iptables"
# A chain's name has at most 28 characters, and must outlive the network.
chain=SANDBOXALLOW-$(printf %s "$network" | cksum | cut -d ' ' -f 1)

case $verb in
add | status)
	[ $# -ge 2 ] || usage
	from=$1
	shift
	for target in "$@"; do
		check_target "$target"
	done
	command -v docker >/dev/null || die "docker is missing"
	look_up
	families=4
	[ "$ipv6" != true ] || families="4 6"
	for f in $families; do # all before the first rule is made
		use "$f"
		can_filter
		rules "$@" >/dev/null
	done
	for f in $families; do
		use "$f"
		"$verb" "$@"
	done
	echo "isolate.sh: network $network: $from may open connections to $*, and to nothing else on $bridge"
	;;
remove)
	[ $# -eq 0 ] || usage
	for f in 4 6; do
		use "$f"
		remove
	done
	echo "isolate.sh: network $network: no rules"
	;;
*)
	usage
	;;
esac
