//! What follows from holding an engine: batches to start and hosts to tell, once the engine was let go.
//!
//! Hosts are called with nothing held, so a call of theirs may do anything: submit, complete, cancel, change the algorithm,
//! on this scheduler or another one. What follows from that is carried out at once, inside the call, [`DEPTH_MAX`] calls
//! deep; from there on it is left to the innermost loop, so that a host that completes in the call that starts needs no
//! stack for each request. A thread that waits in here carries out first what was left to it.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;

use sluice_core::{Batch, Outcome, Request, RequestId, Time};

/// Calls of hosts inside each other on one thread before what follows is left for later.
const DEPTH_MAX: u32 = 4;
/// Empty batches kept for reuse.
const SPARE_MAX: usize = 64;

/// What the calls of one turn's effects leave for others.
#[derive(Default)]
pub(crate) struct Reports {
    /// Completions that were reported inside them: they go to the engine together.
    ended: RefCell<Vec<(RequestId, Outcome)>>,
    /// Effects behind the call that is under way, each for the recipient with a number.
    behind: RefCell<VecDeque<(u16, Effect)>>,
}

impl Reports {
    pub(crate) fn add(&self, id: RequestId, outcome: Outcome) {
        self.ended.borrow_mut().push((id, outcome));
    }

    pub(crate) fn take(&self) -> Vec<(RequestId, Outcome)> {
        self.ended.take()
    }

    /// Takes an empty list back.
    pub(crate) fn reuse(&self, list: Vec<(RequestId, Outcome)>) {
        self.ended.replace(list);
    }
}

crate::sync::thread_cell! {
    /// Those of the calls of hosts that this thread is inside of, each with the address of the engine that they are for.
    static OPEN: RefCell<Vec<(usize, Rc<Reports>)>> = RefCell::new(Vec::new());
}

/// Completions are left in these reports while this lives.
pub(crate) struct Reporting(());

impl Reporting {
    pub(crate) fn begin(engine: usize, reports: &Rc<Reports>) -> Reporting {
        // A thread that is about to end has no list any more, and waits in no call.
        let _ = OPEN.try_with(|open| open.borrow_mut().push((engine, reports.clone())));
        Reporting(())
    }
}

impl Drop for Reporting {
    fn drop(&mut self) {
        let _ = OPEN.try_with(|open| _ = open.borrow_mut().pop());
    }
}

/// What hosts on this thread have reported to an engine in calls that are not over.
pub(crate) fn take_reported(engine: usize) -> Vec<(RequestId, Outcome)> {
    let take = |open: &RefCell<Vec<(usize, Rc<Reports>)>>| {
        let open = open.borrow();
        open.iter().filter(|(of, _)| *of == engine).flat_map(|(_, reports)| reports.take()).collect()
    };
    OPEN.try_with(take).unwrap_or_default()
}

/// The next effect of an engine that this thread is to carry out after a call that is not over.
pub(crate) fn take_behind(engine: usize) -> Option<(u16, Effect)> {
    let take = |open: &RefCell<Vec<(usize, Rc<Reports>)>>| {
        let open = open.borrow();
        open.iter().filter(|(of, _)| *of == engine).find_map(|(_, reports)| reports.behind.borrow_mut().pop_front())
    };
    OPEN.try_with(take).ok().flatten()
}

/// Who hears of effects: a client's executor.
pub(crate) trait Recipient: Send + Sync {
    /// `reports`: where completions may be left.
    fn start(&self, batch: &Batch, reports: Option<&Rc<Reports>>);
    fn cancelled(&self, request: &Request, errno: i32);
    /// All effects of one turn were carried out.
    fn carried(&self);
    /// Starting something calls a host.
    fn is_host(&self) -> bool;
    /// The address of the engine.
    fn engine(&self) -> usize;
    /// Has the serving thread carry it out.
    fn leave_to_server(&self, effect: Effect);
    fn boxed(&self) -> Box<dyn Recipient>;
}

/// Small, as it goes from list to list.
pub(crate) enum Effect {
    Start(Box<Batch>),
    Cancel(Box<(Request, i32)>),
}

