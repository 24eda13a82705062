//! One vectored operation over the parts of a batch, and whose each byte and each error is.

use std::io;

use sluice_storage::Segment;

/// The system's limit for one call (`IOV_MAX`).
const SLICES_MAX: usize = 1024;

/// How one part ended: bytes moved, and the error number of what stopped it early (0: nothing did, or the end of the
/// file).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Ended {
    pub(super) bytes: u32,
    pub(super) errno: i32,
}

/// Reads or writes `parts`, which follow each other from `offset` on, and appends how each one ended to `ended`.
///
/// A call that comes back short has moved the parts before the cut. What is behind it is asked for again, which gives
/// either more bytes, the end of the file, or the error; an error of a call over several parts belongs to one of them, so
/// from there on each part gets a call of its own.
pub(super) fn transfer(
    parts: &[Segment],
    offset: u64,
    write: bool,
    slices: &mut Vec<Segment>,
    io: &mut dyn FnMut(&mut [Segment], u64) -> io::Result<usize>,
    ended: &mut Vec<Ended>,
) {
    let (mut at, mut next, mut done) = (offset, 0, 0);
    let mut alone = false;
    while next < parts.len() {
        let end = if alone { next + 1 } else { parts.len().min(next + SLICES_MAX) };
        slices.clear();
        slices.push(parts[next].part(done, parts[next].len() - done));
        slices.extend_from_slice(&parts[next + 1..end]);
        let want: usize = slices.iter().map(Segment::len).sum();
        match if want == 0 { Ok(0) } else { io(slices, at) } {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) if end - next > 1 => alone = true,
            Err(error) => {
                at += (parts[next].len() - done) as u64;
                ended.push(Ended { bytes: done as u32, errno: error.raw_os_error().unwrap_or(libc::EIO) });
                (next, done, alone) = (next + 1, 0, true);
            }
            Ok(moved) => {
                let moved = moved.min(want); // a storage that claims more is wrong, but must not harm its neighbours
                at += moved as u64;
                let mut left = moved;
                while next < end && left >= parts[next].len() - done {
                    left -= parts[next].len() - done;
                    ended.push(Ended { bytes: parts[next].len() as u32, errno: 0 });
                    (next, done) = (next + 1, 0);
                }
                done += left;
                if moved == want {
                    continue;
                }
                if write && moved == 0 {
                    // Neither progress nor an error: do not try for ever.
                    at += (parts[next].len() - done) as u64;
                    ended.push(Ended { bytes: done as u32, errno: libc::EIO });
                    (next, done, alone) = (next + 1, 0, true);
                } else if !write && moved == 0 {
                    ended.push(Ended { bytes: done as u32, errno: 0 });
                    ended.extend(parts[next + 1..].iter().map(|_| Ended::default()));
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of which byte `i` is readable and writable unless it is in `bad`; calls stop at a bad byte or at `cut`.
    fn run(lens: &[usize], size: u64, bad: &[u64], cuts: &[usize], write: bool) -> (Vec<Ended>, u32) {
        let mut memory = vec![0u8; lens.iter().sum()];
        let whole = crate::volume::memory::borrow_mut(&mut memory);
        let mut at = 0;
        let parts: Vec<Segment> = lens
            .iter()
            .map(|&len| {
                at += len;
                whole.part(at - len, len)
            })
            .collect();
        let (mut ended, mut calls, mut cuts) = (Vec::new(), 0, cuts.iter());
        let mut io = |slices: &mut [Segment], at: u64| {
            calls += 1;
            let want: usize = slices.iter().map(Segment::len).sum();
            let limit = cuts.next().map_or(want, |cut| want.min(*cut)) as u64;
            let stop = (at..at + limit).find(|byte| bad.contains(byte) || (!write && *byte >= size));
            match stop {
                Some(byte) if byte == at && bad.contains(&byte) => Err(io::Error::from_raw_os_error(libc::EIO)),
                Some(byte) => Ok((byte - at) as usize),
                None => Ok(limit as usize),
            }
        };
        transfer(&parts, 0, write, &mut Vec::new(), &mut io, &mut ended);
        (ended, calls)
    }

    fn ok(bytes: u32) -> Ended {
        Ended { bytes, errno: 0 }
    }

    const EIO: Ended = Ended { bytes: 0, errno: libc::EIO };

    #[test]
    fn a_whole_batch_is_one_call() {
        assert_eq!(run(&[10, 20, 30], 100, &[], &[], false), (vec![ok(10), ok(20), ok(30)], 1));
        assert_eq!(run(&[1; 3000], 3000, &[], &[], true).1, 3);
    }

    #[test]
    fn the_end_of_the_file_cuts_once() {
        assert_eq!(run(&[10, 10, 10], 15, &[], &[], false), (vec![ok(10), ok(5), ok(0)], 2));
        assert_eq!(run(&[10, 10], 15, &[], &[], false), (vec![ok(10), ok(5)], 2));
        assert_eq!(run(&[0, 10], 0, &[], &[], false).0, vec![ok(0), ok(0)]);
    }

    #[test]
    fn an_error_hits_the_part_it_belongs_to() {
        for write in [false, true] {
            assert_eq!(run(&[10; 4], 40, &[10], &[], write).0, vec![ok(10), EIO, ok(10), ok(10)]);
            assert_eq!(run(&[10; 4], 40, &[0, 35], &[], write).0[..3], [EIO, ok(10), ok(10)]);
            let partial = Ended { bytes: 5, errno: libc::EIO };
            assert_eq!(run(&[10; 4], 40, &[35], &[], write).0, vec![ok(10), ok(10), ok(10), partial]);
        }
    }

    #[test]
    fn short_calls_are_continued() {
        assert_eq!(run(&[10; 4], 40, &[], &[3, 12, 7], true), (vec![ok(10); 4], 4));
        assert_eq!(run(&[10; 4], 40, &[], &[3, 12, 7], false), (vec![ok(10); 4], 4));
        assert_eq!(run(&[10; 2], 20, &[], &[0], true).0, vec![EIO, ok(10)]);
    }
}
