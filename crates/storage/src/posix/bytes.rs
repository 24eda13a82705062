//! The bytes of one open file, buffered or direct.
//!
//! **Direct I/O and the page cache.** With `O_DIRECT` a file has two descriptors. Whole pages are always written through
//! the direct one and partial pages always through the buffered one. The kernel writes a range's dirty pages back before
//! a direct call on it and drops them after a direct write, so the two are coherent as long as no page is written both
//! ways *at the same time*. That needs two overlapping requests in flight, which the caller never has. Reads are direct
//! only. The dirty pages of partial writes stay in the cache until the kernel or an `fsync` writes them.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{self as sys, Mode, OFlags};
use rustix::io::{self, Errno, Result};

use super::cache::{to_keep, with_room};
use super::{Fd, link};

/// Alignment for direct I/O: the page size, so that no page is written both ways. At least what devices ask for; if one
/// asks for more, its refusal (`EINVAL`) is met with buffered I/O.
const ALIGN: usize = 4096;
/// Bytes moved at a time through an aligned buffer.
const BOUNCE: usize = 1 << 20;
/// Most buffers that one call takes.
const IOV_MAX: usize = 1024;

pub(super) struct Bytes {
    /// Shared with transfers of which the kernel has the descriptor.
    buffered: Arc<OwnedFd>,
    direct: Option<OwnedFd>,
}

impl Bytes {
    /// Opens the object of an `O_PATH` descriptor for I/O at explicit offsets.
    ///
    /// Files opened for writing only are opened for reading too where permissions allow: the kernel's writeback cache
    /// reads the pages that it fills only partly. `O_DIRECT` in `flags` is ignored: the storage decides. `again`: somebody
    /// has the file open, so it may have descriptors of the reserve.
    pub(super) fn reopen(node: Fd<'_>, flags: OFlags, direct: bool, again: bool) -> Result<Bytes> {
        let keep = Bytes::kept(flags) | flags & OFlags::TRUNC;
        let path = link(node);
        let open = |flags| {
            let open = || sys::open(&*path, flags, Mode::empty());
            if again { with_room(open) } else { to_keep(node, open) }
        };
        let access = flags & OFlags::RWMODE;
        let writable = access != OFlags::RDONLY;
        let (access, buffered) = if writable {
            match open(keep | OFlags::RDWR) {
                Err(Errno::ACCESS) if access == OFlags::WRONLY => (access, open(keep | access)?),
                result => (OFlags::RDWR, result?),
            }
        } else {
            (access, open(keep | access)?)
        };
        let direct = match direct.then(|| open((keep - OFlags::TRUNC) | access | OFlags::DIRECT)) {
            None => None,
            Some(Err(Errno::INVAL)) => None, // another file system, mounted below the top, without direct I/O
            Some(result) => Some(result?),
        };
        Ok(Bytes { buffered: Arc::new(buffered), direct })
    }

    /// What a descriptor keeps of the flags that a file is opened with.
    pub(super) fn kept(flags: OFlags) -> OFlags {
        flags & (OFlags::SYNC | OFlags::DSYNC | OFlags::NOATIME) | OFlags::CLOEXEC
    }

    /// For a file that was just made; `fd` can read and write. Cannot fail: the file is there.
    pub(super) fn created(fd: OwnedFd, flags: OFlags, direct: bool) -> Bytes {
        let reopen = || {
            let flags = Bytes::kept(flags) | OFlags::RDWR | OFlags::DIRECT;
            // Without the right to (the mode may forbid its owner what its maker may), or without another descriptor, this
            // handle goes through the page cache.
            to_keep(&fd, || sys::open(link(&fd), flags, Mode::empty())).ok()
        };
        let direct = if direct { reopen() } else { None };
        Bytes { buffered: Arc::new(fd), direct }
    }

