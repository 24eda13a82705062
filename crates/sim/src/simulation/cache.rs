//! A server's page cache: what Linux keeps in memory between a server and its file system.
//!
//! * **Pages** of 4 KB in blocks of 64 KB; blocks that were not used for longest go first, unless they are dirty or under way.
//! * **Read-ahead** after `mm/readahead.c` (2.6.32 and later): a read that continues the last one, or that finds pages before it
//!   in the cache, opens a window of four times its size; when it reaches the page that the window has marked, the next
//!   window is read, twice as large, up to a bound (128 KB unless the device says more). Anything else reads what was asked for. A file has one window, but marked
//!   pages and those in the cache keep several streams in one file going.
//! * **Writing** changes pages in memory. Above the background threshold, or when they are 30 s old, they are written back, file
//!   by file and in order of offset, up to 4 MB of a file at a time; at the hard threshold writers wait until there is less.
//!
//! Deviations: a page that is written in part is not read before; one list instead of active and inactive ones; writers are
//! stopped at the threshold rather than slowed down before it; nothing is known of journals.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::BuildHasherDefault;

use serde::Serialize;

use super::disk::Mixer;
use crate::slab::NONE;

/// Bytes of a page.
pub(super) const PAGE: u64 = 4096;
/// Pages of a block.
const BLOCK_PAGES: u64 = 16;
/// Pages of a transfer of what is read beyond a window: those of a `bio`, 1 MB.
const BIO_PAGES: u64 = 256;
/// Most pages of a file that are written back before it is the next one's turn: 4 MB.
const TURN_PAGES: u64 = 1024;
/// Dirty pages are written back when they are so old, and looked at so often, in nanoseconds.
const EXPIRE_NS: u64 = 30_000_000_000;
const FLUSH_EVERY_NS: u64 = 5_000_000_000;

/// What page caches have done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CacheOutcome {
    /// Pages that were read and there, or on their way.
    pub hits: u64,
    /// Pages that were read and had to be fetched.
    pub misses: u64,
    /// Pages fetched without being asked for.
    pub read_ahead: u64,
    /// Pages written back.
    pub written_back: u64,
    /// Writes that had to wait for write-back.
    pub throttled: u64,
    /// Pages that were dirty at the end.
    pub dirty: u64,
}

impl CacheOutcome {
    /// Adds another cache's.
    pub fn merge(&mut self, other: &CacheOutcome) {
        self.hits += other.hits;
        self.misses += other.misses;
        self.read_ahead += other.read_ahead;
        self.written_back += other.written_back;
        self.throttled += other.throttled;
        self.dirty += other.dirty;
    }
}

/// Pages of a file that are to be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Transfer {
    pub(super) number: u32,
    pub(super) file: u64,
    pub(super) page: u64,
    pub(super) pages: u64,
    pub(super) writes: bool,
}

/// A transfer that is under way.
#[derive(Debug)]
struct Moving {
    what: Transfer,
    /// Commands of the device that are not served.
    commands: u32,
    waiters: Vec<u32>,
}

#[derive(Debug)]
struct Block {
    key: (u64, u64),
    /// One bit for each page.
    valid: u16,
    dirty: u16,
    writing: u16,
    loading: u16,
    marked: u16,
    /// Transfers that load pages of it.
    loads: Vec<(u16, u32)>,
    newer: u32,
    older: u32,
}

#[derive(Debug, Default)]
struct File {
    /// The read-ahead window: first page, pages, how many before its end the next one is begun.
    start: u64,
    size: u64,
    ahead: u64,
    /// Last page read.
    last: u64,
    read_before: bool,
    dirty_blocks: BTreeSet<u64>,
    /// Where write-back goes on.
    cursor: u64,
    dirty_since_ns: u64,
    queued: bool,
}

