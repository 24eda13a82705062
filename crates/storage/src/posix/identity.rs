//! Acting on somebody's behalf: what is made belongs to them from the first moment.
//!
//! Making an object as the daemon and giving it away afterwards is a race: who may write to the directory can put another
//! object under the name in between. So the *thread* takes on the caller's file system user, group, supplementary groups
//! and umask for the one call, and the kernel does everything (owner, set-group-ID directories, default access control
//! lists, quotas) as if the caller had made it. Only the thread changes: the system calls are made directly, as the C
//! library would change the whole process.
//!
//! The right to override permissions is kept, since checking them is the host's business, which may know more (or less)
//! of the caller's groups than we do.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::io;

use parking_lot::{Mutex, MutexGuard};
use rustix::fs::{Gid, Mode};
use rustix::process::{getegid, geteuid, getgroups, umask};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_thread_groups};

use crate::Creator;

/// What a thread that acts as a user may do beyond what the user may: reach files, and make the special files that the
/// host allowed. Not `CAP_FSETID`, `CAP_CHOWN`: set-ID bits go and owners stay as for the user. Nor `CAP_SYS_RESOURCE`, to
/// which quotas do not apply.
const KEPT: CapabilitySet = CapabilitySet::DAC_OVERRIDE
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::MKNOD);

/// Where the system does not let a thread have a umask of its own (containers may forbid it), one at a time sets the
/// process's.
static SHARED_UMASK: Mutex<()> = Mutex::new(());

/// Does `work` as the caller, if this process may; else as itself. The caller's umask holds in any case.
pub(super) fn acting_as<R>(caller: &Creator, work: impl FnOnce() -> io::Result<R>) -> io::Result<R> {
    let _user = User::assume(caller)?;
    let _umask = Umask::set(caller.umask);
    work()
}

/// As [`acting_as`] without the umask, for what makes nothing.
pub(super) fn acting_as_user<R>(caller: &Creator, work: impl FnOnce() -> io::Result<R>) -> io::Result<R> {
    let _user = User::assume(caller)?;
    work()
}

/// What the thread was before. Dropping it restores that.
struct User {
    uid: u32,
    gid: u32,
    groups: Vec<Gid>,
    capabilities: CapabilitySets,
}

impl User {
    /// `None`: nothing to change, or not allowed to.
    fn assume(caller: &Creator) -> io::Result<Option<User>> {
        let is_root = geteuid().is_root() && caller.uid == 0;
        if is_root && getegid().as_raw() == caller.gid && caller.groups.is_empty() {
            return Ok(None);
        }
        let capabilities = capabilities(None)?;
        if !capabilities.effective.contains(CapabilitySet::SETUID.union(CapabilitySet::SETGID)) {
            return Ok(None);
        }
        let groups = getgroups()?;
        let wanted: Vec<Gid> = caller.groups.iter().map(|&group| Gid::from_raw(group)).collect();
        set_thread_groups(&wanted)?;
        // SAFETY: no memory is involved.
        let (uid, gid) = unsafe {
            let gid = libc::setfsgid(caller.gid) as u32;
            (libc::setfsuid(caller.uid) as u32, gid)
        };
        // From here on dropping restores.
        let before = User { uid, gid, groups, capabilities };
        // SAFETY: an invalid id changes nothing and tells the current one, the only way to learn whether it worked.
        let now = unsafe { (libc::setfsuid(u32::MAX) as u32, libc::setfsgid(u32::MAX) as u32) };
        if now != (caller.uid, caller.gid) {
            // Not mapped in this user namespace.
            return Err(rustix::io::Errno::OVERFLOW.into());
        }
        if caller.uid != 0 {
            let kept = capabilities.effective & KEPT;
            let fewer = capabilities.effective.difference(FILE_SYSTEM | CapabilitySet::SYS_RESOURCE) | kept;
            set_capabilities(None, CapabilitySets { effective: fewer, ..capabilities })?;
        }
        Ok(Some(before))
    }
}

/// The capabilities that the kernel takes from a thread whose file system user is not root.
const FILE_SYSTEM: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::LINUX_IMMUTABLE)
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::MAC_OVERRIDE);

impl Drop for User {
    fn drop(&mut self) {
        // SAFETY: no memory is involved.
        unsafe {
            libc::setfsuid(self.uid);
            libc::setfsgid(self.gid);
        }
        let restored = set_thread_groups(&self.groups).and_then(|()| set_capabilities(None, self.capabilities));
        if let Err(error) = restored {
            // Going on with somebody else's rights would be worse than ending. Both calls only fail for want of memory.
            tracing::error!(%error, "a thread cannot take its own identity back; the process ends");
            std::process::abort();
        }
    }
}

struct Umask {
    before: Mode,
    _alone: Option<MutexGuard<'static, ()>>,
}

impl Umask {
    fn set(mask: u32) -> Umask {
        thread_local!(static OWN: Cell<Option<bool>> = const { Cell::new(None) });
        let own = OWN.get().unwrap_or_else(|| {
            // SAFETY: gives the thread its own copy of umask and directories; no memory is involved.
            let own = unsafe { libc::unshare(libc::CLONE_FS) } == 0;
            OWN.set(Some(own));
            own
        });
        let alone = (!own).then(|| SHARED_UMASK.lock());
        Umask { before: umask(Mode::from_raw_mode(mask & 0o777)), _alone: alone }
    }
}

impl Drop for Umask {
    fn drop(&mut self) {
        umask(self.before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    fn now() -> (u32, u32, Vec<Gid>, CapabilitySets, Mode) {
        let mask = umask(Mode::empty());
        umask(mask);
        // SAFETY: changes nothing.
        let (uid, gid) = unsafe { (libc::setfsuid(u32::MAX) as u32, libc::setfsgid(u32::MAX) as u32) };
        (uid, gid, getgroups().unwrap(), capabilities(None).unwrap(), mask)
    }

    #[test]
    fn a_thread_is_itself_again_afterwards_even_after_a_panic() {
        if !geteuid().is_root() {
            eprintln!("skipped: needs root");
            return;
        }
        let caller = Creator { uid: 12, gid: 34, groups: vec![56, 78], umask: 0o31 };
        acting_as(&Creator::process(), || Ok(())).unwrap(); // from now on the umask is the thread's
        let before = now();
        acting_as(&caller, || {
            let (uid, gid, groups, caps, mask) = now();
            assert_eq!((uid, gid, mask.as_raw_mode()), (12, 34, 0o31));
            assert_eq!(groups, [Gid::from_raw(56), Gid::from_raw(78)]);
            let beyond = CapabilitySet::FSETID | CapabilitySet::CHOWN | CapabilitySet::SYS_RESOURCE;
            assert!(!caps.effective.intersects(beyond));
            assert!(std::thread::scope(|scope| {
                // Only this thread changed: another one, started before or after, is the process's user.
                scope.spawn(|| geteuid().is_root()).join().unwrap()
            }));
            Ok(())
        })
        .unwrap();
        assert_eq!(now(), before);
        let panicked =
            catch_unwind(AssertUnwindSafe(|| acting_as(&caller, || -> io::Result<()> { panic!("on purpose") })));
        assert!(panicked.is_err());
        assert_eq!(now(), before);
    }
}
