//! Ghosts: forked copies of a process that run on in its place to tell what it will read (DualPar, section 3.3.3).
//!
//! A ghost cannot harm, whatever the program does in it, and without knowing what the program or its libraries do:
//!
//! * **Shared memory** that can be written, and devices, are taken out of its address space at once: no message can be sent,
//!   no file changed through a mapping, no network card told anything. Touching what was there ends the ghost.
//! * **Descriptors** all become `/dev/null`: output goes nowhere, offsets shared with the process stay.
//! * **System calls** that are not known to be harmless end it (seccomp): what changes files, sends signals, starts threads
//!   or programs. Regular files can be opened to be read; what opening or reading would change (pipes, devices) cannot.
//! * **Time and memory** are limited: killed by its process when its time is over, and by the kernel when that one dies or when
//!   it used the CPU for [`CPU_SECONDS`]; it may grow by [`GROWTH`] and is the first to go when memory runs out.
//! * The program cannot notice it: its end raises no signal, and `wait()` does not see it.

use crate::plan::Range;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};
use std::collections::BTreeMap;
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Requests that a ghost can record.
pub const RECORDS: usize = 32 << 10;
/// CPU time of a ghost, should its process fail to end it, s.
pub const CPU_SECONDS: u64 = 2;
/// Address space that a ghost may take beside its process's, bytes.
pub const GROWTH: u64 = 64 << 20;

static IN_GHOST: AtomicBool = AtomicBool::new(false);

/// Whether this process is a ghost.
#[must_use]
pub fn is_ghost() -> bool {
    IN_GHOST.load(Ordering::Relaxed)
}

/// Ends this ghost. Nothing of the program runs any more.
pub fn end() -> ! {
    // SAFETY: takes no pointers and does not return.
    unsafe { libc::_exit(0) }
}

/// What a ghost tells, in memory shared with its process. The process believes no number in it.
#[derive(Debug)]
pub struct Recorder {
    shared: *mut Shared,
}

// SAFETY: used by one thread at a time; the ghost's side is read only when it has ended.
unsafe impl Send for Recorder {}

#[repr(C)]
struct Shared {
    count: AtomicU64,
    ranges: [Range; RECORDS],
}

impl Recorder {
    /// # Errors
    /// No memory.
    pub fn new() -> Result<Recorder> {
        // SAFETY: a new mapping, of nobody else.
        let shared = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size_of::<Shared>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if shared == libc::MAP_FAILED { Err(Error::last_os_error()) } else { Ok(Recorder { shared: shared.cast() }) }
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        // SAFETY: mapped as long as this exists; no ghost is there.
        unsafe { (*self.shared).count.store(0, Ordering::Relaxed) };
    }

    /// Adds a request; false if there is no room. Joins the one before if it continues it.
    pub fn add(&mut self, range: Range) -> bool {
        // SAFETY: mapped as long as this exists; only the ghost (or the process before it has one) writes.
        let shared = unsafe { &mut *self.shared };
        let count = shared.count.load(Ordering::Relaxed) as usize;
        if let Some(last) = count.checked_sub(1).and_then(|last| shared.ranges.get_mut(last))
            && last.end() == range.offset
        {
            last.len += range.len;
            return true;
        }
        let Some(place) = shared.ranges.get_mut(count) else { return false };
        *place = range;
        shared.count.store(count as u64 + 1, Ordering::Release);
        true
    }

    /// What was recorded for a file of `size` bytes, up to `quota` bytes; nonsense is left out.
    #[must_use]
    pub fn requests(&self, size: u64, quota: u64) -> Vec<Range> {
        // SAFETY: mapped as long as this exists; the ghost has ended.
        let shared = unsafe { &*self.shared };
        let count = (shared.count.load(Ordering::Acquire) as usize).min(RECORDS);
        let mut left = quota;
        let mut requests = Vec::with_capacity(count);
        for range in &shared.ranges[..count] {
            let within = range.offset < size && range.len <= size - range.offset;
            if within && range.len > 0 {
                if range.len > left {
                    break;
                }
                left -= range.len;
                requests.push(*range);
            }
        }
        requests
    }

    fn place(&self) -> (u64, u64) {
        let begin = self.shared as u64;
        (begin, begin + size_of::<Shared>() as u64)
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, used no more.
        unsafe { libc::munmap(self.shared.cast(), size_of::<Shared>()) };
    }
}

