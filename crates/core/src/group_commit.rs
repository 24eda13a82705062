//! Group commit: syncs (`fsync` and its like) of several programs enter the file system together, so that one commit of its
//! journal serves all of them.
//!
//! A journaling file system writes one commit at a time. Who syncs while one is written waits for its end, and then for one of
//! his own, which begins at once, and so without those whom the last one served: they have their answer, and need a moment to
//! write what they sync next. So the programs fall into two halves that take turns, and twice as many commits are written, each
//! with its seeks and flushes, as if all came together. Databases know the remedy (group commit with a delay: Gawlick and
//! Kinkade 1985, Helland et al. 1987): wait for that moment. Here it is *learned* whom to wait for and how long, as
//! anticipation learns it for reads ([`crate::Anticipation`]).
//!
//! A *syncer* is a thread that syncs. Of each are learned: its *think time*, from the end of one sync to the arrival of the
//! next; the share of its syncs that came in time, which is a quarter of what a sync takes or one movement of the device's arm,
//! whichever is shorter; and how long a sync of it takes. It is *regular* if nearly all came in time and none takes long. While
//! a regular syncer's sync is under way, and no commit of strangers, the syncs of others are held; after it the device idles for
//! those that are about to return; then all go together. A sync is held for two usual ones and one movement of the arm at the
//! longest. A syncer that is alone is never held, nor one of whom nothing is known, or whose syncs take much less than those of
//! the others.
//!
//! Nothing is ever answered here: each sync is carried out, after it has arrived, and only its beginning is put off.

use crate::request::Time;

/// Sets of the table of syncers, and syncers of a set.
const SETS: usize = 1 << 7;
const WAYS: usize = 4;
/// Weight of the newest observation.
const NEW: f32 = 0.25;
/// Least share of syncs in time with which a syncer is waited for. Who syncs several times in a row and then does something else,
/// as databases do for a transaction, stays below: the commits of such seldom meet, and holding them only costs.
const IN_TIME_MIN: f32 = 0.9;
/// Movements of the arm that a sync may take; one that takes longer writes data rather than a commit, and nobody is to wait
/// for that.
const MOVES_MAX: f32 = 32.0;
/// Of what a sync takes, this part is waited for another one at the longest.
const WAIT_PART: f32 = 0.25;

/// Syncs that have been let go together are told by these.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GroupCommitCounts {
    /// Syncs that arrived.
    pub syncs: u64,
    /// Groups that were let go; a sync that went alone is one, too.
    pub groups: u64,
    /// Syncs that did not go at once.
    pub held: u64,
    /// For how long, all together.
    pub held_ns: u64,
    /// Times that somebody who was expected did not come.
    pub missed: u64,
}

#[derive(Clone, Copy, Debug)]
struct Syncer {
    /// 0: nobody.
    key: u64,
    answered: Time,
    think_ns: f32,
    /// Mean deviation of the think time.
    deviation_ns: f32,
    /// Share of syncs that came in time.
    in_time: f32,
    /// What a sync takes.
    sync_ns: f32,
}

const NOBODY: Syncer =
    Syncer { key: 0, answered: Time::ZERO, think_ns: -1.0, deviation_ns: 0.0, in_time: 0.5, sync_ns: 0.0 };

impl Syncer {
    fn came(&mut self, now: Time, wait_ns: f32) {
        let think = now.since(self.answered) as f32;
        let in_time = think <= wait_ns;
        self.in_time += NEW * (f32::from(u8::from(in_time)) - self.in_time);
        if !in_time {
            return;
        }
        if self.think_ns < 0.0 {
            (self.think_ns, self.deviation_ns) = (think, think / 2.0);
            return;
        }
        self.deviation_ns += NEW * ((think - self.think_ns).abs() - self.deviation_ns);
        self.think_ns += NEW * (think - self.think_ns);
    }
}

#[derive(Debug)]
struct Held<T> {
    what: T,
    key: u64,
    at: Time,
    /// It waits for others; else it goes at once.
    waits: bool,
}

/// A sync that is under way; to be given back when it has ended.
#[must_use = "a sync that never ends keeps others waiting"]
#[derive(Debug)]
pub struct SyncTicket {
    key: u64,
    began: Time,
    kind: Kind,
}