/// See the [module documentation](self).
#[derive(Debug)]
pub(super) struct Cache {
    blocks: HashMap<(u64, u64), u32, BuildHasherDefault<Mixer>>,
    slots: Vec<Block>,
    free: Vec<u32>,
    newest: u32,
    oldest: u32,
    blocks_max: usize,
    /// Most pages of a read-ahead window.
    window_max: u64,
    /// Most pages that are written back in a transfer.
    transfer_max: u64,
    files: HashMap<u64, File, BuildHasherDefault<Mixer>>,
    /// Files with dirty pages, in the order in which they are written back.
    dirty_files: VecDeque<u64>,
    dirty: u64,
    writing: u64,
    background: u64,
    hard: u64,
    moving: Vec<Moving>,
    moving_free: Vec<u32>,
    writes_under_way: u32,
    /// Most of them.
    writes_max: u32,
    /// Batches that wait for room for dirty pages.
    throttled: VecDeque<u32>,
    /// How often everything is written back and forgotten, in nanoseconds; 0: never.
    sync_ns: u64,
    /// Pages that were dirty when that was last told, and have not gone.
    sync_left: u64,
    /// The write-back timer is planned.
    pub(super) timer: bool,
    pub(super) outcome: CacheOutcome,
}

fn bits(first: u64, pages: u64) -> u16 {
    (((1u32 << pages) - 1) << first) as u16
}

/// The parts of a range of pages by block: block, mask.
fn by_block(page: u64, pages: u64) -> impl Iterator<Item = (u64, u16)> {
    let end = page + pages;
    (page / BLOCK_PAGES..end.div_ceil(BLOCK_PAGES)).map(move |block| {
        let from = page.max(block * BLOCK_PAGES);
        let to = end.min((block + 1) * BLOCK_PAGES);
        (block, bits(from % BLOCK_PAGES, to - from))
    })
}

impl Cache {
    /// `background`, `hard`: shares of the memory that may be dirty before write-back begins, and before writers wait.
    /// `read_ahead`, `transfer`: most bytes of a window, and of a transfer to the device.
    pub(super) fn new(memory: u64, background: f64, hard: f64, read_ahead: u64, transfer: u64) -> Cache {
        let pages = (memory / PAGE).max(4 * BLOCK_PAGES);
        let share = |of: f64| ((pages as f64 * of) as u64).clamp(1, pages / 2);
        Cache {
            blocks: HashMap::default(),
            slots: Vec::new(),
            free: Vec::new(),
            newest: NONE,
            oldest: NONE,
            blocks_max: (pages / BLOCK_PAGES) as usize,
            window_max: (read_ahead / PAGE).max(1),
            transfer_max: (transfer / PAGE).max(1),
            files: HashMap::default(),
            dirty_files: VecDeque::new(),
            dirty: 0,
            writing: 0,
            background: share(background),
            hard: share(hard).max(share(background) + 1),
            moving: Vec::new(),
            moving_free: Vec::new(),
            writes_under_way: 0,
            writes_max: 128,
            throttled: VecDeque::new(),
            sync_ns: 0,
            sync_left: 0,
            timer: false,
            outcome: CacheOutcome::default(),
        }
    }

    /// The same with somebody who writes everything back so often, and drops what is clean, as one does to measure devices
    /// (`sync; echo 3 > /proc/sys/vm/drop_caches`).
    pub(super) fn synced(self, sync_ns: u64) -> Cache {
        Cache { sync_ns, ..self }
    }

    /// The same with so many transfers of write-back on their way to the device at most.
    pub(super) fn throttled(self, writes_max: u32) -> Cache {
        Cache { writes_max, ..self }
    }

    /// How often [`Cache::look`] is to be called while something is dirty.
    pub(super) fn look_every_ns(&self) -> u64 {
        if self.sync_ns > 0 { self.sync_ns } else { FLUSH_EVERY_NS }
    }

    /// Looks for what is to be written back for its age.
    pub(super) fn look(&mut self, now: u64, out: &mut Vec<Transfer>) {
        if self.sync_ns > 0 {
            self.sync_left = self.dirty;
            self.drop_clean();
        }
        self.write_back(now, out);
    }

    fn drop_clean(&mut self) {
        let mut slot = self.oldest;
        while slot != NONE {
            let Block { key, dirty, writing, loading, newer, .. } = self.slots[slot as usize];
            if dirty | writing | loading == 0 {
                self.unlink(slot);
                self.blocks.remove(&key);
                self.free.push(slot);
            }
            slot = newer;
        }
    }

    // ---- blocks ----------------------------------------------------------------------------------------------

