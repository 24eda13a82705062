//! The tier: who may write where, and where the newest data is read.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use sluice_core::{Op, Time};

use crate::append::{Appender, Batch, NotAppended};
use crate::config::{Config, Geometry, OpenError};
use crate::device::Device;
use crate::format::{Kind, LOG_START, SECTOR, SUPERBLOCKS, Superblock, Use};
use crate::locality::Decider;
use crate::maintain::Maintenance;
use crate::map::{Extent, Map, State as Newest};
use crate::recover::{self, Used};
use crate::slots::{BLOCK, Slots};
use crate::stats::{Counters, Health, Status};

/// A disk with an SSD before it; see the [crate's documentation](crate). All calls may come from many threads at once.
///
/// Writes that overlap and are under way at the same time take effect in any order. Nothing runs by itself: [`Runner`](crate::Runner)
/// is the thread that writes back; without one, writers that find the log full do it.
pub struct Tier {
    pub(crate) disk: Arc<dyn Device>,
    pub(crate) ssd: Arc<dyn Device>,
    pub(crate) config: Config,
    /// The geometry; of the rest, what it was at the start.
    pub(crate) layout: Superblock,
    /// Locks are taken in this order: maintenance, appender, superblock, one of the flushes', state. Only the first is held while
    /// waiting for the disk, none while a user's read waits.
    pub(crate) maintenance: Mutex<Maintenance>,
    pub(crate) appender: Mutex<Appender>,
    pub(crate) incoming: Mutex<Batch>,
    pub(crate) superblock: Mutex<Superblock>,
    pub(crate) state: Mutex<State>,
    /// With the state: readers have left a segment,
    pub(crate) unpinned: Condvar,
    /// a write has ended.
    pub(crate) written: Condvar,
    pub(crate) counters: Counters,
    /// One flush at a time, so that an error is known before another one begins.
    ssd_flush: Mutex<()>,
    disk_flush: Mutex<()>,
    /// Checksums of the blocks of each place of the prefetch area.
    pub(crate) area: Mutex<Vec<Vec<u32>>>,
    /// All records before this one are durable.
    pub(crate) durable_seq: AtomicU64,
    /// All records before this one were written.
    pub(crate) written_seq: AtomicU64,
    /// Writes to the disk by users that have ended, and how many of them a flush has made durable.
    disk_written: AtomicU64,
    disk_flushed: AtomicU64,
    /// Flushes of the disk that failed. Such an error comes once, to whoever asks first, so everybody has to tell the others.
    pub(crate) flush_failures: AtomicU64,
    /// Those that may have lost what users wrote.
    flush_losses: AtomicU64,
    /// How many of them the one was told of who uses the tier without a [`User`].
    told: User,
    began: Instant,
    recovery: recover::Report,
}

/// What decisions need.
pub(crate) struct State {
    pub(crate) map: Map,
    /// Segments in use, oldest first.
    pub(crate) used: VecDeque<Used>,
    pub(crate) next_segment: u32,
    /// Readers of each segment.
    pub(crate) pins: Vec<u32>,
    pub(crate) slots: Slots,
    pub(crate) decider: Decider,
    pub(crate) health: Health,
    /// The log cannot be made harmless: what it holds must not be written on the disk alone.
    pub(crate) stuck: bool,
    pub(crate) last_error: String,
    /// Users' requests to the disk under way, and when the last one ended.
    pub(crate) disk_users: u32,
    pub(crate) disk_used: Time,
    /// Where the last one ended.
    pub(crate) disk_head: u64,
    /// When something was last written into the log.
    pub(crate) appended: Time,
    /// Requests that have arrived.
    pub(crate) arrivals: u64,
    /// What users are writing. Writes that overlap wait for each other: with one in the log and one on its way to the disk,
    /// the newer one would depend on when it is written back.
    pub(crate) writing: Vec<Range<u64>>,
    /// What records hold whose writing failed: they may be there all the same, and a start would find them. So until the log
    /// has been made harmless, nothing newer of these bytes may be on the disk.
    pub(crate) doubtful: Vec<Range<u64>>,
}