/// What a sync that is under way means for others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Of a regular syncer, which will be back.
    Regular,
    /// Of another, and none of a regular syncer went with it: a commit of its own.
    Apart,
    /// Of no importance: it went with a regular syncer's, or it writes data for long, while others commit.
    Along,
}

/// Which syncs go when; its rules are at the head of this file. `T`: what the host knows a sync by.
#[derive(Debug)]
pub struct GroupCommit<T> {
    /// What moving costs the device; 0: every sync goes at once.
    positioning_ns: u64,
    syncers: Vec<Syncer>,
    /// In order of arrival.
    held: Vec<Held<T>>,
    /// Who is about to return, and until when that is believed.
    due: Vec<(u64, Time)>,
    /// Syncs under way, by their [`Kind`].
    regular: u32,
    apart: u32,
    along: u32,
    /// What those of regular syncers take.
    sync_ns: f32,
    counts: GroupCommitCounts,
}

impl<T> GroupCommit<T> {
    /// For a device that needs so long to get from one place to another; 0 for one without an arm: every sync goes at once.
    #[must_use]
    pub fn new(positioning_ns: u64) -> GroupCommit<T> {
        GroupCommit {
            positioning_ns,
            syncers: Vec::new(),
            held: Vec::new(),
            due: Vec::new(),
            regular: 0,
            apart: 0,
            along: 0,
            sync_ns: 0.0,
            counts: GroupCommitCounts::default(),
        }
    }

    /// What is known of the device has changed. [`GroupCommit::poll`] is to be called.
    pub fn set_positioning(&mut self, positioning_ns: u64) {
        self.positioning_ns = positioning_ns;
    }

    /// What moving costs the device; 0: nothing is held.
    #[must_use]
    pub fn positioning_ns(&self) -> u64 {
        self.positioning_ns
    }

    /// Since the beginning.
    #[must_use]
    pub fn counts(&self) -> GroupCommitCounts {
        self.counts
    }

    /// Syncs that have arrived and not been let go.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Syncs that were let go and have not ended.
    #[must_use]
    pub fn under_way(&self) -> u32 {
        self.regular + self.apart + self.along
    }

    /// A sync arrives, of the thread `syncer`; 0: nobody knows whose. [`GroupCommit::poll`] is to be called.
    pub fn arrive(&mut self, now: Time, syncer: u64, what: T) {
        self.counts.syncs += 1;
        self.due.retain(|&(key, _)| key != syncer);
        let mut waits = false;
        if self.positioning_ns > 0 && syncer != 0 {
            let (positioning, usual) = (self.positioning_ns as f32, self.sync_ns);
            if let Some(known) = self.known(syncer) {
                known.came(now, wait_ns(positioning, known.sync_ns));
                // Those whose syncs are nearly free would wait for nothing they profit from.
                waits = known.sync_ns >= usual * WAIT_PART;
            }
        }
        self.held.push(Held { what, key: syncer, at: now, waits });
    }

    /// Lets go what is to go now, each with a ticket for [`GroupCommit::end`]. Returns when to ask again if nothing happens
    /// until then; `None` if nothing is held.
    pub fn poll(&mut self, now: Time, start: &mut Vec<(T, SyncTicket)>) -> Option<Time> {
        let until = self.hold_until(now);
        let goes = |held: &Held<T>| until.is_none() || !held.waits;
        if !self.held.iter().any(goes) {
            return until;
        }
        self.counts.groups += 1;
        let (go, stay): (Vec<_>, Vec<_>) = std::mem::take(&mut self.held).into_iter().partition(goes);
        self.held = stay;
        let begun = start.len();
        for Held { what, key, at, .. } in go {
            let waited = now.since(at);
            self.counts.held += u64::from(waited > 0);
            self.counts.held_ns += waited;
            start.push((what, SyncTicket { key, began: now, kind: self.kind(key) }));
        }
        let has_regular = start[begun..].iter().any(|(_, ticket)| ticket.kind == Kind::Regular);
        for (_, ticket) in &mut start[begun..] {
            if has_regular && ticket.kind == Kind::Apart {
                ticket.kind = Kind::Along;
            }
            *self.of_kind(ticket.kind) += 1;
        }
        until
    }