    fn unlink(&mut self, slot: u32) {
        let (newer, older) = (self.slots[slot as usize].newer, self.slots[slot as usize].older);
        match newer {
            NONE => self.newest = older,
            newer => self.slots[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.slots[older as usize].newer = newer,
        }
    }

    fn link(&mut self, slot: u32) {
        let newest = self.newest;
        let block = &mut self.slots[slot as usize];
        (block.newer, block.older) = (NONE, newest);
        match newest {
            NONE => self.oldest = slot,
            newest => self.slots[newest as usize].newer = slot,
        }
        self.newest = slot;
    }

    fn find(&self, file: u64, block: u64) -> Option<&Block> {
        self.blocks.get(&(file, block)).map(|slot| &self.slots[*slot as usize])
    }

    /// The block, made if it is not there, as the one used last.
    fn touch(&mut self, file: u64, block: u64) -> &mut Block {
        let slot = match self.blocks.get(&(file, block)).copied() {
            Some(slot) => {
                self.unlink(slot);
                slot
            }
            None => {
                if self.blocks.len() >= self.blocks_max {
                    self.evict();
                }
                let key = (file, block);
                let new = Block {
                    key,
                    valid: 0,
                    dirty: 0,
                    writing: 0,
                    loading: 0,
                    marked: 0,
                    loads: Vec::new(),
                    newer: NONE,
                    older: NONE,
                };
                let slot = match self.free.pop() {
                    Some(slot) => {
                        self.slots[slot as usize] = new;
                        slot
                    }
                    None => {
                        self.slots.push(new);
                        self.slots.len() as u32 - 1
                    }
                };
                self.blocks.insert(key, slot);
                slot
            }
        };
        self.link(slot);
        &mut self.slots[slot as usize]
    }

    /// Frees the block that was not used for longest. What cannot go counts as used; if nothing can, the cache grows.
    fn evict(&mut self) {
        for _ in 0..64 {
            let slot = self.oldest;
            if slot == NONE {
                return;
            }
            self.unlink(slot);
            let block = &self.slots[slot as usize];
            if block.dirty | block.writing | block.loading == 0 {
                self.blocks.remove(&block.key);
                self.free.push(slot);
                return;
            }
            self.link(slot);
        }
    }

    /// Whether a page is there or on its way.
    fn has(&self, file: u64, page: u64) -> bool {
        let bit = bits(page % BLOCK_PAGES, 1);
        self.find(file, page / BLOCK_PAGES).is_some_and(|block| (block.valid | block.loading) & bit != 0)
    }

    // ---- transfers -------------------------------------------------------------------------------------------

    fn begin(&mut self, mut what: Transfer) -> Transfer {
        let new = |what| Moving { what, commands: 0, waiters: Vec::new() };
        match self.moving_free.pop() {
            Some(number) => {
                what.number = number;
                self.moving[number as usize] = new(what);
            }
            None => {
                what.number = self.moving.len() as u32;
                self.moving.push(new(what));
            }
        }
        what
    }

    /// Another command of the device belongs to a transfer.
    pub(super) fn command(&mut self, number: u32) {
        self.moving[number as usize].commands += 1;
    }

    /// A command of a transfer is served. If it was the last one, the batches that waited for the transfer are put into `ready`.
    pub(super) fn served(&mut self, number: u32, ready: &mut Vec<u32>) -> bool {
        let moving = &mut self.moving[number as usize];
        moving.commands -= 1;
        if moving.commands > 0 {
            return false;
        }
        ready.append(&mut moving.waiters);
        let what = moving.what;
        self.moving_free.push(number);
        for (block, mask) in by_block(what.page, what.pages) {
            let Some(slot) = self.blocks.get(&(what.file, block)).copied() else { continue };
            let block = &mut self.slots[slot as usize];
            if what.writes {
                block.writing &= !mask;
            } else {
                let mine: u16 = block.loads.iter().filter(|(_, by)| *by == number).map(|(mask, _)| mask).sum();
                block.loads.retain(|(_, by)| *by != number);
                block.loading &= !mine;
                block.valid |= mine;
            }
        }
        if what.writes {
            self.writing -= what.pages;
            self.writes_under_way -= 1;
            self.outcome.written_back += what.pages;
        }
        true
    }

    /// Begins to load what is missing of a range, in transfers without gaps. A window is one transfer, as it is one `bio` of large folios:
    /// nobody reads the first of its pages before the last one is there, whatever commands the device makes of it.
    fn load(&mut self, file: u64, page: u64, pages: u64, out: &mut Vec<Transfer>) {
        let mut at = page;
        let end = page + pages;
        while at < end {
            if self.has(file, at) {
                at += 1;
                continue;
            }
            let from = at;
            while at < end && at - from < self.window_max.max(BIO_PAGES) && !self.has(file, at) {
                at += 1;
            }
            let what = Transfer { number: 0, file, page: from, pages: at - from, writes: false };
            let what = self.begin(what);
            for (block, mask) in by_block(from, at - from) {
                let block = self.touch(file, block);
                block.loading |= mask;
                block.loads.push((mask, what.number));
            }
            out.push(what);
        }
    }

    // ---- reading ---------------------------------------------------------------------------------------------

    /// A batch reads a range that ends before `file_end`. What is to be loaded is put into `out`; returns for how many
    /// transfers the batch waits.
    pub(super) fn read(
        &mut self,
        batch: u32,
        file: u64,
        (page, pages): (u64, u64),
        file_end: u64,
        out: &mut Vec<Transfer>,
    ) -> u32 {
        let end = page + pages;
        let missing = (page..end).filter(|&at| !self.has(file, at)).count() as u64;
        self.outcome.misses += missing;
        self.outcome.hits += pages - missing;
        if let Some(marked) = self.marked(file, page, pages) {
            self.next_window(file, marked, pages, file_end, out);
        }
        while let Some(at) = (page..end).find(|&at| !self.has(file, at)) {
            let before = out.len();
            self.window_for(file, at, end - at, file_end, out);
            if out.len() == before {
                self.load(file, at, end - at, out);
            }
        }
        let state = self.files.entry(file).or_default();
        (state.last, state.read_before) = (end - 1, true);
        let mut waits = 0;
        for (block, mask) in by_block(page, pages) {
            let block = self.touch(file, block);
            let loads: Vec<u32> =
                block.loads.iter().filter(|(loading, _)| loading & mask != 0).map(|(_, by)| *by).collect();
            for number in loads {
                let waiters = &mut self.moving[number as usize].waiters;
                if waiters.last() != Some(&batch) {
                    waiters.push(batch);
                    waits += 1;
                }
            }
        }
        waits
    }

    /// The first marked page of a range; the mark is taken off.
    fn marked(&mut self, file: u64, page: u64, pages: u64) -> Option<u64> {
        for (number, mask) in by_block(page, pages) {
            let Some(slot) = self.blocks.get(&(file, number)) else { continue };
            let block = &mut self.slots[*slot as usize];
            let found = block.marked & mask;
            if found != 0 {
                block.marked &= !found;
                return Some(number * BLOCK_PAGES + u64::from(found.trailing_zeros()));
            }
        }
        None
    }

    /// Reads a window and marks the page at which the next one begins.
    fn submit(&mut self, file: u64, file_end: u64, asked_end: u64, out: &mut Vec<Transfer>) {
        let state = self.files.entry(file).or_default();
        let (start, size, ahead) = (state.start, state.size, state.ahead);
        let end = (start + size).min(file_end.max(asked_end));
        if start >= end {
            return;
        }
        self.outcome.read_ahead += end - asked_end.clamp(start, end);
        self.load(file, start, end - start, out);
        let mark = start + size - ahead;
        if ahead > 0 && mark < end {
            let bit = bits(mark % BLOCK_PAGES, 1);
            self.touch(file, mark / BLOCK_PAGES).marked |= bit;
        }
    }

    /// A read has met a page that is not there.
    fn window_for(&mut self, file: u64, page: u64, pages: u64, file_end: u64, out: &mut Vec<Transfer>) {
        let window_max = self.window_max;
        let history = (1..=window_max).take_while(|back| *back <= page && self.has(file, page - back)).count() as u64;
        let state = self.files.entry(file).or_default();
        let continues = page == 0 || state.read_before && (page == state.last || page == state.last + 1);
        let expected = state.size > 0 && page == state.start + state.size;
        if expected {
            state.start += state.size;
            state.size = next_size(state.size, window_max);
            state.ahead = state.size;
        } else if continues || pages > window_max {
            state.start = page;
            state.size = first_size(pages, window_max);
            state.ahead = if state.size > pages { state.size - pages } else { state.size };
        } else if history > 0 {
            // Somebody has read up to here: another stream in the same file.
            let size = if history >= page { 2 * history } else { history };
            (state.start, state.size, state.ahead) = (page, (size + pages).min(window_max), 1);
        } else {
            return;
        }
        self.submit(file, file_end, page + pages, out);
    }

    /// A read has reached a marked page: the next window is read before it is needed.
    fn next_window(&mut self, file: u64, page: u64, pages: u64, file_end: u64, out: &mut Vec<Transfer>) {
        let window_max = self.window_max;
        let state = self.files.entry(file).or_default();
        if page == state.start + state.size - state.ahead.min(state.size) {
            state.start += state.size;
            state.size = next_size(state.size, window_max);
        } else {
            // A window of another stream in this file: it goes on where the pages end.
            let Some(start) = (page + 1..=page + window_max).find(|&at| !self.has(file, at)) else { return };
            let state = self.files.entry(file).or_default();
            state.start = start;
            state.size = next_size(start - page + pages, window_max);
        }
        let state = self.files.entry(file).or_default();
        state.ahead = state.size;
        let start = state.start;
        self.submit(file, file_end, start, out);
    }

    // ---- writing ---------------------------------------------------------------------------------------------

    /// A batch writes a range. False if it has to wait until there are fewer dirty pages: [`Cache::released`] gives it back.
    pub(super) fn write(&mut self, now: u64, batch: u32, file: u64, (page, pages): (u64, u64)) -> bool {
        if self.dirty + self.writing >= self.hard {
            self.outcome.throttled += 1;
            self.throttled.push_back(batch);
            return false;
        }
        for (number, mask) in by_block(page, pages) {
            let block = self.touch(file, number);
            let new = mask & !block.dirty;
            block.valid |= mask;
            block.dirty |= mask;
            self.dirty += u64::from(new.count_ones());
            self.files.entry(file).or_default().dirty_blocks.insert(number);
        }
        let state = self.files.entry(file).or_default();
        if !state.queued {
            (state.queued, state.dirty_since_ns) = (true, now);
            self.dirty_files.push_back(file);
        }
        true
    }

    /// A batch that may write now.
    pub(super) fn released(&mut self) -> Option<u32> {
        if self.dirty + self.writing >= self.hard { None } else { self.throttled.pop_front() }
    }

    /// Begins to write back what should be.
    pub(super) fn write_back(&mut self, now: u64, out: &mut Vec<Transfer>) {
        while self.writes_under_way < self.writes_max {
            let Some(file) = self.dirty_files.front().copied() else { return };
            let expired = self.files.get(&file).is_some_and(|state| state.dirty_since_ns + EXPIRE_NS <= now);
            if self.dirty <= self.background && !expired && self.throttled.is_empty() && self.sync_left == 0 {
                return;
            }
            self.dirty_files.pop_front();
            self.write_back_file(file, out);
            let state = self.files.entry(file).or_default();
            state.queued = !state.dirty_blocks.is_empty();
            if state.queued {
                self.dirty_files.push_back(file);
            }
        }
    }

    /// Begins to write back some of a file's dirty pages, from where it was left.
    fn write_back_file(&mut self, file: u64, out: &mut Vec<Transfer>) {
        let mut left = TURN_PAGES;
        while left > 0 && self.writes_under_way < self.writes_max {
            let state = self.files.entry(file).or_default();
            let next = state.dirty_blocks.range(state.cursor / BLOCK_PAGES..).next();
            let Some(block) = next.or_else(|| state.dirty_blocks.first()).copied() else { return };
            let dirty = self.find(file, block).map_or(0, |block| block.dirty);
            let from = block * BLOCK_PAGES + u64::from(dirty.trailing_zeros());
            let limit = left.min(self.transfer_max);
            let mut pages = 0;
            while pages < limit && self.is_dirty(file, from + pages) {
                pages += 1;
            }
            for (number, mask) in by_block(from, pages) {
                let block = self.touch(file, number);
                block.dirty &= !mask;
                block.writing |= mask;
                if block.dirty == 0 {
                    self.files.entry(file).or_default().dirty_blocks.remove(&number);
                }
            }
            let state = self.files.entry(file).or_default();
            state.cursor = from + pages;
            self.dirty -= pages;
            self.writing += pages;
            self.writes_under_way += 1;
            left -= pages.min(left);
            self.sync_left = self.sync_left.saturating_sub(pages);
            let what = Transfer { number: 0, file, page: from, pages, writes: true };
            let what = self.begin(what);
            out.push(what);
        }
    }

    fn is_dirty(&self, file: u64, page: u64) -> bool {
        let bit = bits(page % BLOCK_PAGES, 1);
        self.find(file, page / BLOCK_PAGES).is_some_and(|block| block.dirty & bit != 0)
    }

    /// Pages that are dirty or being written.
    pub(super) fn unwritten(&self) -> u64 {
        self.dirty + self.writing
    }
}

/// The first window after a read of so many pages.
fn first_size(pages: u64, most: u64) -> u64 {
    let size = pages.next_power_of_two();
    let size = if size <= most / 32 {
        size * 4
    } else if size <= most / 4 {
        size * 2
    } else {
        most
    };
    size.max(pages)
}

/// The window after one of so many pages.
fn next_size(size: u64, most: u64) -> u64 {
    if size < most / 16 { 4 * size } else { (2 * size).min(most) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TRANSFER: u64 = 512 << 10;

    fn cache() -> Cache {
        Cache::new(64 << 20, 0.1, 0.2, 128 << 10, TRANSFER)
    }

    /// Reads and lets all transfers end; returns what was loaded.
    fn read(cache: &mut Cache, file: u64, page: u64, pages: u64) -> Vec<(u64, u64)> {
        let mut out = Vec::new();
        let waits = cache.read(7, file, (page, pages), u64::MAX, &mut out);
        let mut ready = Vec::new();
        for what in &out {
            cache.command(what.number);
            cache.served(what.number, &mut ready);
        }
        assert!(waits as usize >= ready.len().min(1) && ready.len() == waits as usize);
        out.iter().map(|what| (what.page, what.pages)).collect()
    }

    #[test]
    fn a_stream_is_read_ahead_in_windows_that_double() {
        let mut cache = cache();
        let loads: Vec<(u64, u64)> = (0..32).flat_map(|i| read(&mut cache, 1, 2 * i, 2)).collect();
        assert_eq!(loads, [(0, 4), (4, 8), (12, 16), (28, 32), (60, 32), (92, 32)]);
        assert_eq!(cache.outcome.misses, 2, "only the first read waited");
    }

    #[test]
    fn windows_are_as_large_as_the_device_wants_them() {
        let mut cache = Cache::new(64 << 20, 0.1, 0.2, 2560 << 10, TRANSFER);
        let loads: Vec<(u64, u64)> = (0..64).flat_map(|i| read(&mut cache, 1, 64 * i, 64)).collect();
        assert!(loads.iter().all(|(_, pages)| pages * PAGE <= 2560 << 10), "{loads:?}");
        // Far ahead of the reader: more than the windows of the other test, 128 KB.
        assert!(cache.has(1, 64 * 64 + 300) && !cache.has(1, 64 * 64 + 1400), "{loads:?}");
        assert_eq!(cache.outcome.misses, 64, "only the first read waited");
    }

    #[test]
    fn a_sync_writes_all_back_and_forgets_what_is_clean() {
        let mut cache = cache().synced(1_000_000_000);
        read(&mut cache, 1, 5000, 2);
        assert!(cache.write(0, 1, 1, (0, 10)) && cache.write(0, 2, 2, (70, 3)));
        let mut out = Vec::new();
        cache.write_back(0, &mut out);
        assert!(out.is_empty() && cache.has(1, 5000), "far below the threshold, and young");
        cache.look(1_000_000_000, &mut out);
        assert_eq!(
            out.iter().map(|what| (what.file, what.page, what.pages)).collect::<Vec<_>>(),
            [(1, 0, 10), (2, 70, 3)]
        );
        assert!(!cache.has(1, 5000) && cache.has(1, 0) && cache.sync_left == 0);
        assert!(cache.write(1, 3, 1, (20, 1)));
        out.clear();
        cache.write_back(1_000_000_001, &mut out);
        assert!(out.is_empty(), "not until the next one");
    }

    #[test]
    fn a_window_is_there_as_a_whole_and_write_back_is_throttled() {
        let mut cache = Cache::new(64 << 20, 0.1, 0.2, 2560 << 10, 64 << 10).throttled(3);
        let mut out = Vec::new();
        assert_eq!(cache.read(1, 1, (0, 160), u64::MAX, &mut out), 1, "one transfer to wait for");
        assert_eq!(out.iter().map(|what| (what.page, what.pages)).collect::<Vec<_>>(), [(0, 640)]);
        let mut ready = Vec::new();
        (0..2).for_each(|_| cache.command(out[0].number));
        assert!(!cache.served(out[0].number, &mut ready) && ready.is_empty(), "of two commands one is served");
        assert!(cache.served(out[0].number, &mut ready) && ready == [1]);
        out.clear();
        assert!((0..1000).all(|number| cache.write(0, 2, 2, (16 * number, 2))), "less than may be dirty");
        cache.write_back(0, &mut out);
        assert_eq!(out.len(), 3);
        cache.command(out[0].number);
        assert!(cache.served(out[0].number, &mut ready));
        cache.write_back(0, &mut out);
        assert_eq!(out.len(), 4, "another one when one is done");
    }

    #[test]
    fn random_reads_fetch_what_they_ask_for() {
        let mut cache = cache();
        for page in [1000, 40, 7000, 300] {
            assert_eq!(read(&mut cache, 1, page, 2), [(page, 2)]);
        }
        assert_eq!(cache.outcome.read_ahead, 0);
    }

    #[test]
    fn several_streams_in_one_file_keep_being_read_ahead() {
        let mut cache = cache();
        let commands: usize = (0..64)
            .map(|i| (0..8).map(|stream| read(&mut cache, 1, stream * 4096 + 2 * i, 2).len()).sum::<usize>())
            .sum();
        // 128 pages of 8 streams in windows of up to 32 pages.
        assert!(commands < 8 * 20, "{commands}");
    }

    #[test]
    fn writers_wait_at_the_hard_threshold_and_write_back_goes_in_order_of_offset() {
        let mut cache = cache();
        let mut written = 0;
        while cache.write(0, written, 3, (u64::from(written * 7919 % 4096) * 2, 2)) {
            written += 1;
        }
        assert_eq!(cache.unwritten(), cache.hard + cache.hard % 2);
        let mut out = Vec::new();
        cache.write_back(0, &mut out);
        let starts: Vec<u64> = out.iter().map(|what| what.page).collect();
        assert!(starts.is_sorted() && out.len() > 10, "{starts:?}");
        assert!(cache.dirty <= cache.background && cache.released().is_none());
        let mut ready = Vec::new();
        out.iter().for_each(|what| {
            cache.command(what.number);
            cache.served(what.number, &mut ready);
        });
        assert_eq!(cache.released(), Some(written));
    }

    proptest! {
        /// Whatever is read and written: a batch waits for what is loaded for it, dirty pages add up, the cache keeps its size.
        #[test]
        fn pages_add_up(steps in proptest::collection::vec((0u64..3, 0u64..600, 1u64..40, any::<bool>()), 1..120)) {
            let mut cache = Cache::new(1 << 20, 0.1, 0.3, 128 << 10, TRANSFER);
            let (mut moving, mut ready) = (Vec::new(), Vec::new());
            for (batch, (file, page, pages, write)) in (0..).zip(steps) {
                let now = u64::from(batch) * 1_000_000_000;
                if write {
                    cache.write(now, batch, file, (page, pages));
                    cache.write_back(now, &mut moving);
                } else {
                    let waits = cache.read(batch, file, (page, pages), 700, &mut moving);
                    prop_assert!(waits > 0 || (page..page + pages).all(|at| cache.has(file, at)));
                }
                if batch % 3 == 0 {
                    for what in moving.drain(..) {
                        cache.command(what.number);
                        prop_assert!(cache.served(what.number, &mut ready));
                    }
                }
                let dirty: u32 = cache.blocks.values().map(|slot| cache.slots[*slot as usize].dirty.count_ones()).sum();
                prop_assert_eq!(u64::from(dirty), cache.dirty);
                let listed: usize = cache.files.values().map(|file| file.dirty_blocks.len()).sum();
                let blocks = cache.blocks.values().filter(|slot| cache.slots[**slot as usize].dirty != 0).count();
                prop_assert_eq!(listed, blocks);
            }
            for what in moving.drain(..) {
                cache.command(what.number);
                cache.served(what.number, &mut ready);
            }
            prop_assert_eq!(cache.writing, 0);
            prop_assert!(cache.slots.iter().all(|block| block.loads.is_empty()));
        }
    }
}
