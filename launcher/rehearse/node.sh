# Makes the mounts of a node, then becomes its PID 1: sh node.sh FOLDER NAME COMMAND...
#
# A node gets a new /sys, because the old one still lists the machine's interfaces in /sys/class/net. The cgroup mounts
# below it are kept. A user that may not mount one keeps the old one.
set -e
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t tmpfs -o mode=1777 tmpfs /run/tmp
mount --bind "$1/hosts" /etc/hosts
mkdir "$1/cgroup.$2"
if mount --rbind /sys/fs/cgroup "$1/cgroup.$2" 2>/dev/null; then
    if mount -t sysfs sysfs /sys 2>/dev/null; then mount --rbind "$1/cgroup.$2" /sys/fs/cgroup; fi
    umount -l "$1/cgroup.$2"
fi
shift 2
exec "$@"