    /// The descriptor for everything but reading and writing.
    pub(super) fn fd(&self) -> Fd<'_> {
        self.buffered.as_fd()
    }

    /// The descriptor for plain calls, if those are always right.
    pub(super) fn plain(&self) -> Option<&Arc<OwnedFd>> {
        self.direct.is_none().then_some(&self.buffered)
    }

    /// Somebody holds [`Bytes::plain`].
    pub(super) fn is_lent(&self) -> bool {
        Arc::strong_count(&self.buffered) > 1
    }

    /// Reads what is in the page cache, one call's worth.
    pub(super) fn try_read(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<Option<usize>> {
        if self.direct.is_some() {
            return Ok(None);
        }
        let count = bufs.len().min(IOV_MAX);
        let bufs = &mut bufs[..count];
        match io::preadv2(self.fd(), bufs, offset, io::ReadWriteFlags::NOWAIT) {
            Ok(got) => Ok(Some(got)),
            // Not there, interrupted, or a file system that does not know the question.
            Err(Errno::AGAIN | Errno::INTR | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(super) fn read(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<usize> {
        let Some(direct) = &self.direct else { return read_all(self.fd(), offset, bufs) };
        let aligned = aligned(offset, bufs.iter().map(|buf| &**buf));
        let result = if aligned { read_all(direct.as_fd(), offset, bufs) } else { read_bounced(direct, offset, bufs) };
        match result {
            Err(Errno::INVAL) => read_all(self.fd(), offset, bufs),
            result => result,
        }
    }

    pub(super) fn write(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<usize> {
        let Some(direct) = &self.direct else { return write_all(self.fd(), offset, bufs) };
        let aligned = aligned(offset, bufs.iter().map(|buf| &**buf));
        let result =
            if aligned { write_all(direct.as_fd(), offset, bufs) } else { self.write_bounced(direct, offset, bufs) };
        match result {
            Err(Errno::INVAL) => write_all(self.fd(), offset, bufs),
            result => result,
        }
    }

    /// Partial pages through the cache, whole ones through an aligned buffer.
    fn write_bounced(&self, direct: &OwnedFd, offset: u64, bufs: &[IoSlice<'_>]) -> Result<usize> {
        let total = length(bufs.iter().map(|buf| &**buf));
        let mut source = bufs.iter().flat_map(|buf| buf.chunks(ALIGN)).peekable();
        let mut rest: &[u8] = &[];
        let mut bounce = Bounce::new(total.min(BOUNCE));
        let mut done = 0;
        while done < total {
            let at = offset + done as u64;
            let left = total - done;
            let in_page = (at % ALIGN as u64) as usize;
            let (fd, len) = if in_page != 0 || left < ALIGN {
                (self.fd(), left.min(ALIGN - in_page))
            } else {
                (direct.as_fd(), (left - left % ALIGN).min(BOUNCE))
            };
            let chunk = &mut bounce.bytes()[..len];
            let mut filled = 0;
            while filled < len {
                if rest.is_empty() {
                    rest = source.next().expect("total is the sum of the buffers");
                }
                let take = rest.len().min(len - filled);
                chunk[filled..filled + take].copy_from_slice(&rest[..take]);
                (filled, rest) = (filled + take, &rest[take..]);
            }
            match write_all(fd, at, &[IoSlice::new(chunk)]) {
                Ok(n) if n == len => done += len,
                Ok(n) => return Ok(done + n),
                Err(error) if done == 0 => return Err(error),
                Err(_) => return Ok(done),
            }
        }
        Ok(done)
    }
}

/// Reads the aligned range around the wanted one and copies out.
fn read_bounced(direct: &OwnedFd, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<usize> {
    // Who has come to the end of a file inside a page, and looks what follows, need not wait for the device.
    if !offset.is_multiple_of(ALIGN as u64) && sys::fstat(direct)?.st_size as u64 <= offset {
        return Ok(0);
    }
    let total = length(bufs.iter().map(|buf| &**buf));
    let mut targets = bufs.iter_mut();
    let mut target: &mut [u8] = &mut [];
    let mut bounce = Bounce::new((total + 2 * ALIGN).min(BOUNCE));
    let mut done = 0;
    while done < total {
        let at = offset + done as u64;
        let skip = (at % ALIGN as u64) as usize;
        let span = (skip + total - done).next_multiple_of(ALIGN).min(bounce.len);
        let chunk = &mut bounce.bytes()[..span];
        let got = match read_all(direct.as_fd(), at - skip as u64, &mut [IoSliceMut::new(chunk)]) {
            Err(_) if done > 0 => break, // the next call reports it
            got => got?,
        };
        let mut fresh = &chunk[skip.min(got)..got];
        fresh = &fresh[..fresh.len().min(total - done)];
        done += fresh.len();
        while !fresh.is_empty() {
            if target.is_empty() {
                target = targets.next().expect("total is the sum of the buffers");
            }
            let take = fresh.len().min(target.len());
            let (head, tail) = std::mem::take(&mut target).split_at_mut(take);
            head.copy_from_slice(&fresh[..take]);
            (target, fresh) = (tail, &fresh[take..]);
        }
        if got < span {
            break;
        }
    }
    Ok(done)
}

/// One call. Most requests have one buffer, and the plain call costs the kernel less.
fn read_some(fd: BorrowedFd<'_>, bufs: &mut [IoSliceMut<'_>], at: u64) -> Result<usize> {
    match bufs {
        [one] => io::pread(fd, &mut **one, at),
        several => io::preadv(fd, several, at),
    }
}

/// As [`read_some`].
fn write_some(fd: BorrowedFd<'_>, bufs: &[IoSlice<'_>], at: u64) -> Result<usize> {
    match bufs {
        [one] => io::pwrite(fd, one, at),
        several => io::pwritev(fd, several, at),
    }
}

/// Reads until the buffers are full or the file ends (one call takes at most `IOV_MAX` buffers), or up to the first error.
fn read_all(fd: BorrowedFd<'_>, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<usize> {
    let total = length(bufs.iter().map(|buf| &**buf));
    let mut bufs = bufs;
    let mut done = 0;
    while done < total {
        match read_some(fd, bufs, offset + done as u64) {
            Ok(0) => break,
            Ok(n) => {
                done += n;
                if done < total {
                    IoSliceMut::advance_slices(&mut bufs, n);
                }
            }
            Err(Errno::INTR) => {}
            // The next call reports it. (No error: a direct read that ended at the file's unaligned end cannot go on there.)
            Err(_) if done > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

/// Writes everything, or up to the first error.
fn write_all(fd: BorrowedFd<'_>, offset: u64, bufs: &[IoSlice<'_>]) -> Result<usize> {
    let total = length(bufs.iter().map(|buf| &**buf));
    let mut done = loop {
        match write_some(fd, bufs, offset) {
            Ok(n) => break n,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    };
    if done < total {
        let mut bufs = bufs.to_vec();
        let mut bufs = &mut bufs[..];
        IoSlice::advance_slices(&mut bufs, done);
        while done < total {
            match write_some(fd, bufs, offset + done as u64) {
                Ok(0) => break,
                Ok(n) => {
                    done += n;
                    IoSlice::advance_slices(&mut bufs, n);
                }
                Err(Errno::INTR) => {}
                Err(_) => break, // the next call reports it
            }
        }
    }
    Ok(done)
}

fn length<'a>(bufs: impl Iterator<Item = &'a [u8]>) -> usize {
    bufs.map(<[u8]>::len).sum()
}

fn aligned<'a>(offset: u64, mut bufs: impl Iterator<Item = &'a [u8]>) -> bool {
    offset.is_multiple_of(ALIGN as u64)
        && bufs.all(|buf| buf.len().is_multiple_of(ALIGN) && buf.as_ptr().addr().is_multiple_of(ALIGN))
}

/// Aligned memory.
struct Bounce {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Bounce {
    fn new(len: usize) -> Bounce {
        let len = len.next_multiple_of(ALIGN);
        let memory = vec![0; len + ALIGN];
        let start = memory.as_ptr().addr().next_multiple_of(ALIGN) - memory.as_ptr().addr();
        Bounce { memory, start, len }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

/// Whether files in the directory can be opened with `O_DIRECT`.
pub(super) fn supports_direct(dir: &OwnedFd) -> bool {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
    // Only a clear refusal counts: a file system without O_TMPFILE, or a read-only one, may support direct I/O.
    !matches!(sys::openat(dir, ".", flags, Mode::RUSR | Mode::WUSR), Err(Errno::INVAL))
}
