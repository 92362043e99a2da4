# First process of a pod: $1 is the pod's folder (u: what it wrote, w, m), $2 its id, $3 how many pairs of a folder of
# the host and its place in the pod follow (ro: in front: read-only); then the container's start command.
read -r _
exec </dev/null 2>&1
set -e
folder=$1 id=$2 binds=$3 root=$1/m
shift 3
mount -t overlay overlay -o "lowerdir=/,upperdir=$folder/u,workdir=$folder/w" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys" 2>/dev/null || :
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
for device in null zero full random urandom tty; do
  : >"$root/dev/$device"
  mount --bind "/dev/$device" "$root/dev/$device"
done
ln -s /proc/self/fd "$root/dev/fd"
for number in 0:stdin 1:stdout 2:stderr; do ln -s "fd/${number%:*}" "$root/dev/${number#*:}"; done
while [ "$binds" -gt 0 ]; do
  mkdir -p "$root$2"
  mount --bind "${1#ro:}" "$root$2"
  case $1 in ro:*) mount -o remount,bind,ro "$root$2" ;; esac
  shift 2
  binds=$((binds - 1))
done
hostname "$id"
mkdir "$root/.old"
cd "$root"
pivot_root . .old
umount -l /.old
rmdir /.old
cd /
if [ -e /.imposter ]; then # another sshd, with another host key, is the one that answers
  mkdir -p -m 755 /run/sshd
  [ -s /.imposter ] || { rm /.imposter; ssh-keygen -q -t ed25519 -N '' -f /.imposter; }
  /usr/sbin/sshd -p 2222 -h /.imposter -o PidFile=none
fi
unset OLDPWD PWD
exec "$@"