impl State {
    pub(crate) fn segments_used(&self) -> u32 {
        self.used.len() as u32
    }

    /// Segments from the next one to the oldest in use. (Behind damaged ones there may be others in use, so that counting them
    /// is not enough.)
    pub(crate) fn segments_free(&self) -> u32 {
        let all = self.pins.len() as u32;
        self.used.front().map_or(all, |oldest| (oldest.segment + all - self.next_segment) % all)
    }

    /// A segment can be opened for data, and another one is left to say what is lost.
    pub(crate) fn has_room(&self, config: &Config) -> bool {
        self.segments_free() > 1 && self.map.len() < config.extents_max
    }
}

/// One of several who use a tier, as a connection is: how many failed flushes of the disk it was told of.
#[derive(Default)]
pub struct User(AtomicU64);

/// Where a write goes.
enum Route {
    Log,
    Disk,
}

impl Tier {
    /// Divides `ssd` for use with `disk`. What is on it is lost.
    ///
    /// # Errors
    /// If the sizes do not fit, or the SSD fails.
    pub fn create(disk: &dyn Device, disk_name: &str, ssd: &dyn Device, geometry: Geometry) -> Result<(), OpenError> {
        let Geometry { queue_bytes, segment_bytes, area_bytes, slot_bytes } = geometry;
        let wrong = |what: String| Err(OpenError::Geometry(what));
        if !(4096..=1 << 30).contains(&segment_bytes) || !(segment_bytes as usize).is_multiple_of(SECTOR) {
            return wrong(format!("segments of {segment_bytes} bytes: expected a multiple of 512 from 4K to 1G"));
        }
        if slot_bytes == 0 || !u64::from(slot_bytes).is_multiple_of(BLOCK) || slot_bytes > 1 << 30 {
            return wrong(format!("slots of {slot_bytes} bytes: expected a multiple of 4K up to 1G"));
        }
        let segments = queue_bytes / u64::from(segment_bytes);
        let slots = area_bytes / u64::from(slot_bytes);
        let (Ok(segments @ 4..), Ok(slots)) = (u32::try_from(segments), u32::try_from(slots)) else {
            return wrong(format!(
                "a queue of {queue_bytes} bytes: expected at least four segments of {segment_bytes}"
            ));
        };
        if disk_name.len() > crate::format::NAME_MAX {
            return wrong(format!("{disk_name}: expected a name of at most {} bytes", crate::format::NAME_MAX));
        }
        let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let log_id = clock.as_nanos() as u64 ^ u64::from(std::process::id()).rotate_left(48);
        let superblock = Superblock {
            log_id,
            generation: 1,
            epoch: 0,
            disk_bytes: disk.size(),
            segment_bytes,
            segments,
            slot_bytes,
            slots,
            tail_segment: 0,
            usage: Use::Detached,
            tail_seq: 1,
            durable_seq: 1,
            epoch_seq: 1,
            disk_name: disk_name.to_owned(),
        };
        if superblock.total_bytes() > ssd.size() {
            return wrong(format!(
                "{}: has {} bytes, queue and prefetch area need {}",
                ssd.describe(),
                ssd.size(),
                superblock.total_bytes()
            ));
        }
        // Both, so that none of an earlier tier is left.
        for at in SUPERBLOCKS {
            ssd.write(&superblock.encode(), at)?;
        }
        ssd.flush()?;
        debug_assert!(SUPERBLOCKS.iter().all(|at| at + SECTOR as u64 <= LOG_START));
        Ok(())
    }

