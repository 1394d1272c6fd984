#!/bin/sh
# Two nodes on a slow network, on one machine: two network namespaces, joined by a virtual cable
# with a delay. It needs root, iproute2, and a kernel that has netem.
#
#   sh batch/netem.sh 50 torchrun --standalone --nproc-per-node 2 train_ddp.py --device cpu \
#       --delay-ms 50 --netem
#
# runs the command as two nodes of one process each. The kernel's netem holds each packet back for
# half of the 50 ms, so a packet and its answer take 50 ms. (--delay-ms is written to config.json;
# --netem says that the network waits, not the script.)
#
#   sh batch/netem.sh 0 works                      # exit status 0 if this machine has what it needs
set -e
round_trip=${1:-} a="netem-a-$$" b="netem-b-$$" children=''
case $round_trip in ''|*[!0-9.]*|.|*.*.*)
    echo "netem.sh: error: first comes the delay, a number of ms" >&2
    exit 2 ;;
esac
shift
if [ "$1" != works ] && [ "$1 $2 $3 $4" != "torchrun --standalone --nproc-per-node 2" ]; then
    echo "netem.sh: error: the command must begin: torchrun --standalone --nproc-per-node 2" >&2
    exit 2
fi

clean() { for node in $a $b; do ip netns delete "$node" 2>/dev/null || true; done; }
stop() {
    trap '' HUP INT TERM USR1
    if [ "$children" ]; then kill $children 2>/dev/null || true; wait; fi
    exit "$1"
}
trap clean EXIT
trap 'stop 129' HUP
trap 'stop 130' INT
trap 'stop 143' TERM
trap 'stop 138' USR1

ip netns add "$a"
ip netns add "$b"
ip link add eth0 netns "$a" type veth peer name eth0 netns "$b"
one_way=$(LC_ALL=C awk "BEGIN { printf \"%.0f\", $round_trip * 500 }")us
number=1
for node in $a $b; do
    ip -n "$node" address add "10.77.0.$number/24" dev eth0
    ip -n "$node" link set lo up
    ip -n "$node" link set eth0 up
    tc -n "$node" qdisc add dev eth0 root netem delay "$one_way" limit 100000
    number=$((number + 1))
done
if [ "$1" = works ]; then
    ip netns exec "$a" true
    exit 0
fi
shift 4
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"     # torchrun sets it only for several processes
number=1
for node in $a $b; do                              # the namespaces are new, so the port is free
    ip netns exec "$node" torchrun --nnodes 2 --nproc-per-node 1 \
        --rdzv-backend c10d --rdzv-endpoint 10.77.0.1:29400 --rdzv-conf "is_host=$((2 - number))" \
        --local-addr "10.77.0.$number" "$@" &
    children="$children $!" number=$((number + 1))
done
status=0
for child in $children; do wait "$child" || status=1; done
exit "$status"
