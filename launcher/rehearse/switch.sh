# The switch of a cluster: sh switch.sh FOLDER HOSTS AGENT [NAME ADDRESS]...
# It runs in namespaces of its own, and ends with its standard input.
set -e
folder=$1
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p "$folder/nodes" /run/tmp
printf '%s\n' "$2" > "$folder/hosts"
printf '%s\n' "$3" > "$folder/agent"
chmod 755 "$folder/agent"
shift 3
while [ $# -gt 0 ]; do
    ln -s "$1" "$folder/nodes/$2"
    shift 2
done
ip link add br0 type bridge forward_delay 0
ip link set br0 up
echo ready
read -r _