    /// A sync has ended; to be called before it is answered, so that its syncer cannot come again before.
    /// [`GroupCommit::poll`] is to be called.
    pub fn end(&mut self, now: Time, ticket: SyncTicket) {
        let SyncTicket { key, began, kind } = ticket;
        *self.of_kind(kind) -= 1;
        if self.positioning_ns == 0 || key == 0 {
            return;
        }
        let took = now.since(began) as f32;
        if kind == Kind::Regular {
            self.sync_ns += if self.sync_ns == 0.0 { took } else { NEW * (took - self.sync_ns) };
        }
        let positioning = self.positioning_ns as f32;
        let syncer = self.learned(key);
        syncer.answered = now;
        syncer.sync_ns += if syncer.sync_ns == 0.0 { took } else { NEW * (took - syncer.sync_ns) };
        let patience = (syncer.think_ns + 4.0 * syncer.deviation_ns).min(wait_ns(positioning, syncer.sync_ns));
        if self.kind(key) == Kind::Regular {
            self.due.push((key, now.after(patience as u64)));
        }
    }

    /// Until when what waits is held; `None` if it goes.
    fn hold_until(&mut self, now: Time) -> Option<Time> {
        let oldest = self.held.iter().find(|held| held.waits)?.at;
        if self.positioning_ns == 0 {
            return None;
        }
        // A commit is being written, or will be, without those who are about to return: who enters meanwhile has the next one.
        if self.apart > 0 || self.held.iter().any(|held| !held.waits) {
            return None;
        }
        let usual = (2.0 * self.sync_ns) as u64;
        let until = if self.regular > 0 {
            oldest.after(usual)
        } else {
            self.miss(now);
            let returned = self.due.iter().map(|&(_, until)| until).max()?;
            returned.min(oldest.after(usual).after(self.positioning_ns))
        };
        (now < until).then_some(until)
    }

    /// Those that should have come by now have not. What that says of them shows when they come.
    fn miss(&mut self, now: Time) {
        let before = self.due.len();
        self.due.retain(|&(_, until)| until > now);
        self.counts.missed += (before - self.due.len()) as u64;
    }

    fn kind(&mut self, key: u64) -> Kind {
        let longest = self.positioning_ns as f32 * MOVES_MAX;
        match self.known(key) {
            Some(syncer) if syncer.sync_ns > longest => Kind::Along,
            Some(syncer) if syncer.in_time >= IN_TIME_MIN => Kind::Regular,
            _ => Kind::Apart,
        }
    }

    fn of_kind(&mut self, kind: Kind) -> &mut u32 {
        match kind {
            Kind::Regular => &mut self.regular,
            Kind::Apart => &mut self.apart,
            Kind::Along => &mut self.along,
        }
    }

    fn set(key: u64) -> usize {
        (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32) as usize % SETS * WAYS
    }

    fn known(&mut self, key: u64) -> Option<&mut Syncer> {
        if key == 0 || self.syncers.is_empty() {
            return None;
        }
        let set = Self::set(key);
        self.syncers[set..set + WAYS].iter_mut().find(|syncer| syncer.key == key)
    }

    /// Its place in the table, which it takes from whoever has not synced for longest.
    fn learned(&mut self, key: u64) -> &mut Syncer {
        // Nobody syncs on most mounts.
        if self.syncers.is_empty() {
            self.syncers = vec![NOBODY; SETS * WAYS];
        }
        let set = Self::set(key);
        let ways = &mut self.syncers[set..set + WAYS];
        let at = ways.iter().position(|syncer| syncer.key == key).unwrap_or_else(|| {
            let oldest = (0..WAYS).min_by_key(|&way| (ways[way].key != 0, ways[way].answered)).unwrap_or(0);
            ways[oldest] = Syncer { key, ..NOBODY };
            oldest
        });
        &mut ways[at]
    }
}

/// How long a syncer is waited for at the longest.
fn wait_ns(positioning_ns: f32, sync_ns: f32) -> f32 {
    (sync_ns * WAIT_PART).min(positioning_ns)
}