/// What every ghost gets: made once, since a ghost must not allocate before it is confined.
#[derive(Debug)]
pub struct Cage {
    filter: BpfProgram,
}

impl Cage {
    /// # Errors
    /// The system knows no seccomp filters, or this processor is not known; there can be no ghosts.
    pub fn new() -> std::result::Result<Cage, String> {
        let harmless = SYSCALLS.iter().map(|&call| (call, Vec::new()));
        let mut rules: BTreeMap<i64, Vec<SeccompRule>> = harmless.collect();
        // Everything else is looked at first (`trapped`): paths cannot be judged by a filter.
        let path = condition(2, SeccompCmpOp::MaskedEq(libc::O_PATH as u64), libc::O_PATH as u64)?;
        let looked_at = SeccompCondition::new(3, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, password()?)
            .map_err(|error| format!("{error}"))?;
        let read_only = condition(2, SeccompCmpOp::MaskedEq(CHANGING as u64), libc::O_RDONLY as u64)?;
        rules.insert(libc::SYS_openat, vec![rule(vec![path])?, rule(vec![looked_at, read_only])?]);
        // Whether it is a terminal; the first output to a stream asks.
        rules.insert(libc::SYS_ioctl, vec![rule(vec![condition(1, SeccompCmpOp::Eq, libc::TCGETS)?])?]);
        let arch = std::env::consts::ARCH.try_into().map_err(|error| format!("{error}"))?;
        let filter = SeccompFilter::new(rules, SeccompAction::Trap, SeccompAction::Allow, arch)
            .and_then(BpfProgram::try_from)
            .map_err(|error| format!("{error}"))?;
        // SAFETY: takes one number that asks whether an action is known.
        let known = unsafe {
            let trap: u32 = libc::SECCOMP_RET_TRAP;
            libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_ACTION_AVAIL, 0, &raw const trap)
        };
        if known == 0 { Ok(Cage { filter }) } else { Err(format!("seccomp: {}", Error::last_os_error())) }
    }
}

/// A call whose argument number `index` is as said.
fn condition(index: u8, op: SeccompCmpOp, value: u64) -> std::result::Result<SeccompCondition, String> {
    SeccompCondition::new(index, SeccompCmpArgLen::Dword, op, value).map_err(|error| format!("{error}"))
}

fn rule(conditions: Vec<SeccompCondition>) -> std::result::Result<SeccompRule, String> {
    SeccompRule::new(conditions).map_err(|error| format!("{error}"))
}

/// Flags of open() of which there may be none.
const CHANGING: libc::c_int = libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC;

/// In the place of open()'s mode, which means nothing for files that exist: says that the file was looked at. A number that no
/// program has by chance.
static PASSWORD: AtomicU64 = AtomicU64::new(0);

fn password() -> std::result::Result<u64, String> {
    let mut made = 0_u64;
    // SAFETY: writes to the number, no more than its size.
    let got = unsafe { libc::getrandom((&raw mut made).cast(), size_of::<u64>(), libc::GRND_NONBLOCK) };
    if got != size_of::<u64>() as isize {
        return Err("no random numbers".to_owned());
    }
    // More than a mode can have, never 0.
    let made = made | 1 << 63;
    Ok(PASSWORD.compare_exchange(0, made, Ordering::Relaxed, Ordering::Relaxed).err().unwrap_or(made))
}

/// Calls that change nothing but the ghost. Writing is among them: all descriptors are `/dev/null`, or opened to be read.
const SYSCALLS: &[i64] = &[
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_futex,
    libc::SYS_sched_yield,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_times,
    libc::SYS_getrusage,
    libc::SYS_getrandom,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_getppid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getcwd,
    libc::SYS_getcpu,
    libc::SYS_sched_getaffinity,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_lseek,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_faccessat,
    libc::SYS_readlinkat,
    libc::SYS_close,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_exit,
    libc::SYS_exit_group,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_stat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lstat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_access,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_time,
];

/// Threads of this process.
#[must_use]
pub fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count)
}

/// Devices whose memory must not be copied by a fork, or would be missing in a ghost: network cards that access memory by
/// themselves, and accelerators.
const DEVICES: [&str; 6] = ["/dev/infiniband", "/dev/hfi1", "/dev/cxi", "/dev/nvidia", "/dev/kfd", "/dev/dri"];

/// A device of this process because of which there can be no ghost.
#[must_use]
pub fn device() -> Option<&'static str> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    DEVICES.into_iter().find(|device| maps.contains(device))
}

