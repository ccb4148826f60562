#!/bin/sh
# Usage: bench/debian.sh SUITE (trixie, forky, ...), as root, with debootstrap
#
# An environment with another Python and another torch than the usual one: those of a Debian release, which come without
# CUDA. The release is unpacked into .venv-SUITE/root, Armillary's dependencies are installed beside its torch, and
# .venv-SUITE/bin/python starts its interpreter with this folder and /tmp at their usual places. The mounts end with the
# process: nothing of this folder is ever left mounted below .venv-SUITE.
set -eu
suite=$1
here=$(cd "$(dirname "$0")/.." && pwd)
place=$here/.venv-$suite
if [ ! -e "$place/root/usr/bin/python3" ]; then
  debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv,python3-torch \
    "$suite" "$place/root" "${DEBIAN_MIRROR:-http://deb.debian.org/debian}"
fi
mkdir -p "$place/bin" "$place/root$here"
cp /etc/resolv.conf "$place/root/etc/resolv.conf"
cp /etc/ssl/certs/ca-certificates.crt "$place/root/etc/ssl/certs/" # what this machine trusts
cat > "$place/bin/enter" <<END
#!/bin/sh
export WHERE="\$PWD"
exec unshare --mount --propagation private sh -c '
  mount -t proc proc "$place/root/proc" && mount --rbind /dev "$place/root/dev" && mount --bind /tmp "$place/root/tmp" &&
  mount --bind "$here" "$place/root$here" &&
  exec chroot "$place/root" sh -c "cd \"\\\$WHERE\" && exec \"\\\$@\"" enter "\$@"' enter "\$@"
END
cat > "$place/bin/python" <<END
#!/bin/sh
exec "$place/bin/enter" "$place/venv/bin/python" "\$@"
END
chmod +x "$place/bin/enter" "$place/bin/python"
"$place/bin/enter" python3 -m venv --system-site-packages "$place/venv"
"$place/bin/enter" "$place/venv/bin/pip" install --quiet --disable-pip-version-check --no-compile -e "$here[test,gguf,hf,images,parquet]"
