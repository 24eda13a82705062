//! Collective calls on a file.

use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::{boxed, guarded, slice, sluice_ranges};
use crate::choose::{Chooser, Costs, Ended};
use crate::decide::{Decisions, Planned, Wanted};
use crate::flat::Range;
use crate::layout::{Layout, of_gluster, of_lustre, of_sluice};
use crate::list::{self, Memory, Segment};
use crate::plan::{Round, Strategy};
use crate::report::{self, Sort};

/// What a process says of its part in a call, and sends to all others.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Summary {
    /// 1 if it understands its part and could carry it out.
    pub can: i64,
    /// How many ranges of the file it has.
    pub ranges: i64,
    /// Bytes of them.
    pub bytes: i64,
    /// Behind the last of them.
    pub end: i64,
    /// What the file has now.
    pub size: i64,
    /// Nanoseconds of its last call, from when it was known how it is carried out.
    pub elapsed: i64,
    /// Nanoseconds of looking at that call, without waiting for others.
    pub looked: i64,
    /// Nanoseconds of the calls that nobody has looked at since.
    pub skipped: i64,
    /// Its ranges, if they fit.
    pub first: [Range; INLINE],
}

/// Ranges that are sent with a summary, and need no message of their own.
pub const INLINE: usize = 4;

/// Decisions for one file.
pub struct sluice_decisions {
    of_file: Decisions,
    me: usize,
}

/// A call that is not left to the library.
pub struct sluice_plan {
    strategy: Strategy,
    write: bool,
    rounds: Vec<Round>,
    early: Vec<Range>,
    own: Vec<Range>,
    predecessor: i32,
    successor: i32,
    memory: Memory,
}

/// Buffers of one round of an exchange.
#[repr(C)]
pub struct Exchange {
    /// For each process, of the owner's buffer: bytes and their place.
    pub own_counts: *const i32,
    /// See `own_counts`.
    pub own_places: *const i32,
    /// For each process, of the agent's buffer.
    pub agent_counts: *const i32,
    /// See `agent_counts`.
    pub agent_places: *const i32,
    /// Bytes of the owner's buffer.
    pub own_bytes: i64,
    /// Bytes of the agent's buffer.
    pub agent_bytes: i64,
}

/// Where a layout comes from.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The attribute `user.sluice.layout`.
    Sluice,
    /// The attribute `lustre.lov`.
    Lustre,
    /// The attribute `trusted.glusterfs.pathinfo`, of a file that is not sharded.
    Gluster,
}

/// The layout that an attribute tells: stripe, first server, servers in `numbers`. 1 or 0.
///
/// # Safety
/// `len` bytes at `value`, three numbers can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_layout_of(source: Source, value: *const u8, len: usize, numbers: *mut i64) -> i32 {
    // SAFETY: as the caller promises.
    let value = unsafe { slice(value, len) };
    let layout = guarded(|| match source {
        Source::Sluice => of_sluice(value),
        Source::Lustre => of_lustre(value),
        Source::Gluster => of_gluster(value, 0),
    });
    let Some(found) = layout.and_then(|layout| layout.numbers()) else { return 0 };
    // SAFETY: as the caller promises.
    unsafe { std::slice::from_raw_parts_mut(numbers, 3) }.copy_from_slice(&found);
    1
}

fn strategy_named(name: &[u8]) -> Option<Strategy> {
    [Strategy::Library, Strategy::Agents, Strategy::Early, Strategy::Timed]
        .into_iter()
        .find(|s| s.name().as_bytes() == name)
}

/// Servers of a layout that has something to decide.
fn layout_of(numbers: &[i64], forced: &[u8]) -> Option<Layout> {
    let layout = Layout::round_robin(numbers[0], numbers[1], numbers[2])?;
    (layout.servers() > 1 || strategy_named(forced).is_some()).then_some(layout)
}