    /// Opens a tier: reads the log, so that what was acknowledged is there. Time and memory grow with what is in the log.
    ///
    /// # Errors
    /// See [`OpenError`]. Nothing was changed then.
    pub fn open(disk: Arc<dyn Device>, ssd: Arc<dyn Device>, config: Config) -> Result<Tier, OpenError> {
        let mut superblock = recover::superblock(&*ssd)?;
        let name = config.disk_name.as_ref().unwrap_or(&superblock.disk_name);
        if disk.size() != superblock.disk_bytes || *name != superblock.disk_name {
            let told = |name: &str, bytes| format!("{name} ({bytes} bytes)");
            return Err(OpenError::OtherDisk {
                wanted: told(&superblock.disk_name, superblock.disk_bytes),
                found: told(name, disk.size()),
            });
        }
        if let Some(path) = &config.failure_mark {
            match crate::config::marked(path, superblock.log_id)? {
                None => {}
                Some(0) => return Err(OpenError::Failed(ssd.describe())),
                Some(bytes) => return Err(OpenError::Lost { device: ssd.describe(), bytes }),
            }
        }
        let queue_bytes = u64::from(superblock.segments) * u64::from(superblock.segment_bytes);
        let decider =
            Decider::new(&config, queue_bytes).map_err(|error| OpenError::Setting(format!("ghost queue: {error}")))?;
        let found = recover::recover(&*ssd, &superblock, false, config.salvage)?;
        if let (Some((first, last)), false) = (found.report.missing, config.salvage) {
            return Err(OpenError::Damaged { device: ssd.describe(), first, last });
        }
        // A superblock may be the older one of two.
        superblock.epoch = superblock.epoch.max(found.epoch) + 1;
        (superblock.epoch_seq, superblock.tail_seq) = (found.next_seq, found.tail_seq);
        superblock.generation += 1;
        superblock.usage = Use::Attached;
        ssd.write(&superblock.encode(), superblock.place())?;
        // With it, all that was found becomes durable: it may have been in a cache only.
        ssd.flush()?;
        ssd.write(&superblock.encode(), superblock.other_place())?;
        let slots = if config.prefetch { superblock.slots } else { 0 };
        let used_share = (config.used_pause, config.used_resume);
        let next_segment =
            found.used.last().map_or(superblock.tail_segment, |last| (last.segment + 1) % superblock.segments);
        Ok(Tier {
            maintenance: Mutex::new(Maintenance::default()),
            appender: Mutex::new(Appender::new(found.next_seq)),
            incoming: Mutex::new(Batch::default()),
            superblock: Mutex::new(superblock.clone()),
            state: Mutex::new(State {
                map: found.map,
                used: found.used.into(),
                next_segment,
                pins: vec![0; superblock.segments as usize],
                slots: Slots::new(slots, superblock.slot_bytes.into(), config.prefetch_count, used_share),
                decider,
                health: Health::Well,
                stuck: false,
                last_error: String::new(),
                disk_users: 0,
                disk_used: Time::ZERO,
                disk_head: 0,
                appended: Time::ZERO,
                arrivals: 0,
                writing: Vec::new(),
                doubtful: Vec::new(),
            }),
            unpinned: Condvar::new(),
            written: Condvar::new(),
            counters: Counters::default(),
            ssd_flush: Mutex::new(()),
            disk_flush: Mutex::new(()),
            area: Mutex::new(vec![Vec::new(); slots as usize]),
            durable_seq: AtomicU64::new(found.next_seq),
            written_seq: AtomicU64::new(found.next_seq),
            // What went to the disk before a kill, and was not flushed, is flushed with the first of these.
            disk_written: AtomicU64::new(1),
            disk_flushed: AtomicU64::new(0),
            flush_failures: AtomicU64::new(0),
            flush_losses: AtomicU64::new(0),
            told: User::default(),
            began: Instant::now(),
            recovery: found.report,
            layout: superblock,
            disk,
            ssd,
            config,
        })
    }

