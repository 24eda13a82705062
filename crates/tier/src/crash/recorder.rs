//! Devices in memory that record what they are told.

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use super::Random;
use crate::device::Device;
use crate::format::SECTOR;

/// What happened, on both devices and above them.
#[derive(Clone, Debug)]
pub(super) enum Event {
    /// A device was written to. May have been durable at any time afterwards.
    Write { device: usize, offset: usize, data: Vec<u8> },
    /// All writes to the device before this are durable.
    Flush { device: usize },
    /// A flush failed: the writes before it that were not durable may never be, whatever later flushes say.
    FlushFailed { device: usize },
    /// An operation began or ended; its number.
    Began(usize),
    /// See `Began`.
    Ended(usize),
}

/// The record that both devices of a tier share.
#[derive(Clone, Default)]
pub struct Tape(Arc<Mutex<Vec<Event>>>);

impl Tape {
    pub(super) fn push(&self, event: Event) {
        self.0.lock().push(event);
    }

    pub(super) fn take(&self) -> Vec<Event> {
        std::mem::take(&mut *self.0.lock())
    }
}

/// What a device does wrong from some time on. Each fails one call in so many; 0: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fault {
    /// Calls that go well before.
    pub after: u64,
    /// Reads.
    pub reads: u64,
    /// Writes; some of their sectors are written,
    pub writes: u64,
    /// or all of them.
    pub whole: bool,
    /// Flushes.
    pub flushes: u64,
}

/// A device in memory.
pub struct Recorder {
    device: usize,
    tape: Tape,
    bytes: Mutex<Vec<u8>>,
    fault: Mutex<(Fault, u64, Random)>,
}

impl Recorder {
    /// Device 0 or 1 of a pair, with these bytes.
    #[must_use]
    pub fn new(device: usize, tape: &Tape, bytes: Vec<u8>) -> Recorder {
        let fault = Mutex::new((Fault::default(), 0, Random(device as u64)));
        Recorder { device, tape: tape.clone(), bytes: Mutex::new(bytes), fault }
    }

    /// Fails from now on like that.
    pub fn fail(&self, fault: Fault) {
        let mut current = self.fault.lock();
        current.0 = fault;
        current.1 = 0;
    }

    /// What is on it, as if all of it were durable.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        self.bytes.lock().clone()
    }

    fn fails(&self, which: impl Fn(&Fault) -> u64) -> bool {
        let (fault, calls, random) = &mut *self.fault.lock();
        *calls += 1;
        which(fault) > 0 && *calls > fault.after && random.one_in(which(fault))
    }

    fn range(&self, offset: u64, len: usize) -> std::ops::Range<usize> {
        offset as usize..offset as usize + len
    }
}

fn broken() -> io::Error {
    rustix::io::Errno::IO.into()
}

impl Device for Recorder {
    fn size(&self) -> u64 {
        self.bytes.lock().len() as u64
    }
    fn read(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        if self.fails(|fault| fault.reads) {
            return Err(broken());
        }
        buf.copy_from_slice(&self.bytes.lock()[self.range(offset, buf.len())]);
        Ok(())
    }
    fn write(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        let fails = self.fails(|fault| fault.writes);
        // Of one that fails the first half, say.
        let part = fails && !self.fault.lock().0.whole;
        let buf = if part { &buf[..buf.len() / 2 / SECTOR * SECTOR] } else { buf };
        self.bytes.lock()[self.range(offset, buf.len())].copy_from_slice(buf);
        self.tape.push(Event::Write { device: self.device, offset: offset as usize, data: buf.to_vec() });
        if fails { Err(broken()) } else { Ok(()) }
    }
    fn flush(&self) -> io::Result<()> {
        let fails = self.fails(|fault| fault.flushes);
        let device = self.device;
        self.tape.push(if fails { Event::FlushFailed { device } } else { Event::Flush { device } });
        if fails { Err(broken()) } else { Ok(()) }
    }
    fn trims(&self) -> bool {
        true
    }
    fn describe(&self) -> String {
        ["recorded disk", "recorded SSD"][self.device.min(1)].to_owned()
    }
}

/// What a device holds that is durable, and what may be.
#[derive(Clone)]
pub(super) struct Image {
    durable: Vec<u8>,
    pending: Vec<(usize, Vec<u8>)>,
}

impl Image {
    pub(super) fn new(bytes: Vec<u8>) -> Image {
        Image { durable: bytes, pending: Vec::new() }
    }

    pub(super) fn write(&mut self, offset: usize, data: &[u8]) {
        self.pending.push((offset, data.to_vec()));
    }

    pub(super) fn flush(&mut self) {
        for (offset, data) in self.pending.drain(..) {
            self.durable[offset..offset + data.len()].copy_from_slice(&data);
        }
    }

    /// A flush fails: of what it should have made durable only a part is.
    pub(super) fn fail_flush(&mut self, random: &mut Random) {
        self.durable = self.crashed(random, 3);
        self.pending.clear();
    }

    /// What is there after a crash.
    pub(super) fn crashed(&self, random: &mut Random, how: u64) -> Vec<u8> {
        let mut bytes = self.durable.clone();
        let mut pending: Vec<&(usize, Vec<u8>)> = self.pending.iter().collect();
        if how == 4 {
            for last in (1..pending.len()).rev() {
                pending.swap(last, random.below(last as u64 + 1) as usize);
            }
        }
        for (offset, data) in pending {
            match how {
                // Only the process died, or nothing of it had been written.
                0 => bytes[*offset..offset + data.len()].copy_from_slice(data),
                1 => {}
                // Whole writes are missing.
                2 if random.one_in(2) => {}
                2 => bytes[*offset..offset + data.len()].copy_from_slice(data),
                // Sectors are; with 4 the writes come in another order, too.
                _ => {
                    let mut at = *offset;
                    while at < offset + data.len() {
                        let to = ((at / SECTOR + 1) * SECTOR).min(offset + data.len());
                        if !random.one_in(3) {
                            bytes[at..to].copy_from_slice(&data[at - offset..to - offset]);
                        }
                        at = to;
                    }
                }
            }
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_flushed_is_there_and_of_the_rest_anything_may_be() {
        let mut image = Image::new(vec![0; 4 * SECTOR]);
        image.write(0, &[1; SECTOR]);
        image.flush();
        image.write(SECTOR, &[2; 3 * SECTOR]);
        let mut random = Random(1);
        let mut seen = std::collections::HashSet::new();
        for how in 0..5 {
            for _ in 0..50 {
                let bytes = image.crashed(&mut random, how);
                assert!(bytes[..SECTOR].iter().all(|&byte| byte == 1));
                let sectors: Vec<u8> = bytes.chunks(SECTOR).map(|sector| sector[0]).collect();
                assert!(
                    bytes.chunks(SECTOR).zip(&sectors).all(|(sector, first)| sector.iter().all(|byte| byte == first))
                );
                seen.insert(sectors);
            }
        }
        assert_eq!(seen.len(), 8, "each of the three sectors is there or not");
        image.fail_flush(&mut random);
        image.flush();
        assert_eq!(image.crashed(&mut random, 1), image.crashed(&mut random, 0), "nothing is left that could come");
    }
}