/// Decisions for a file with a layout, the same on all processes but for `me`. `forced`: a strategy's name, or anything else for
/// the best one. Null: there is no such layout, or it has nothing to decide: one server.
///
/// # Safety
/// Three numbers, and `forced_len` bytes at `forced`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_decisions_new(
    numbers: *const i64,
    me: i32,
    forced: *const u8,
    forced_len: usize,
) -> *mut sluice_decisions {
    // SAFETY: as the caller promises.
    let (numbers, forced) = unsafe { (slice(numbers, 3), slice(forced, forced_len)) };
    boxed(|| {
        let (layout, forced) = (layout_of(numbers, forced)?, strategy_named(forced));
        let me = usize::try_from(me).ok()?;
        Some(sluice_decisions { of_file: Decisions::new(layout, Chooser::new(Costs::default(), forced)), me })
    })
}

/// The same for another file of the same processes, with what `decisions` have learned; takes them. Null: the file is on other
/// servers, or otherwise.
///
/// # Safety
/// Null or from these functions; three numbers, and `forced_len` bytes at `forced`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_decisions_next(
    decisions: *mut sluice_decisions,
    numbers: *const i64,
    forced: *const u8,
    forced_len: usize,
) -> *mut sluice_decisions {
    if decisions.is_null() {
        return std::ptr::null_mut();
    }
    // SAFETY: as the caller promises.
    let (before, numbers, forced) =
        unsafe { (*Box::from_raw(decisions), slice(numbers, 3), slice(forced, forced_len)) };
    boxed(|| {
        let layout = layout_of(numbers, forced)?;
        let known = &before.of_file.layout;
        let is_alike = (layout.unit(), layout.servers()) == (known.unit(), known.servers());
        if !is_alike {
            return None;
        }
        let chooser = before.of_file.chooser.next_file(strategy_named(forced));
        Some(sluice_decisions { of_file: Decisions::new(layout, chooser), me: before.me })
    })
}

/// # Safety
/// Null or from these functions, and used no more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_decisions_free(decisions: *mut sluice_decisions) {
    if !decisions.is_null() {
        // SAFETY: as the caller promises.
        drop(unsafe { Box::from_raw(decisions) });
    }
}

/// Adds what was done for a file to the report at `path`; `decisions` is null if there were none,
/// `data_driven` what [`crate::dualpar`] says, or empty. 0, or -1: it cannot be written.
///
/// # Safety
/// Null or from these functions; strings that end with 0; eight sorts in the order of [`SORTS`](crate::report::SORTS).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_report(
    path: *const c_char,
    name: *const c_char,
    ranks: i32,
    decisions: *const sluice_decisions,
    sorts: *const [Sort; 8],
    data_driven: *const c_char,
) -> i32 {
    // SAFETY: as the caller promises.
    let (path, name, decisions, sorts, data_driven) = unsafe {
        (CStr::from_ptr(path), CStr::from_ptr(name), decisions.as_ref(), &*sorts, CStr::from_ptr(data_driven))
    };
    let add = || {
        let layout = decisions.map(|decisions| decisions.of_file.layout.describe());
        let chooser = decisions.map(|decisions| &decisions.of_file.chooser);
        let mut entry = report::entry(&name.to_string_lossy(), ranks, layout, chooser, sorts);
        entry["data_driven"] = serde_json::from_slice(data_driven.to_bytes()).unwrap_or_default();
        report::add(Path::new(OsStr::from_bytes(path.to_bytes())), entry).ok()
    };
    guarded(add).map_or(-1, |()| 0)
}

/// What the last call took on this process, which no later call has told all of them: for [`sluice_report`] alone.
///
/// # Safety
/// From these functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_last(decisions: *mut sluice_decisions, nanoseconds: i64) {
    let ended = Ended { call: nanoseconds as f64 * 1e-9, ..Ended::default() };
    // SAFETY: as the caller promises.
    unsafe { &mut *decisions }.of_file.chooser.ended_alone(ended);
}

/// Asked once for each call, by all processes: whether it is the library's, without them asking each other.
///
/// # Safety
/// From these functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_skips(decisions: *mut sluice_decisions) -> i32 {
    // SAFETY: as the caller promises.
    i32::from(unsafe { &mut *decisions }.of_file.chooser.skips())
}

/// Whether the times of messages are wanted, which all processes say together; then [`sluice_costs`] tells them.
///
/// # Safety
/// From these functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_wants_costs(decisions: *const sluice_decisions) -> i32 {
    // SAFETY: as the caller promises.
    i32::from(unsafe { &*decisions }.of_file.chooser.wants_costs())
}