/// How a ghost ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// By itself: its quota was spoken for, or it came to a call whose result could matter.
    Paused,
    /// Its time was over.
    Late,
    /// It touched what was taken from it, crashed, or wanted more memory than it may have.
    Stopped,
}

/// Which of the two a process is after [`fork`].
#[derive(Debug)]
pub enum Side {
    /// The process, which waits for its ghost.
    Process(Ghost),
    /// The ghost. It is confined.
    Ghost,
}

/// A running ghost, of its process.
#[derive(Debug)]
pub struct Ghost {
    pid: libc::pid_t,
    descriptor: Option<OwnedFd>,
}

/// Makes a ghost. `recorder` is the only memory that it shares with this process. O(mapped memory), for page tables.
///
/// # Errors
/// The system refuses another process.
pub fn fork(recorder: &Recorder, cage: &Cage) -> Result<Side> {
    let limit = address_space().map(|now| now.saturating_add(GROWTH));
    let parent = std::process::id();
    let numbers = descriptors();
    let mut pidfd: libc::c_int = -1;
    // Without an exit signal: no handler of the program runs when it ends, and wait() does not see it.
    // SAFETY: like fork(); the handlers of pthread_atfork() do not run, so that the program does not notice. A lock that another
    // thread holds stays locked in the ghost, which then ends when its time is over.
    let pid = unsafe {
        // No handler of the program runs in a ghost that is not confined yet.
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        // The table of descriptors is the same one until the ghost leaves it.
        let flags = (libc::CLONE_PIDFD | libc::CLONE_FILES) as libc::c_ulong;
        let pid = libc::syscall(libc::SYS_clone, flags, 0, &raw mut pidfd, 0, 0) as libc::pid_t;
        if pid == 0 {
            IN_GHOST.store(true, Ordering::Relaxed);
            if !(leave_descriptors(&numbers) && confine(recorder, cage, limit, parent, &before)) {
                end();
            }
        } else {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        }
        pid
    };
    match pid {
        0 => Ok(Side::Ghost),
        pid if pid > 0 => {
            // SAFETY: the kernel has just made the descriptor, for us.
            let descriptor = (pidfd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(pidfd) });
            Ok(Side::Process(Ghost { pid, descriptor }))
        }
        _ => Err(Error::last_os_error()),
    }
}

impl Ghost {
    /// Waits for the end, but no longer than `limit`, when it is killed.
    #[must_use]
    pub fn wait(self, limit: Duration) -> End {
        let deadline = Instant::now() + limit;
        let mut late = true;
        while let Some(descriptor) = &self.descriptor {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let time = libc::timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos() as _ };
            let mut poll = libc::pollfd { fd: descriptor.as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one pollfd and a time are there.
            if unsafe { libc::ppoll(&raw mut poll, 1, &raw const time, std::ptr::null()) } > 0 {
                late = false;
                break;
            }
        }
        let mut status = 0;
        // SAFETY: it is our child and not waited for yet, so the number is still its own.
        unsafe {
            if late {
                libc::kill(self.pid, libc::SIGKILL);
            }
            while libc::waitpid(self.pid, &raw mut status, libc::__WALL) < 0
                && Error::last_os_error().kind() == std::io::ErrorKind::Interrupted
            {}
        }
        match (late, libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0) {
            (true, _) => End::Late,
            (_, true) => End::Paused,
            _ => End::Stopped,
        }
    }
}

/// Address space of this process, bytes.
fn address_space() -> Option<u64> {
    memory().map(|[all, _]| all)
}

/// Memory that this process has, bytes; 0 if that cannot be found out.
#[must_use]
pub fn resident() -> u64 {
    memory().map_or(0, |[_, resident]| resident)
}

fn memory() -> Option<[u64; 2]> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let mut pages = text.split(' ').map(|number| number.parse::<u64>().ok());
    // SAFETY: takes no pointers.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
    Some([pages.next()?? * page, pages.next()?? * page])
}

extern "C" fn stopped(_: libc::c_int) {
    // SAFETY: allowed in handlers of signals.
    unsafe { libc::_exit(1) }
}

