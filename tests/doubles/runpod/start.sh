# The start command of a pod that gives none, as that of the provider's own images: with PUBLIC_KEY it makes host keys,
# starts sshd and prints the fingerprints; then it sleeps.
set -e
cp /etc/skel/.bashrc /root/.bashrc 2>/dev/null || :
if [ -n "$PUBLIC_KEY" ]; then
  echo "Setting up SSH..."
  mkdir -p -m 700 /root/.ssh
  echo "$PUBLIC_KEY" >>/root/.ssh/authorized_keys
  chmod 600 /root/.ssh/authorized_keys
  for type in ed25519 ecdsa; do
    [ -f /etc/ssh/ssh_host_${type}_key ] || ssh-keygen -q -t $type -N '' -f /etc/ssh/ssh_host_${type}_key
    echo "$type key fingerprint:"
    ssh-keygen -lf /etc/ssh/ssh_host_${type}_key.pub
  done
  mkdir -p -m 755 /run/sshd
  /usr/sbin/sshd
fi
printenv | grep -E '^[A-Z_][A-Z0-9_]*=' | grep -v '^PUBLIC_KEY' |
  awk -F = '{ v = $0; sub(/^[^=]*=/, "", v); print "export " $1 "=\"" v "\"" }' >/etc/rp_environment
echo 'source /etc/rp_environment' >>/root/.bashrc
echo "Start script(s) finished, Pod is ready to use."
exec sleep infinity