/// Seconds of a message, and of a byte sent; the same on all processes.
///
/// # Safety
/// From these functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_costs(decisions: *mut sluice_decisions, message: f64, byte: f64) {
    // SAFETY: as the caller promises.
    unsafe { &mut *decisions }.of_file.chooser.measured(message, byte);
}

/// Begins a call by what all processes say of it: 1 if their ranges are wanted, 0 if it is the library's.
///
/// # Safety
/// From these functions; a summary of each process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_call(
    decisions: *mut sluice_decisions,
    write: i32,
    all: *const Summary,
    ranks: usize,
) -> i32 {
    // SAFETY: as the caller promises.
    let (decisions, all) = unsafe { (&mut *decisions, slice(all, ranks)) };
    let begin = || {
        let slowest = |of: fn(&Summary) -> i64| all.iter().map(of).max().map(|nanoseconds| nanoseconds as f64 * 1e-9);
        let (call, look, skipped) = (slowest(|s| s.elapsed)?, slowest(|s| s.looked)?, slowest(|s| s.skipped)?);
        decisions.of_file.chooser.ended(Ended { call, look, skipped });
        let sum = |of: fn(&Summary) -> i64| all.iter().try_fold(0i64, |sum, summary| sum.checked_add(of(summary)));
        let (bytes, ranges) = (sum(|s| s.bytes)?, sum(|s| s.ranges)?);
        let can = all.iter().all(|summary| summary.can == 1);
        // What ends before it is asked for is the library's to tell.
        let size = all.iter().map(|summary| summary.size).min()?;
        let is_there = write != 0 || all.iter().all(|summary| summary.bytes == 0 || summary.end <= size);
        Some(decisions.of_file.begin(Wanted { write: write != 0, bytes, ranges, can: can && is_there }))
    };
    i32::from(guarded(begin).unwrap_or(false))
}

/// Makes the plan of a call: `ranges` of all processes, one's behind the other's, `counts` of each. Null: the library carries it
/// out. Takes `memory`.
///
/// # Safety
/// From these functions; as many ranges as `counts` say together.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_plan_new(
    decisions: *mut sluice_decisions,
    ranges: *const Range,
    counts: *const i64,
    ranks: usize,
    memory: *mut sluice_ranges,
) -> *mut sluice_plan {
    // SAFETY: as the caller promises.
    let (decisions, counts, memory) = unsafe { (&mut *decisions, slice(counts, ranks), Box::from_raw(memory)) };
    let total: i64 = counts.iter().sum();
    // SAFETY: as the caller promises.
    let mut rest = unsafe { slice(ranges, total as usize) };
    boxed(|| {
        let mut of_rank = Vec::new();
        for &count in counts {
            let (mine, others) = rest.split_at_checked(usize::try_from(count).ok()?)?;
            of_rank.push(mine);
            rest = others;
        }
        let me = decisions.me;
        let own = of_rank.get(me)?.to_vec();
        let Planned { call, strategy, write } = decisions.of_file.plan(&of_rank)?;
        let mut plan = sluice_plan {
            strategy,
            write,
            rounds: Vec::new(),
            early: Vec::new(),
            own,
            predecessor: -1,
            successor: -1,
            memory: Memory::new(memory.0),
        };
        match strategy {
            Strategy::Library => return None,
            Strategy::Agents => plan.rounds = call.rounds(&call.agents(), me),
            Strategy::Early => plan.early = call.early(&call.agents(), me),
            Strategy::Timed => {
                let before = call.predecessors();
                let rank = |rank: Option<usize>| rank.map_or(-1, |rank| rank as i32);
                plan.predecessor = rank(*before.get(me)?);
                plan.successor = rank(before.iter().position(|&of| of == Some(me)));
            }
        }
        Some(plan)
    })
}

/// # Safety
/// Null or from these functions, and used no more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_plan_free(plan: *mut sluice_plan) {
    if !plan.is_null() {
        // SAFETY: as the caller promises.
        drop(unsafe { Box::from_raw(plan) });
    }
}

/// How: 1 agents, 2 early, 3 timed.
///
/// # Safety
/// From these functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_plan_strategy(plan: *const sluice_plan) -> i32 {
    // SAFETY: as the caller promises.
    unsafe { &*plan }.strategy as i32
}