/// Effects of turns of one thread, each for the recipient with a number.
pub(crate) struct Effects<R> {
    list: VecDeque<(u16, Effect)>,
    /// Those of the list, each once, except the one on whose behalf the engine is held.
    recipients: Vec<(u16, R)>,
    /// Empty ones. In boxes, as they go from here into effects and back.
    #[allow(clippy::vec_box)]
    spare: Vec<Box<Batch>>,
    pub(crate) reports: Rc<Reports>,
    /// Requests that have ended.
    pub(crate) freed: u32,
    /// Somebody waits for an answer that is there now.
    pub(crate) answered: bool,
    /// A moment ago: when the last turn began, or what was executed since has ended.
    pub(crate) time: Time,
}

/// What is left for later.
pub(crate) enum Deferred {
    /// With what tells that all effects of its turn were carried out, unless somebody else does.
    Effect(Box<dyn Recipient>, Effect, Option<Arc<Carried>>),
    /// A host that is to be told of something.
    Tell(Box<dyn FnOnce() + Send>),
}

/// Tells a recipient that all effects of one turn were carried out, when the last of those that were left together has been.
/// Not after one of them: while that one is carried out a host may wait in its call, and have the others carried out in there.
pub(crate) struct Carried(Box<dyn Recipient>);

impl Carried {
    pub(crate) fn tells(recipient: Box<dyn Recipient>) -> Arc<Carried> {
        Arc::new(Carried(recipient))
    }
}

impl Drop for Carried {
    fn drop(&mut self) {
        self.0.carried();
    }
}

struct Carrying {
    depth: Cell<u32>,
    /// Something was left for later by [`telling_later`].
    is_late: Cell<bool>,
    /// [`calling_nobody`] is under way.
    calls_nobody: Cell<bool>,
    /// [`telling_news`] is under way.
    tells_news: Cell<bool>,
}

crate::sync::thread_cell! {
    static CARRYING: Carrying = Carrying {
        depth: Cell::new(0),
        is_late: Cell::new(false),
        calls_nobody: Cell::new(false),
        tells_news: Cell::new(false),
    };
}

crate::sync::thread_cell! {
    /// What was left to this thread. A thread that is about to end may have it no more, but uses schedulers all the same where it
    /// drops what it has of them.
    static DEFERRED: RefCell<VecDeque<Deferred>> = RefCell::new(VecDeque::new());
}

/// Leaves something to the innermost loop of this thread.
fn leave_here(deferred: Deferred) {
    let mut left = Some(deferred);
    let _ = DEFERRED.try_with(|list| list.borrow_mut().extend(left.take()));
    if let Some(deferred) = left {
        deferred.carry_out();
    }
}

fn next_deferred() -> Option<Deferred> {
    DEFERRED.try_with(|list| list.borrow_mut().pop_front()).ok().flatten()
}

/// A call of a host is under way on this thread while this lives.
pub(crate) struct InCallback(());

impl InCallback {
    pub(crate) fn enter() -> InCallback {
        CARRYING.with(|carrying| carrying.depth.set(carrying.depth.get() + 1));
        InCallback(())
    }

    /// So many calls are inside each other that what follows is better left to other threads.
    pub(crate) fn is_deep() -> bool {
        CARRYING.with(|carrying| carrying.depth.get() >= DEPTH_MAX)
    }
}

impl Drop for InCallback {
    fn drop(&mut self) {
        let depth = CARRYING.with(|carrying| {
            carrying.depth.set(carrying.depth.get() - 1);
            carrying.depth.get()
        });
        // The innermost one sees to what was left to it.
        if depth + 1 == DEPTH_MAX {
            carry_out_deferred();
        }
    }
}

/// True if this thread is inside a call of some host, or of who is told of windows.
pub(crate) fn in_callback() -> bool {
    CARRYING.with(|carrying| carrying.depth.get() > 0 || carrying.tells_news.get())
}

/// Tells somebody of windows. What goes with whom is told may be the last to know a scheduler, which does not wait for this
/// thread then.
pub(crate) fn telling_news(tell: impl FnOnce()) {
    CARRYING.with(|carrying| {
        let before = carrying.tells_news.replace(true);
        tell();
        carrying.tells_news.set(before);
    });
}