    /// Bytes of the disk.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.layout.disk_bytes
    }

    /// Trimming does something; see [`Device::trims`].
    #[must_use]
    pub fn trims(&self) -> bool {
        self.disk.trims()
    }

    /// Reads: the newest data, wherever it is.
    ///
    /// # Errors
    /// `InvalidInput` beyond the end; the devices' errors; `EIO` for what was lost.
    pub fn read(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let range = self.range(offset, buf.len() as u64)?;
        if buf.is_empty() {
            return Ok(());
        }
        Counters::add(&self.counters.read_bytes, buf.len() as u64);
        let (pieces, places) = {
            let now = self.now();
            let state = &mut *self.state.lock();
            state.arrivals += 1;
            state.decider.leaves_memory(now, Op::Read, offset, buf.len() as u64);
            for part in self.slot_parts(&range) {
                state.slots.read(part.start, part.end - part.start);
            }
            let pieces = state.map.pieces(range.clone());
            for (_, extent) in &pieces {
                if let Some(extent) = extent {
                    state.pins[extent.segment as usize] += 1;
                }
            }
            let mut places = Vec::new();
            for (piece, _) in pieces.iter().filter(|(_, extent)| extent.is_none()) {
                for part in self.slot_parts(piece) {
                    let place = state.slots.find(part.start, part.end - part.start);
                    places.push((part, place));
                }
            }
            (pieces, places)
        };
        let result = self.read_disk_parts(buf, offset, &places).and_then(|()| {
            let part = |piece: &Range<u64>| (piece.start - offset) as usize..(piece.end - offset) as usize;
            pieces.iter().try_for_each(|(piece, extent)| match extent {
                Some(extent) => self.read_extent(&mut buf[part(piece)], piece.start, extent),
                None => Ok(()),
            })
        });
        let mut state = self.state.lock();
        for (_, extent) in &pieces {
            if let Some(extent) = extent {
                self.unpin(&mut state, extent.segment);
            }
        }
        places.iter().filter_map(|(_, place)| *place).for_each(|place| state.slots.unpin(place));
        result
    }

    /// What is not in the log: from the prefetch area or the disk. From the disk in one piece, with what the log has newer
    /// in between: on a disk a request costs more than its bytes.
    fn read_disk_parts(&self, buf: &mut [u8], offset: u64, places: &[(Range<u64>, Option<u32>)]) -> io::Result<()> {
        let part = |range: &Range<u64>| (range.start - offset) as usize..(range.end - offset) as usize;
        let mut missing: Option<Range<u64>> = None;
        for (range, place) in places {
            if place.is_some_and(|place| self.read_slot(&mut buf[part(range)], range, place)) {
                Counters::add(&self.counters.read_area_bytes, range.end - range.start);
            } else {
                let start = missing.as_ref().map_or(range.start, |missing| missing.start);
                missing = Some(start..range.end);
            }
        }
        let Some(missing) = missing else { return Ok(()) };
        // The area's copies are as new as the disk's bytes, so it does not matter if they are overwritten.
        self.use_disk(&missing, |disk| disk.read(&mut buf[part(&missing)], missing.start))
    }

    /// False if the copy is not what was loaded.
    fn read_slot(&self, buf: &mut [u8], range: &Range<u64>, place: u32) -> bool {
        let start = range.start % u64::from(self.layout.slot_bytes);
        let first = start / BLOCK * BLOCK;
        let len = (start + buf.len() as u64).next_multiple_of(BLOCK) - first;
        let mut blocks = vec![0; len as usize];
        let slot = self.layout.slot_start(place);
        let right = match self.ssd.read(&mut blocks, slot + first) {
            Ok(()) => {
                let (from, to) = ((first / BLOCK) as usize, ((first + len) / BLOCK) as usize);
                let crcs = &self.area.lock()[place as usize][from..to];
                blocks.chunks(BLOCK as usize).map(crc32fast::hash).eq(crcs.iter().copied())
            }
            Err(_) => false,
        };
        if right {
            let skip = (start - first) as usize;
            buf.copy_from_slice(&blocks[skip..skip + buf.len()]);
        } else {
            Counters::add(&self.counters.ssd_errors, 1);
            self.state.lock().slots.written(range.start, range.end - range.start);
        }
        right
    }

    /// An extent, or a part of one, of the log.
    fn read_extent(&self, buf: &mut [u8], offset: u64, extent: &Extent) -> io::Result<()> {
        if extent.state == Newest::Lost {
            return Err(lost(offset, extent.len));
        }
        if matches!(extent.entry.kind, Kind::Zero { .. }) {
            buf.fill(0);
            return Ok(());
        }
        let at = self.layout.segment_start(extent.segment) + extent.at();
        let read = self.ssd.read(buf, at);
        let whole = extent.is_whole();
        let error = match read {
            Ok(()) if !whole || crc32fast::hash(buf) == extent.entry.crc => {
                Counters::add(&self.counters.read_log_bytes, buf.len() as u64);
                return Ok(());
            }
            Ok(()) => "it does not match its checksum".to_owned(),
            Err(error) => error.to_string(),
        };
        Counters::add(&self.counters.ssd_errors, 1);
        self.tell(&format!("{}: data of bytes {offset} and following: {error}", self.ssd.describe()));
        if extent.state == Newest::Clean {
            // The disk has it, too.
            return self.use_disk(&(offset..offset + extent.len), |disk| disk.read(buf, offset));
        }
        // Perhaps it can be read another time: only write-back gives it up.
        Err(lost(offset, extent.len))
    }

    /// Writes.
    ///
    /// # Errors
    /// `InvalidInput` beyond the end; the devices' errors. Parts may have been written then.
    pub fn write(&self, data: &[u8], offset: u64, fua: bool) -> io::Result<()> {
        let range = self.range(offset, data.len() as u64)?;
        if !data.is_empty() {
            Counters::add(&self.counters.written_bytes, data.len() as u64);
            Counters::add(&self.counters.writes, 1);
            let (ticket, arrivals) = self.arrive(Op::Write, &range);
            self.change(&range, Kind::Data, Some(data))?;
            let mut state = self.state.lock();
            if state.arrivals == arrivals {
                state.decider.undisturbed(ticket);
            }
        }
        if fua || self.config.durable_writes { self.flush_quietly(&self.told) } else { Ok(()) }
    }

    /// The range reads as zeros from now on; with `trim` its space may be given back.
    ///
    /// # Errors
    /// As of [`Tier::write`].
    pub fn zero(&self, offset: u64, len: u64, trim: bool, fua: bool) -> io::Result<()> {
        let range = self.range(offset, len)?;
        // Where trimming is no more than a hint, it is not taken.
        if len > 0 && (!trim || self.disk.trims()) {
            self.arrive(Op::Write, &range);
            self.change(&range, Kind::Zero { trim }, None)?;
        }
        if fua || self.config.durable_writes { self.flush_quietly(&self.told) } else { Ok(()) }
    }

    /// Makes all writes durable that have been acknowledged.
    ///
    /// # Errors
    /// The devices'. What was written since the last flush that succeeded may be lost then.
    pub fn flush(&self) -> io::Result<()> {
        self.flush_for(&self.told)
    }

    /// One of several who use the tier: each is told of a flush of the disk that has failed from now on.
    #[must_use]
    pub fn user(&self) -> User {
        User(AtomicU64::new(self.flush_losses.load(SeqCst)))
    }

    /// [`Tier::flush`] for one of several users.
    ///
    /// # Errors
    /// As there; also once after a flush for another one, or of write-back, that failed and may have lost what was written.
    pub fn flush_for(&self, user: &User) -> io::Result<()> {
        Counters::add(&self.counters.flushes, 1);
        self.flush_quietly(user)
    }

    fn flush_quietly(&self, user: &User) -> io::Result<()> {
        let seq = self.written_seq.load(SeqCst);
        // Nobody knows after an error what of it is there. What can still be read goes to the disk.
        if self.flush_ssd(seq).is_err() || self.state.lock().health == Health::Failing {
            self.give_up()?;
        }
        let written = self.disk_written.load(SeqCst);
        let before = self.flush_failures.load(SeqCst);
        if self.disk_flushed.load(SeqCst) < written {
            let result = self.flush_disk();
            if self.flush_failures.load(SeqCst) == before {
                self.disk_flushed.fetch_max(written, SeqCst);
            }
            if result.is_err() {
                user.0.store(self.flush_losses.load(SeqCst), SeqCst);
                return result;
            }
        }
        let losses = self.flush_losses.load(SeqCst);
        if user.0.swap(losses, SeqCst) < losses {
            return Err(io::Error::other("an earlier flush of the disk failed"));
        }
        Ok(())
    }

    /// Makes all records before this one durable. After one failure no later success means anything.
    pub(crate) fn flush_ssd(&self, seq: u64) -> io::Result<()> {
        if self.durable_seq.load(SeqCst) >= seq {
            return Ok(());
        }
        let _one = self.ssd_flush.lock();
        if self.durable_seq.load(SeqCst) >= seq {
            return Ok(());
        }
        if self.state.lock().health != Health::Well {
            return Err(io::Error::other("the SSD was given up"));
        }
        // What others have written since comes along.
        let seq = self.written_seq.load(SeqCst).max(seq);
        self.ssd.flush().inspect_err(|error| self.ssd_failed("flush", error))?;
        self.durable_seq.fetch_max(seq, SeqCst);
        Ok(())
    }

    /// Flushes the disk.
    pub(crate) fn flush_disk(&self) -> io::Result<()> {
        let _one = self.disk_flush.lock();
        self.disk.flush().inspect_err(|error| {
            self.flush_failures.fetch_add(1, SeqCst);
            // The users first: one that ends in between has counted by then what it wrote.
            let is_used = self.state.lock().disk_users > 0;
            if is_used || self.disk_flushed.load(SeqCst) < self.disk_written.load(SeqCst) {
                self.flush_losses.fetch_add(1, SeqCst);
            }
            self.disk_failed("flush", error);
        })
    }

    /// Pieces of the range, in order, and whether they take space: data, or zeros that do not.
    ///
    /// # Errors
    /// Those of asking the disk.
    pub fn extents(&self, offset: u64, len: u64) -> io::Result<Vec<(u64, u64, bool)>> {
        let range = self.range(offset, len)?;
        let pieces = self.state.lock().map.pieces(range);
        let mut found: Vec<(u64, u64, bool)> = Vec::new();
        let mut add = |from: u64, to: u64, data: bool| match found.last_mut() {
            Some(last) if last.2 == data => last.1 += to - from,
            _ => found.push((from, to - from, data)),
        };
        for (piece, extent) in pieces {
            match extent {
                Some(extent) => add(piece.start, piece.end, !matches!(extent.entry.kind, Kind::Zero { .. })),
                None => {
                    let mut at = piece.start;
                    while at < piece.end {
                        let (to, data) = self.disk.extent(at)?;
                        let to = to.clamp(at + 1, piece.end);
                        add(at, to, data);
                        at = to;
                    }
                }
            }
        }
        Ok(found)
    }

    /// State and counts.
    #[must_use]
    pub fn status(&self) -> Status {
        let counts = self.counters.get();
        let state = self.state.lock();
        let hits = counts.read_log_bytes + counts.read_area_bytes;
        Status {
            health: state.health,
            last_error: state.last_error.clone(),
            disk: self.disk.describe(),
            ssd: self.ssd.describe(),
            dirty_bytes: state.map.dirty_bytes(),
            lost_bytes: state.map.lost_bytes(),
            segments: self.layout.segments,
            segments_used: state.segments_used(),
            extents: state.map.len(),
            hit_rate: hits as f64 / counts.read_bytes.max(1) as f64,
            write_amplification: match counts.logged_bytes {
                0 => 0.0,
                logged => counts.ssd_written_bytes as f64 / logged as f64,
            },
            counts,
            decision: state.decider.decision(),
            slots: state.slots.stats(),
            recovery: self.recovery.clone(),
        }
    }

    // ---- inside ------------------------------------------------------------------------------------------------

    fn range(&self, offset: u64, len: u64) -> io::Result<Range<u64>> {
        match offset.checked_add(len).filter(|&end| end <= self.size()) {
            Some(end) => Ok(offset..end),
            None => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{len} bytes at {offset}: beyond the end of the disk ({} bytes)", self.size()),
            )),
        }
    }

    pub(crate) fn now(&self) -> Time {
        Time(self.began.elapsed().as_nanos() as u64)
    }

    /// How long it has been since then.
    pub(crate) fn since(&self, then: Time) -> Duration {
        Duration::from_nanos(self.now().since(then))
    }

    fn arrive(&self, op: Op, range: &Range<u64>) -> (u64, u64) {
        let now = self.now();
        let mut state = self.state.lock();
        state.arrivals += 1;
        (state.decider.leaves_memory(now, op, range.start, range.end - range.start), state.arrivals)
    }

    /// The parts of the range in different slots.
    fn slot_parts(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let slot = u64::from(self.layout.slot_bytes);
        let mut parts = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let to = ((at / slot + 1) * slot).min(range.end);
            parts.push(at..to);
            at = to;
        }
        parts
    }

    pub(crate) fn unpin(&self, state: &mut State, segment: u32) {
        let pins = &mut state.pins[segment as usize];
        *pins -= 1;
        if *pins == 0 {
            self.unpinned.notify_all();
        }
    }

    /// A user's read or write of the disk.
    pub(crate) fn use_disk<R>(
        &self,
        range: &Range<u64>,
        io: impl FnOnce(&dyn Device) -> io::Result<R>,
    ) -> io::Result<R> {
        self.state.lock().disk_users += 1;
        let result = io(&*self.disk);
        let now = self.now();
        let mut state = self.state.lock();
        state.disk_users -= 1;
        state.disk_used = now;
        state.disk_head = range.end;
        drop(state);
        if let Err(error) = &result {
            self.disk_failed("request", error);
        }
        result
    }

    fn route(&self, state: &State, range: &Range<u64>, full: bool) -> Route {
        // What the log may bring back after a crash must not become older than what is on the disk.
        let doubtful =
            |range: &Range<u64>| state.doubtful.iter().any(|of| of.start < range.end && range.start < of.end);
        if state.map.overlaps(range) || doubtful(range) {
            return Route::Log;
        }
        let on = state.health == Health::Well && state.decider.is_on();
        if self.config.takes(range.end - range.start, on, full) { Route::Log } else { Route::Disk }
    }

    /// Writes data or zeros, in parts that fit into a record.
    fn change(&self, range: &Range<u64>, kind: Kind, data: Option<&[u8]>) -> io::Result<()> {
        let mut state = self.state.lock();
        while state.writing.iter().any(|other| other.start < range.end && range.start < other.end) {
            self.written.wait(&mut state);
        }
        state.writing.push(range.clone());
        drop(state);
        let result = self.change_parts(range, kind, data);
        let mut state = self.state.lock();
        let own = state.writing.iter().position(|other| other == range).expect("pushed above");
        state.writing.swap_remove(own);
        self.written.notify_all();
        result
    }

    fn change_parts(&self, range: &Range<u64>, kind: Kind, data: Option<&[u8]>) -> io::Result<()> {
        let part_max = if kind == Kind::Data { self.data_max() } else { u64::MAX };
        // What is not mapped cannot become it, as no other write overlaps.
        if matches!(self.route(&self.state.lock(), range, false), Route::Disk) {
            return self.change_disk(range, kind, data);
        }
        let mut at = range.start;
        while at < range.end {
            let to = range.end.min(at.saturating_add(part_max));
            let bytes = data.map(|data| &data[(at - range.start) as usize..(to - range.start) as usize]);
            self.change_part(at..to, kind, bytes)?;
            at = to;
        }
        Ok(())
    }

    fn change_part(&self, range: Range<u64>, kind: Kind, data: Option<&[u8]>) -> io::Result<()> {
        let mut full = false;
        loop {
            let (route, health, stuck) = {
                let state = self.state.lock();
                (self.route(&state, &range, full), state.health, state.stuck)
            };
            match (route, health) {
                (Route::Disk, _) => return self.change_disk(&range, kind, data),
                (Route::Log, Health::Well) => match self.append(range.start, range.end - range.start, kind, data) {
                    Ok(()) => {
                        Counters::add(&self.counters.logged_writes, 1);
                        return Ok(());
                    }
                    Err(NotAppended::Full) if full => self.make_room()?,
                    Err(NotAppended::Full) => full = true,
                    Err(NotAppended::Failed) => {}
                },
                (Route::Log, Health::Failing) if stuck => {
                    return Err(io::Error::other(format!(
                        "{}: it failed and holds older data of these bytes, which it would bring back",
                        self.ssd.describe()
                    )));
                }
                (Route::Log, Health::Failing) => self.give_up()?,
                (Route::Log, Health::PassThrough) => {
                    // Only what was lost is still mapped: it is there again now.
                    self.change_disk(&range, kind, data)?;
                    self.state.lock().map.remove(range);
                    return Ok(());
                }
            }
        }
    }

    fn change_disk(&self, range: &Range<u64>, kind: Kind, data: Option<&[u8]>) -> io::Result<()> {
        self.state.lock().slots.written(range.start, range.end - range.start);
        let result = self.use_disk(range, |disk| {
            let written = write_to(disk, range, kind, data);
            // Also after an error: a part may have been written. While this still counts as a user: a flush that fails is told to somebody.
            self.disk_written.fetch_add(1, SeqCst);
            written
        });
        self.state.lock().slots.written(range.start, range.end - range.start);
        result
    }

    pub(crate) fn tell(&self, what: &str) {
        tracing::error!("{what}");
        what.clone_into(&mut self.state.lock().last_error);
    }

    pub(crate) fn disk_failed(&self, what: &str, error: &io::Error) {
        Counters::add(&self.counters.disk_errors, 1);
        self.tell(&format!("{}: {what}: {error}", self.disk.describe()));
    }

    /// The SSD is not written to any more.
    pub(crate) fn ssd_failed(&self, what: &str, error: &io::Error) {
        Counters::add(&self.counters.ssd_errors, 1);
        self.tell(&format!("{}: {what}: {error}; it is given up: what it holds goes to the disk", self.ssd.describe()));
        let mut state = self.state.lock();
        if state.health == Health::Well {
            state.health = Health::Failing;
        }
    }

    pub(crate) fn superblock_failed(&self, error: &io::Error) {
        if self.state.lock().health == Health::Well {
            self.ssd_failed("superblock", error);
        }
    }

    /// Writes a superblock with what `change` changes, and makes it durable.
    pub(crate) fn write_superblock(&self, change: impl FnOnce(&mut Superblock)) -> io::Result<()> {
        let mut superblock = self.superblock.lock();
        let mut next = superblock.clone();
        next.generation += 1;
        next.durable_seq = self.durable_seq.load(SeqCst);
        change(&mut next);
        self.write_ssd(&next.encode(), next.place())?;
        {
            let _one = self.ssd_flush.lock();
            // Before another flush can succeed.
            self.ssd.flush().inspect_err(|error| self.superblock_failed(error))?;
        }
        // Only now: one of the two is always whole. The older one would bring back what has been given up since, were the
        // newer one damaged.
        let copied = self.write_ssd(&next.encode(), next.other_place());
        *superblock = next;
        copied
    }

    pub(crate) fn write_ssd(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        Counters::add(&self.counters.ssd_written_bytes, bytes.len() as u64);
        self.ssd.write(bytes, at)
    }
}

pub(crate) fn write_to(disk: &dyn Device, range: &Range<u64>, kind: Kind, data: Option<&[u8]>) -> io::Result<()> {
    match (kind, data) {
        (Kind::Data, Some(data)) => disk.write(data, range.start),
        (Kind::Zero { trim }, _) => disk.zero(range.start, range.end - range.start, trim),
        _ => Ok(()),
    }
}

fn lost(offset: u64, len: u64) -> io::Error {
    io::Error::other(format!("{len} bytes at {offset} cannot be read from the SSD, which alone has them"))
}