/// The processes whose message this one waits for, and that it sends one to; -1: none.
///
/// # Safety
/// From these functions; both can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_plan_turn(plan: *const sluice_plan, predecessor: *mut i32, successor: *mut i32) {
    // SAFETY: as the caller promises.
    unsafe {
        *predecessor = (*plan).predecessor;
        *successor = (*plan).successor;
    }
}

/// How many rounds the exchange has, on every process as many.
///
/// # Safety
/// From these functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_plan_rounds(plan: *const sluice_plan) -> usize {
    // SAFETY: as the caller promises.
    unsafe { &*plan }.rounds.len()
}

/// The buffers of a round.
///
/// # Safety
/// From these functions, of a round that there is; `exchange` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_plan_round(plan: *const sluice_plan, round: usize, exchange: *mut Exchange) {
    // SAFETY: as the caller promises.
    let round = &unsafe { &*plan }.rounds[round];
    let buffers = Exchange {
        own_counts: round.own_counts.as_ptr(),
        own_places: round.own_places.as_ptr(),
        agent_counts: round.accessed_counts.as_ptr(),
        agent_places: round.accessed_places.as_ptr(),
        own_bytes: round.own_bytes(),
        agent_bytes: round.accessed_bytes(),
    };
    // SAFETY: as the caller promises.
    unsafe { exchange.write(buffers) };
}

/// Copies between the program's memory and the owner's buffer of a round: into the buffer for a write, out of it for a read.
///
/// # Safety
/// From these functions; the buffer is as large as the round says, the memory that of the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_plan_copy(plan: *const sluice_plan, round: usize, buffer: *mut u8) {
    // SAFETY: as the caller promises.
    let plan = unsafe { &*plan };
    let mut at = 0;
    for (_, piece) in &plan.rounds[round].own {
        for (address, len) in plan.memory.parts(piece.stream, piece.range.len) {
            // SAFETY: as the caller promises.
            unsafe {
                let (memory, place) = (address as *mut u8, buffer.add(at));
                if plan.write {
                    place.copy_from_nonoverlapping(memory, len);
                } else {
                    memory.copy_from_nonoverlapping(place, len);
                }
            }
            at += len;
        }
    }
}

/// Reads into or writes from the agent's buffer of a round. 0, or an error number, -1 if it has none.
///
/// # Safety
/// From these functions; the buffer is as large as the round says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_plan_access(plan: *const sluice_plan, round: usize, fd: i32, buffer: *mut u8) -> i32 {
    // SAFETY: as the caller promises.
    let plan = unsafe { &*plan };
    let access = || {
        let segments = plan.rounds[round]
            .list
            .iter()
            .map(|&(file, _, at)| Segment { file, memory: vec![(buffer as usize + at as usize, file.len as usize)] });
        let list = list::joined(segments);
        // SAFETY: the buffer is the caller's.
        Some(unsafe { list::transfer(fd, plan.write, &list) })
    };
    number(guarded(access))
}

/// Asks for what is to be read, without waiting: the data of this process's servers as their agent, or its own.
///
/// # Safety
/// From these functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_plan_ask(plan: *const sluice_plan, fd: i32) {
    // SAFETY: as the caller promises.
    let plan = unsafe { &*plan };
    list::ask_early(fd, if plan.strategy == Strategy::Early { &plan.early } else { &plan.own });
}

/// Reads or writes this process's own data. 0, or an error number, -1 if it has none.
///
/// # Safety
/// From these functions; the memory is that of the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_plan_own(plan: *const sluice_plan, fd: i32) -> i32 {
    // SAFETY: as the caller promises.
    let plan = unsafe { &*plan };
    let access = || {
        let mut stream = 0;
        let segments = plan.own.iter().map(|&file| {
            let memory = plan.memory.parts(stream, file.len).collect();
            stream += file.len;
            Segment { file, memory }
        });
        let list: Vec<_> = segments.collect();
        // SAFETY: the memory is the caller's.
        Some(unsafe { list::transfer(fd, plan.write, &list) })
    };
    number(guarded(access))
}

fn number(result: Option<std::io::Result<()>>) -> i32 {
    match result {
        Some(Ok(())) => 0,
        Some(Err(error)) => error.raw_os_error().unwrap_or(-1),
        None => -1,
    }
}
