#!/bin/sh
# Runs the plain test suite on a 32-bit ARM Debian under qemu-user, and says what memory
# a server takes there. Needs root, debootstrap and qemu-user-static (Debian packages).
# Usage: benchmarks/arm.sh [unittest arguments]
set -eu
cd "$(dirname "$0")/.."
home=$PWD/.cache/arm
root=$home/root
python=$root/usr/bin/arm-python3
suite=bookworm

for tool in debootstrap qemu-arm-static; do
    command -v $tool >/dev/null || { echo "arm.sh needs $tool" >&2; exit 2; }
done

if [ ! -e "$home/done" ]; then
    rm -rf "$home"
    mkdir -p "$home"
    # The mirror that this machine uses; --foreign unpacks nothing that has to run.
    mirror=$(apt-get indextargets --format '$(REPO_URI)' "Codename: $suite" | head -1)
    debootstrap --foreign --arch=armhf --variant=minbase --include=python3 \
        $suite "$root" ${mirror:-} >"$home/log"
    for package in "$root"/var/cache/apt/archives/*.deb; do
        dpkg-deb -x "$package" "$root"
    done
    rm -rf "$root/dev"  # terminals are those of this machine
    ln -s /dev "$root/dev"
    # No chroot and no binfmt: this script is sys.executable, so that the servers which
    # the tests start are ARM programs too, and it lies where Python finds its library.
    cat >"$python" <<END
#!/bin/sh
exec $(command -v qemu-arm-static) -L "$root" -0 "\$0" "$root/usr/bin/python3.11" "\$@"
END
    chmod +x "$python"
    "$python" -m compileall -q "$root/usr/lib/python3.11" >/dev/null 2>&1 || true
    touch "$home/done"
fi

"$python" -c 'import platform, sys; print(platform.machine(), sys.version, sys.maxsize)'

# Guest memory is what is mapped below 4 GiB; qemu itself and its code lie above.
resident() {
    awk '/^[0-9a-f]+-/ { split($1, a, "-"); low = length(a[2]) <= 8 }
         /^Rss:/ && low { sum += $2 } END { printf "%.1f MB\n", sum / 1024 }' \
        "/proc/$1/smaps"
}
ping='{"jsonrpc":"2.0","id":1,"method":"ping"}'
rm -f "$home/in" "$home/out"
mkfifo "$home/in" "$home/out"
for mode in inline async; do
    PYTHONPATH=$PWD "$python" benchmarks/app.py $mode stdio 0 0 \
        <"$home/in" >"$home/out" 2>"$home/errors" &
    pid=$!
    exec 3>"$home/in" 4<"$home/out"
    for _ in 1 2 3; do
        echo "$ping" >&3
        read -r answer <&4
    done
    echo "RSS of a stdio server, $mode handlers: $(resident $pid)"
    exec 3>&- 4<&-
    wait $pid
done

exec "$python" -m unittest "$@"
