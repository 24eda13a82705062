//! Limits of the process, which it has from whoever started it, and which are not meant for what it does for others.
#![allow(unsafe_code)]

use std::fs;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises what would stop the process, or slow it down.
pub(crate) fn raise() {
    // Open files and a part of the objects that the kernel remembers have a descriptor each: more of them is faster.
    let most = fs::read_to_string("/proc/sys/fs/nr_open").ok().and_then(|text| text.trim().parse().ok());
    if most.is_none() || setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most }).is_err() {
        raise_to_hard(Resource::Nofile);
    }
    // Both end the process with a signal. The kernel has asked for the limit of whoever writes before.
    for resource in [Resource::Fsize, Resource::Cpu] {
        if setrlimit(resource, Rlimit { current: None, maximum: None }).is_err() {
            raise_to_hard(resource);
        }
    }
    stay_alive_at_the_largest_size();
}

fn raise_to_hard(resource: Resource) {
    let hard = getrlimit(resource).maximum;
    let _ = setrlimit(resource, Rlimit { current: hard, maximum: hard });
}

/// Where files may not become as large as somebody wants he is told so (`EFBIG`), unless the process has other plans for the
/// signal.
fn stay_alive_at_the_largest_size() {
    // SAFETY: zeros are a valid `sigaction`, and it is filled in before it is looked at; ignoring a signal runs no code.
    unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(libc::SIGXFSZ, std::ptr::null(), &raw mut now) == 0 && now.sa_sigaction == libc::SIG_DFL {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        }
    }
}