/// Leaves something to the innermost loop, for a thread that is [deep](InCallback::is_deep) inside calls.
pub(crate) fn tell_later(tell: impl FnOnce() + Send + 'static) {
    debug_assert!(InCallback::is_deep(), "somebody carries it out");
    leave_here(Deferred::Tell(Box::new(tell)));
}

/// Does something during which this thread calls no executor, whatever it changes on schedulers: their serving threads do. For
/// who holds a lock that a call might want.
pub fn calling_nobody<R>(work: impl FnOnce() -> R) -> R {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            CARRYING.with(|carrying| carrying.calls_nobody.set(self.0));
        }
    }
    let _restore = Restore(CARRYING.with(|carrying| carrying.calls_nobody.replace(true)));
    work()
}

pub(crate) fn calls_nobody() -> bool {
    CARRYING.with(|carrying| carrying.calls_nobody.get())
}

/// Does something in which no host is called: what there is to tell is left for [`tell_late`], which must follow.
pub(crate) fn telling_later(work: impl FnOnce()) {
    CARRYING.with(|carrying| {
        carrying.is_late.set(true);
        let depth = carrying.depth.replace(carrying.depth.get().max(DEPTH_MAX));
        work();
        carrying.depth.set(depth);
    });
}

/// Tells hosts what [`telling_later`] has left; deep inside calls of hosts the innermost loop does.
pub(crate) fn tell_late() {
    if CARRYING.with(|carrying| carrying.is_late.take()) && !InCallback::is_deep() {
        carry_out_deferred();
    }
}

/// Carries out what was left to this thread. To be called before it waits for anything.
pub(crate) fn carry_out_deferred() {
    CARRYING.with(|carrying| {
        while let Some(deferred) = next_deferred() {
            let depth = carrying.depth.replace(carrying.depth.get() + 1);
            deferred.carry_out();
            carrying.depth.set(depth);
        }
    });
}

/// Carries out here what was left to this thread by others.
pub(crate) fn carry_out(left: VecDeque<Deferred>) {
    left.into_iter().for_each(leave_here);
    carry_out_deferred();
}

/// As [`carry_out_deferred`], of starts only, and those of hosts are left to the serving thread. No host is called for this:
/// it might wait for what this thread has, or leave more here that would have to be started inside, and so on.
pub(crate) fn start_deferred() {
    let next = |deferred: &RefCell<VecDeque<Deferred>>| {
        let mut deferred = deferred.borrow_mut();
        let at = deferred.iter().position(|one| matches!(one, Deferred::Effect(_, Effect::Start(_), _)))?;
        deferred.remove(at)
    };
    while let Some(start) = DEFERRED.try_with(next).ok().flatten() {
        match start {
            Deferred::Effect(recipient, effect, _turn) if recipient.is_host() => recipient.leave_to_server(effect),
            start => start.carry_out(),
        }
    }
}

impl Deferred {
    pub(crate) fn is_cancellation(&self) -> bool {
        matches!(self, Deferred::Effect(_, Effect::Cancel(_), _))
    }

    pub(crate) fn carry_out(self) {
        match self {
            Deferred::Effect(recipient, effect, _turn) => tell(&*recipient, &effect, None),
            Deferred::Tell(tell) => tell(),
        }
    }
}

fn tell(recipient: &dyn Recipient, effect: &Effect, reports: Option<&Rc<Reports>>) {
    let call = AssertUnwindSafe(|| match effect {
        Effect::Start(batch) => recipient.start(batch, reports),
        Effect::Cancel(refused) => recipient.cancelled(&refused.0, refused.1),
    });
    if catch_unwind(call).is_err() {
        tracing::error!("a host panicked in a call of the scheduler");
    }
}

impl<R> Default for Effects<R> {
    fn default() -> Effects<R> {
        Effects {
            list: VecDeque::new(),
            recipients: Vec::new(),
            spare: Vec::new(),
            reports: Rc::default(),
            freed: 0,
            answered: false,
            time: Time::ZERO,
        }
    }
}

