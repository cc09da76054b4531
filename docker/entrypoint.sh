#!/bin/sh
# What a container of this image does: with a command it runs that (the launcher), without one it is a
# worker, an ssh server in the foreground.
#
#   SSH_KEYS_DIR   the mounted folder with the keys (default /etc/horovod/ssh):
#                    authorized_keys        who may come in; a worker must have it
#                    id_ed25519, id_ecdsa or id_rsa   with which the launcher goes to the workers
#                    ssh_host_ed25519_key   the host key of workers; made at every start if it is absent
#                    known_hosts            the host keys that the launcher trusts
#   SSHD_PORT      the port of a worker's ssh server (default 12345)
#   SSHD_CONFIG    the configuration of the ssh server (default /etc/horovod/sshd_config)
#
# Mounted files may be owned by root, readable for a group, or links, as Kubernetes makes them; ssh wants
# its own copies that nobody else can read.
set -eu
usual_mask=$(umask)
umask 077

keys=${SSH_KEYS_DIR:-/etc/horovod/ssh}
port=${SSHD_PORT:-12345}
config=${SSHD_CONFIG:-/etc/horovod/sshd_config}

refuse() {
  echo "entrypoint: $1" >&2
  exit 78 # EX_CONFIG of sysexits
}

# ssh and sshd take the home folder from here, not from $HOME.
home=$(getent passwd "$(id -u)" | cut -d: -f6) || home=
[ -n "$home" ] || refuse "ssh needs a user with a name, and user id $(id -u) has none in this image: \
run the container as one of its users (root, or horovod with id 1000)."

# install_file SOURCE NAME: a private copy in ~/.ssh.
install_file() {
  [ -r "$keys/$1" ] || refuse "$keys/$1 is there, but user id $(id -u) can't read it: mount it with a \
mode or group (fsGroup) that lets it."
  { mkdir -p "$home/.ssh" && chmod 700 "$home/.ssh"; } || refuse "can't write $home/.ssh: mount the \
keys in $keys instead, and leave the home folder writable."
  # Into a new file: the mode of an old one would stay.
  rm -f "$home/.ssh/$2"
  cat "$keys/$1" >"$home/.ssh/$2" || refuse "can't write $home/.ssh/$2: leave the home folder writable."
}

for name in authorized_keys id_ed25519 id_ecdsa id_rsa known_hosts; do
  if [ -e "$keys/$name" ]; then install_file "$name" "$name"; fi
done

if [ $# -gt 0 ]; then
  umask "$usual_mask"
  exec "$@"
fi

[ -s "$keys/authorized_keys" ] || refuse "no key may come in: mount the public key of the launcher as \
$keys/authorized_keys (and, in the container of the launcher, the private one as $keys/id_ed25519)."

server=$(command -v sshd || echo /usr/sbin/sshd)
[ -x "$server" ] || refuse "there is no sshd in this image: install the package openssh-server."

host_key=$home/.ssh/ssh_host_ed25519_key
if [ -e "$keys/ssh_host_ed25519_key" ]; then
  install_file ssh_host_ed25519_key ssh_host_ed25519_key
elif [ ! -s "$host_key" ]; then # a container that starts again keeps its own
  ssh-keygen -q -t ed25519 -N '' -C '' -f "$host_key"
fi
if [ "$(id -u)" = 0 ]; then mkdir -p /run/sshd && chmod 755 /run/sshd; fi

echo "entrypoint: ssh server of $(id -un) on port $port," \
  "host key $(ssh-keygen -l -f "$host_key" | cut -d' ' -f2)" >&2
# With the PATH of this image, else a command would not find the Python in it.
exec "$server" -D -e -f "$config" -p "$port" -h "$host_key" -o "SetEnv=PATH=$PATH"