/// A system call that the filter does not allow: opening a file is done here if it is harmless, everything else ends the ghost.
extern "C" fn trapped(signal: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives the registers as they were at the system call, and takes them back.
    unsafe {
        let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext;
        #[cfg(target_arch = "x86_64")]
        {
            let of = |register: libc::c_int| registers.gregs[register as usize];
            let (dir, path, flags) = match of(libc::REG_RAX) {
                libc::SYS_openat => (of(libc::REG_RDI) as libc::c_int, of(libc::REG_RSI), of(libc::REG_RDX)),
                libc::SYS_open => (libc::AT_FDCWD, of(libc::REG_RDI), of(libc::REG_RSI)),
                _ => return stopped(signal),
            };
            registers.gregs[libc::REG_RAX as usize] = open_harmless(dir, path as *const _, flags as libc::c_int);
        }
        #[cfg(target_arch = "aarch64")]
        {
            if registers.regs[8] as i64 != libc::SYS_openat {
                return stopped(signal);
            }
            let [dir, path, flags] = [0, 1, 2].map(|register| registers.regs[register]);
            registers.regs[0] = open_harmless(dir as libc::c_int, path as *const _, flags as libc::c_int) as u64;
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        {
            let _ = (registers, open_harmless(-1, c"".as_ptr(), 0));
            stopped(signal);
        }
    }
}

/// Opens what can be read without changing anything: a descriptor, or a negative error number. Waits for nobody.
///
/// # Safety
/// Only in a ghost; a string at `path`.
unsafe fn open_harmless(dir: libc::c_int, path: *const libc::c_char, flags: libc::c_int) -> i64 {
    let failed = || -i64::from(Error::last_os_error().raw_os_error().unwrap_or(libc::EIO));
    // SAFETY: a descriptor, the caller's path, and locals.
    unsafe {
        if flags & CHANGING != libc::O_RDONLY {
            libc::_exit(1);
        }
        let how = libc::O_PATH | libc::O_CLOEXEC | flags & (libc::O_NOFOLLOW | libc::O_DIRECTORY);
        let found = libc::syscall(libc::SYS_openat, dir, path, how, 0);
        if found < 0 {
            return failed();
        }
        let mut status: libc::stat = std::mem::zeroed();
        let is_known = libc::fstat(found as libc::c_int, &raw mut status) == 0;
        let harmless = match status.st_mode & libc::S_IFMT {
            libc::S_IFREG | libc::S_IFDIR => true,
            // null, zero, random, urandom
            libc::S_IFCHR => libc::major(status.st_rdev) == 1 && [3, 5, 8, 9].contains(&libc::minor(status.st_rdev)),
            _ => false,
        };
        if !is_known || !harmless {
            libc::_exit(1);
        }
        let mut again = *b"/proc/self/fd/0000000000\0";
        let mut rest = found;
        for digit in again[14..24].iter_mut().rev() {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        // Names of descriptors have no zeroes before them.
        let zeroes = again[14..23].iter().take_while(|&&digit| digit == b'0').count();
        again.copy_within(14 + zeroes.., 14);
        let password = PASSWORD.load(Ordering::Relaxed);
        let opened =
            libc::syscall(libc::SYS_openat, libc::AT_FDCWD, again.as_ptr(), flags & !libc::O_NOFOLLOW, password);
        let result = if opened < 0 { failed() } else { opened };
        libc::close(found as libc::c_int);
        result
    }
}

/// Only system calls: another thread of the process may have held any lock, also that of malloc.
///
/// # Safety
/// Only in a ghost.
unsafe fn confine(recorder: &Recorder, cage: &Cage, limit: Option<u64>, parent: u32, mask: &libc::sigset_t) -> bool {
    // SAFETY: descriptors, pointers to locals, and numbers.
    unsafe {
        if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 || libc::getppid() as u32 != parent {
            return false;
        }
        let limits = limits_of(limit);
        for (what, most) in &limits {
            if libc::setrlimit(*what, &raw const *most) != 0 {
                return false;
            }
        }
        signals();
        let worst = libc::open(c"/proc/self/oom_score_adj".as_ptr(), libc::O_WRONLY);
        if worst >= 0 {
            libc::write(worst, b"1000".as_ptr().cast(), 4);
        }
        unshare_memory(recorder.place())
            && libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::from_ref(mask), std::ptr::null_mut()) == 0
            && seccompiler::apply_filter(&cage.filter).is_ok()
    }
}

fn limits_of(memory: Option<u64>) -> [(libc::__rlimit_resource_t, libc::rlimit); 4] {
    let of = |most: u64| libc::rlimit { rlim_cur: most, rlim_max: most };
    let memory = memory.unwrap_or(libc::RLIM_INFINITY);
    [
        (libc::RLIMIT_CORE, of(0)),
        (libc::RLIMIT_CPU, of(CPU_SECONDS)),
        (libc::RLIMIT_FSIZE, of(0)),
        (libc::RLIMIT_AS, of(memory)),
    ]
}

/// No handler of the program runs in a ghost; what would end it does so quietly.
///
/// # Safety
/// Only in a ghost.
unsafe fn signals() {
    static mut STACK: [u8; 16 << 10] = [0; 16 << 10];
    let ending = [libc::SIGSEGV, libc::SIGBUS, libc::SIGSYS, libc::SIGABRT, libc::SIGFPE, libc::SIGILL, libc::SIGXCPU];
    // SAFETY: the stack is static; a ghost has one thread.
    unsafe {
        let stack = libc::stack_t { ss_sp: (&raw mut STACK).cast(), ss_flags: 0, ss_size: 16 << 10 };
        libc::sigaltstack(&raw const stack, std::ptr::null_mut());
        for signal in 1..=64 {
            let mut action: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(signal, std::ptr::null(), &raw mut action) != 0 {
                continue;
            }
            if ending.contains(&signal) {
                let traps = signal == libc::SIGSYS;
                let handler = if traps { trapped as *const () } else { stopped as *const () };
                action.sa_sigaction = handler as libc::sighandler_t;
                action.sa_flags = libc::SA_ONSTACK | if traps { libc::SA_SIGINFO } else { 0 };
                libc::sigaction(signal, &raw const action, std::ptr::null_mut());
            } else if action.sa_sigaction != libc::SIG_IGN && action.sa_sigaction != libc::SIG_DFL {
                action.sa_sigaction = libc::SIG_DFL;
                libc::sigaction(signal, &raw const action, std::ptr::null_mut());
            }
        }
    }
}

/// Puts memory that nobody can touch in the place of every shared mapping that can be written or is a device's.
///
/// # Safety
/// Only in a ghost.
unsafe fn unshare_memory((begin, end): (u64, u64)) -> bool {
    let mut buffer = [0_u8; 4096];
    let mut kept = 0;
    // SAFETY: the buffer is ours; mappings are replaced, never unmapped, and none of them is private.
    unsafe {
        let maps = libc::open(c"/proc/self/maps".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        if maps < 0 {
            return false;
        }
        loop {
            let room = &mut buffer[kept..];
            let got = libc::read(maps, room.as_mut_ptr().cast(), room.len());
            let Ok(got) = usize::try_from(got) else { return false };
            let filled = kept + got;
            let mut at = 0;
            while let Some(len) = buffer[at..filled].iter().position(|&byte| byte == b'\n') {
                if let Some((from, to)) = mapping_to_take(&buffer[at..at + len])
                    && (to <= begin || from >= end)
                {
                    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
                    let taken = libc::mmap(from as *mut _, (to - from) as usize, libc::PROT_NONE, flags, -1, 0);
                    if taken == libc::MAP_FAILED {
                        return false;
                    }
                }
                at += len + 1;
            }
            if got == 0 {
                libc::close(maps);
                return at == filled;
            }
            if at == 0 && filled == buffer.len() {
                return false; // a line longer than any path
            }
            buffer.copy_within(at..filled, 0);
            kept = filled - at;
        }
    }
}

/// Of a line of `/proc/self/maps`: where the mapping is, if it is to be taken from a ghost. What cannot be read is an empty
/// mapping at 0, which nobody can replace: the ghost ends.
fn mapping_to_take(line: &[u8]) -> Option<(u64, u64)> {
    let mut words = line.split(|&byte| byte == b' ').filter(|word| !word.is_empty());
    let (Some(place), Some(access)) = (words.next(), words.next()) else { return Some((0, 0)) };
    let path = words.nth(3).unwrap_or_default();
    let is_device = path.starts_with(b"/dev/") && path != b"/dev/zero" && !path.starts_with(b"/dev/shm/");
    let is_shared = access.get(3) == Some(&b's');
    // What cannot be written may become writable. What nobody could write to anyway stays: libraries' tables.
    let is_table = access.get(1) != Some(&b'w') && path.starts_with(b"/usr/") && !is_device;
    if !is_shared || is_table {
        return None;
    }
    let number = |text: &[u8]| std::str::from_utf8(text).ok().and_then(|text| u64::from_str_radix(text, 16).ok());
    let dash = place.iter().position(|&byte| byte == b'-')?;
    Some((number(&place[..dash])?, number(&place[dash + 1..])?))
}

/// Numbers of this process's descriptors.
fn descriptors() -> Vec<libc::c_int> {
    let entries = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Leaves the table that the process has, for one in which these numbers are `/dev/null`. Nothing is closed by that: closing a copy would have
/// file systems that flush then (FUSE, NFS, Lustre) write out what the program has in their cache, wait for it, and tell the ghost what
/// went wrong and not the program.
///
/// # Safety
/// Only in a ghost, and before it opens anything.
unsafe fn leave_descriptors(numbers: &[libc::c_int]) -> bool {
    const UNSHARE: libc::c_uint = 1 << 1;
    // SAFETY: numbers, and a string.
    unsafe {
        if libc::syscall(libc::SYS_close_range, 0, libc::c_uint::MAX, UNSHARE) != 0 {
            // Linux before 5.9.
            return libc::unshare(libc::CLONE_FILES) == 0 && close_descriptors();
        }
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        for &number in numbers.iter().filter(|&&number| number != null) {
            // Beyond what the process may have, where ours are, there stays none.
            libc::dup2(null, number);
        }
        null >= 0
    }
}

/// # Safety
/// Only in a ghost.
unsafe fn close_descriptors() -> bool {
    // Records of directories are aligned.
    #[repr(align(8))]
    struct Buffer([u8; 4096]);
    let mut buffer = Buffer([0; 4096]);
    // SAFETY: the buffer is ours, descriptors are those of this process alone.
    unsafe {
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR);
        let list = libc::open(c"/proc/self/fd".as_ptr(), libc::O_RDONLY | libc::O_DIRECTORY);
        if null < 0 || list < 0 {
            return false;
        }
        loop {
            let got = libc::syscall(libc::SYS_getdents64, list, buffer.0.as_mut_ptr(), buffer.0.len());
            let Ok(got) = usize::try_from(got) else { return false };
            if got == 0 {
                return libc::dup2(null, list) == list;
            }
            let mut at = 0;
            // linux_dirent64: inode and offset (8 bytes each), length of the record (2), type (1), name.
            while at + 19 < got {
                let len = u16::from_ne_bytes([buffer.0[at + 16], buffer.0[at + 17]]) as usize;
                let name = &buffer.0[at + 19..at + len];
                let digits = name.iter().take_while(|byte| byte.is_ascii_digit());
                let number =
                    digits.fold(None, |number, &digit| Some(number.unwrap_or(0) * 10 + i32::from(digit - b'0')));
                // Beyond what the process may have, where ours are, there can be nothing new.
                if let Some(number) = number
                    && number != list
                    && number != null
                    && libc::dup2(null, number) != number
                    && libc::close(number) != 0
                {
                    return false;
                }
                at += len.max(19);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_what_could_be_shared_and_leaves_the_rest() {
        let line = |access: &str, path: &str| format!("7f00-8000 {access} 00000000 00:05 1234    {path}").into_bytes();
        let all = Some((0x7f00, 0x8000));
        assert_eq!(mapping_to_take(&line("rw-s", "/dev/shm/vader")), all);
        assert_eq!(mapping_to_take(&line("rw-s", "")), all);
        assert_eq!(mapping_to_take(&line("r--s", "/dev/infiniband/uverbs0")), all);
        assert_eq!(mapping_to_take(&line("r--s", "/usr/lib/gconv-modules.cache")), None);
        assert_eq!(mapping_to_take(&line("rw-p", "/dev/shm/x")), None);
        assert_eq!(mapping_to_take(b"?"), Some((0, 0)));
    }

    #[test]
    fn believes_no_number_of_a_ghost() {
        let mut recorder = Recorder::new().unwrap();
        assert!(recorder.add(Range::new(0, 10)) && recorder.add(Range::new(10, 10)));
        assert!(
            recorder.add(Range::new(u64::MAX, 10))
                && recorder.add(Range::new(90, 20))
                && recorder.add(Range::new(50, 5))
        );
        assert_eq!(recorder.requests(100, 1000), [Range::new(0, 20), Range::new(50, 5)]);
        assert_eq!(recorder.requests(100, 22), [Range::new(0, 20)]);
        // SAFETY: mapped.
        unsafe { (*recorder.shared).count.store(u64::MAX, Ordering::Relaxed) };
        assert_eq!(recorder.requests(100, 1000), [Range::new(0, 20), Range::new(50, 5)]);
    }
}
