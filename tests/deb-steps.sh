#!/usr/bin/env bash
# The steps of deb.sh that run where the packages are installed: they are in /tmp/deb, and a program in /tmp.
set -euo pipefail
cd /tmp
dpkg --install deb/*.deb
sluice --version
ls /usr/lib/*/glusterfs/*/xlator/user/sluice.so
nbdkit sluice --dump-plugin | grep '^name=sluice'
for mpi in mpich openmpi; do
    sluice mpirun --dry-run mpiexec.$mpi -n 2 true | grep "/usr/lib/.*/sluice/libsluice-$mpi.so"
done

# What mounts log, and this test's own place.
mkdir source mnt
echo here > source/file
printf '[mount]\nsource = "/tmp/source"\nmountpoint = "/tmp/mnt"\n' > /etc/sluice/test.toml

echo "--- as mount(8) and /etc/fstab do"
for type in sluice fuse.sluice; do
    mount -t "$type" /tmp/source mnt -o policy=sjf
    grep -q here mnt/file
    sluice status mnt | grep sjf
    umount mnt
    echo "/tmp/source /tmp/mnt $type noatime,config=/etc/sluice/test.toml 0 0" > fstab
    mount --fstab fstab /tmp/mnt
    grep -q here mnt/file
    sluice unmount mnt
done
logrotate --force /etc/logrotate.d/sluicegate --state /tmp/state
ls /var/log/sluice/*.log.1 > /dev/null

echo "--- as systemd does"
unit=sluice-mount@.service
systemd-analyze verify --man=yes /lib/systemd/system/${unit/@/@test}
command=$(sed -n 's/^ExecStart=//p' /lib/systemd/system/$unit)
cat > manager.py << 'END'
"""Starts a service as systemd does that wants to be notified; writes what it hears; stops it while a program is in there."""
import os, signal, socket, subprocess, sys
heard = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
heard.bind("notify")
heard.settimeout(30)
service = subprocess.Popen(sys.argv[1:], env={**os.environ, "NOTIFY_SOCKET": "/tmp/notify"})
said = ""
while "READY=1" not in said:
    said += heard.recv(4096).decode() + "\n"
print(said)
assert "STATUS=/tmp/mnt is mounted" in said
used = open("mnt/file")
# What systemctl stop does, with SendSIGHUP.
service.send_signal(signal.SIGTERM)
service.send_signal(signal.SIGHUP)
while os.path.ismount("mnt"):
    pass
assert used.read() == "here\n", "what is open works on"
used.close()
sys.exit(service.wait(30))
END
timeout 60 python3 manager.py ${command//%i/test}

echo "--- programs built against the libraries"
g++ -std=c++17 interleaved.cpp $(pkg-config --cflags --libs sluice) -pthread -o dynamic
g++ -std=c++17 interleaved.cpp "$(pkg-config --variable=libdir sluice)/libsluice.a" -pthread -ldl -lm -o static
head -c 1000000 /dev/zero > data
./dynamic data
./static data
gcc -std=gnu11 fileserver.c $(pkg-config --cflags --libs sluice) -pthread -o fileserver
gcc -std=gnu11 program.c $(pkg-config --cflags --libs agios) -pthread -o agios
./agios "" 2 100 3
cmake -S . -B cmake && cmake --build cmake
cmake/interleaved data

echo "--- and gone"
rm /etc/sluice/test.toml
packages=$(for file in deb/*.deb; do dpkg-deb --field "$file" Package; done)
dpkg --remove $packages
hash -r
if command -v sluice; then exit 1; fi
dpkg --purge $packages