impl<R> Effects<R> {
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Hosts have reported completions inside their calls.
    pub(crate) fn has_reports(&self) -> bool {
        !self.reports.ended.borrow().is_empty()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Adds one for recipient `number`; `recipient` gives it unless whoever carries out is that one itself (`own`). False: there is
    /// no such recipient any more.
    pub(crate) fn push(
        &mut self,
        number: u16,
        own: u16,
        effect: Effect,
        recipient: impl FnOnce() -> Option<R>,
    ) -> bool {
        if number != own && !self.recipients.iter().any(|(known, _)| *known == number) {
            let Some(recipient) = recipient() else { return false };
            self.recipients.push((number, recipient));
        }
        self.list.push_back((number, effect));
        true
    }

    pub(crate) fn first(&self) -> Option<&Effect> {
        self.list.front().map(|(_, effect)| effect)
    }

    /// The first effect, for a thread that knows that all are its own.
    pub(crate) fn pop_own(&mut self) -> Option<Effect> {
        self.list.pop_front().map(|(_, effect)| effect)
    }

    /// A batch to fill.
    pub(crate) fn batch(&mut self) -> Box<Batch> {
        self.spare.pop().unwrap_or_default()
    }

    /// Takes a batch back.
    pub(crate) fn reuse(&mut self, batch: Box<Batch>) {
        if self.spare.len() < SPARE_MAX {
            self.spare.push(batch);
        }
    }
}

impl<R: Recipient> Effects<R> {
    /// Tells the recipients. False: it was left to an outer loop of this thread, with telling `own` that all were told.
    pub(crate) fn carry_out(&mut self, own: &R) -> bool {
        CARRYING.with(|carrying| {
            let depth = carrying.depth.get();
            if depth >= DEPTH_MAX {
                self.defer(own, leave_here);
                return false;
            }
            carrying.depth.set(depth + 1);
            while let Some((number, effect)) = self.list.pop_front() {
                if let Effect::Cancel(_) = effect {
                    // What a host does when told of that may wait for what is told of next: not with this loop.
                    self.list.push_front((number, effect));
                    self.leave(own, None, leave_here);
                    self.carry_out_left(own);
                    break;
                }
                // Within reach of a host that waits in there.
                let exposed = !self.list.is_empty() && self.recipient(number, own).is_host();
                if exposed {
                    std::mem::swap(&mut self.list, &mut self.reports.behind.borrow_mut());
                }
                tell(self.recipient(number, own), &effect, Some(&self.reports));
                if exposed {
                    std::mem::swap(&mut self.list, &mut self.reports.behind.borrow_mut());
                }
                if let Effect::Start(batch) = effect {
                    self.reuse(batch);
                }
            }
            // What goes with the last one to know it may call whom it likes, and is not to wait for this thread.
            self.recipients.clear();
            carrying.depth.set(depth);
            if depth + 1 == DEPTH_MAX {
                self.carry_out_left(own);
            }
            true
        })
    }

    /// Carries out what was left to this thread. Hosts that wait in there find what was reported before in calls of these effects.
    fn carry_out_left(&self, own: &R) {
        let _reporting = self.has_reports().then(|| Reporting::begin(own.engine(), &self.reports));
        carry_out_deferred();
    }

    /// Leaves everything to `to`, with telling `own` that all was carried out.
    pub(crate) fn defer(&mut self, own: &R, to: impl FnMut(Deferred)) {
        self.leave(own, Some(&Carried::tells(own.boxed())), to);
    }

    fn leave(&mut self, own: &R, turn: Option<&Arc<Carried>>, mut to: impl FnMut(Deferred)) {
        while let Some((number, effect)) = self.list.pop_front() {
            to(Deferred::Effect(self.recipient(number, own).boxed(), effect, turn.cloned()));
        }
        self.recipients.clear();
    }

    fn recipient<'a>(&'a self, number: u16, own: &'a R) -> &'a R {
        self.recipients.iter().find(|(known, _)| *known == number).map_or(own, |(_, recipient)| recipient)
    }
}
