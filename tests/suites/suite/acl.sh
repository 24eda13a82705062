# attr and acl: ACLs, masks, umasks, set-ID bits and extended attributes are the same as in the directory
# quick: dir/auto striped/none
# full: dir/auto dir/none dir/writeback striped/auto striped/none striped/writeback
. "$SUITE_HERE/lib.sh"
need getfacl setfattr setpriv python3
need_root
echo x | tee probe > /dev/null
setfacl -m u:1:r probe 2> /dev/null || { skip all "no ACLs in the file system of $PWD"; exit 0; }

show() { getfacl -nE -- "$@" 2>&1; stat -c '%n %A %u:%g' -- "$@"; }

# Everything that makes a name, in a directory with this default ACL, by this user under these umasks.
made_under() {
    local who=$1 mask
    shift
    for mask in 000 022 027 077; do
        rm -rf d && mkdir d && chmod 777 d && setfacl -d -m "$1" d
        $who sh -c "umask $mask; cd d; : > file; mkdir dir; mkfifo fifo; ln -s file link; cp file copy; mkdir -m 700 private
            python3 -c 'import os; os.close(os.open(\"narrow\", os.O_CREAT | os.O_WRONLY, 0o600)); os.mknod(\"node\", 0o644); os.mkdir(\"open\", 0o777)'"
        echo "umask $mask"
        show d/file d/dir d/fifo d/copy d/private d/narrow d/node d/open
        stat -c '%n %A' d/link
    done
}
output default-other-none made_under '' u::rwx,g::r-x,o::---
output default-other-none-as-user made_under as_nobody u::rwx,g::r-x,o::---
output default-named-user made_under as_nobody u::rwx,g::r-x,o::r-x,u:1:rwx,m::rwx
output default-named-group made_under '' u::rw-,g::---,o::---,g:2:rw-
output default-narrow-mask made_under as_nobody u::rwx,g::rwx,o::rwx,u:1:rwx,m::r--

output no-default-umask made_under as_nobody u::rwx,g::rwx,o::rwx

changed() {
    : > f; setfacl -m u:1:rwx,g:2:r-x f; show f
    chmod 640 f; show f
    chmod 777 f; show f
    setfacl -x u:1 f; show f
    setfacl -b f; show f
    mkdir c; setfacl -d -m u:1:rwx c; setfacl -k c; show c
    cp -a f g; setfacl --set-file=<(getfacl f) g; show g
    as_nobody setfacl -m u:65534:rwx f; echo "refused: $?"
    as_nobody cat f; rm -r f g c
}
output changed changed

# Who is let in, by the ACL alone.
access() {
    echo secret > f; chmod 600 f
    as_nobody cat f 2> /dev/null; echo "none: $?"
    setfacl -m u:65534:r f; as_nobody cat f; echo "named: $?"
    as_nobody sh -c 'echo more >> f' 2> /dev/null; echo "no write: $?"
    setfacl -m u:65534:rw,m::r f; as_nobody sh -c 'echo more >> f' 2> /dev/null; echo "masked: $?"
    setfacl -m g:65534:rw,m::rw f; setfacl -x u:65534 f; as_nobody sh -c 'echo more >> f'; echo "group: $?"
    cat f; rm f
}
output access access

set_id_directories() {
    mkdir s; chown 1:2 s; chmod 2777 s
    (umask 022; mkdir s/d; : > s/f; mkfifo s/p)
    as_nobody sh -c 'umask 002; mkdir s/nd; : > s/nf; mkdir s/nd/deep; ln -s x s/nl'
    stat -c '%n %A %u:%g' s s/*
    stat -c '%n %A %u:%g' s/nd/deep
    setfacl -m u:1:rwx s/nf; as_nobody chmod 2775 s/nf; stat -c '%A' s/nf
    chmod 2775 s/nd; as_nobody setfacl -m g:2:rwx s/nd; stat -c '%A' s/nd
    rm -r s
}
output set-id-directories set_id_directories

# Who writes to, cuts, gives away or changes the ACL of a set-ID program takes the bits away.
# What the file has then (`never`), and what is seen of it at once (`default`).
set_id_files() {
    local change mode
    for change in 'echo x >> f' ': > f' 'truncate -s 1 f' 'fallocate -l 5000 f' 'fallocate -p -o 0 -l 4096 f' 'setfacl -m u:1:r f' 'touch f' \
        'python3 -c "import mmap; f = open(\"f\", \"r+b\"); m = mmap.mmap(f.fileno(), 0); m[0] = 65; m.flush()"'; do
        for mode in 6777 2777 2767 4777; do
            head -c 9000 /dev/zero > f; chown 65534:65534 f; chmod $mode f
            as_nobody sh -c "$change" > /dev/null 2>&1; echo "$change: $mode $? $(stat --cached=$1 -c %a f)"
            head -c 9000 /dev/zero > f; chown 1:65534 f; chmod $mode f
            as_nobody sh -c "$change" > /dev/null 2>&1; echo "$change: another's $mode $? $(stat --cached=$1 -c %a f)"
        done
    done
    head -c 10 /dev/zero > f; chmod 6755 f; chown 1:1 f; stat -c %a f
    chmod 6755 f; chgrp 2 f; stat -c %a f; rm f
}
output set-id-files set_id_files never
output set-id-files-seen-at-once set_id_files default

attributes() {
    : > f; mkdir d
    setfattr -n user.a -v one f; setfattr -n user.empty f; setfattr -n user.b -v 0x0001ff00 f; setfattr -n user.dir -v x d
    setfattr -n trusted.t -v t f
    getfattr -dm - -e hex f d
    setfattr -n user.big -v "$(printf '%3000s' ' ')" f; getfattr -n user.big --only-values f | wc -c
    setfattr -x user.a f; setfattr -x user.a f; getfattr -n user.a f
    setfattr -n nospace.x -v 1 f; setfattr -n user. -v 1 f; setfattr -n "user.$(printf '%260s' x | tr ' ' x)" -v 1 f
    as_nobody getfattr -d -m - f; as_nobody setfattr -n user.x -v 1 f; as_nobody setfattr -n trusted.x -v 1 f
    ln -s f l; setfattr -h -n user.x -v 1 l; setfattr -h -n trusted.x -v 1 l; getfattr -h -dm - l; mkfifo p; setfattr -n user.x -v 1 p
    cp -a f g; getfattr -dm user -e hex g; mv g d/; getfattr -dm user -e hex d/g
    python3 -c 'import os; os.setxattr("f", "user.c", b"1", os.XATTR_CREATE)'
    python3 -c 'import os; os.setxattr("f", "user.c", b"1", os.XATTR_CREATE)' 2>&1 | tail -n 1
    python3 -c 'import os; os.setxattr("f", "user.none", b"1", os.XATTR_REPLACE)' 2>&1 | tail -n 1
    rm -r f d l p
}
output attributes attributes
