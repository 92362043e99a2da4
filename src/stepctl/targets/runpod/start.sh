#!/bin/sh
# interim
D=${STEPCTL_DIR:-/var/lib/stepctl}
mkdir -p -m 700 "$D"
printf '%s' "$STEPCTL_WATCHDOG" > "$D/watchdog.sh"
sh "$D/watchdog.sh" &
mkdir -p -m 700 /root/.ssh; echo "$PUBLIC_KEY" > /root/.ssh/authorized_keys; chmod 600 /root/.ssh/authorized_keys
mkdir -p /run/sshd /etc/ssh
K="$D/host_key"
umask 077
case ${STEPCTL_HOST_KEY:-} in ''|'{{'*) ssh-keygen -q -t ed25519 -N '' -f "$K" </dev/null ;; *) printf '%s' "$STEPCTL_HOST_KEY" | base64 -d > "$K"; ssh-keygen -y -f "$K" > "$K.pub" ;; esac
echo "stepctl-host-key: $(cut -d' ' -f1,2 "$K.pub")"
/usr/sbin/sshd -D -e -h "$K" -o UsePAM=no -o PasswordAuthentication=no -o PermitRootLogin=prohibit-password &
while :; do sleep 60 & wait $!; done
