//! Supplementary groups of a process, which the kernel does not send.

use crate::spare;

/// The groups of a thread; none if it has ended, or is not visible from here. Reading this file of `/proc` takes no lock of
/// the thread's memory, so unlike others it does not wait for a process that waits for this very mount.
pub(crate) fn of_thread(pid: u32) -> Vec<u32> {
    if pid == 0 {
        return Vec::new();
    }
    let status = spare::with_descriptor(|| std::fs::read_to_string(format!("/proc/{pid}/status")));
    status.map_or_else(|_| Vec::new(), |status| parse(&status))
}

fn parse(status: &str) -> Vec<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:"));
    line.map_or_else(Vec::new, |groups| groups.split_whitespace().filter_map(|group| group.parse().ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found_in_the_status() {
        assert_eq!(parse("Name:\tGroups: 5\nGid:\t7\t7\t7\t7\nGroups:\t4 27 1000 \nNStgid:\t1\n"), [4, 27, 1000]);
        assert_eq!(parse("Groups:\t \n"), [0u32; 0]);
        assert_eq!(of_thread(0), [0u32; 0]);
        assert_eq!(of_thread(u32::MAX), [0u32; 0]);
        let own: Vec<u32> = rustix::process::getgroups().unwrap().iter().map(|group| group.as_raw()).collect();
        assert_eq!(of_thread(std::process::id()), own);
    }
}
