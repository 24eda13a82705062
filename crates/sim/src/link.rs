//! What machines share: links, and the cores of a processor.
//!
//! A link serves *flows* (a pair of machines and an application: a connection) in turn, a quantum of bytes each, as switches
//! and transport protocols divide a link (deficit round robin: M. Shreedhar and G. Varghese, *Efficient fair queuing using
//! deficit round robin*, SIGCOMM 1995). What a link can send within a quantum's time is committed at once, in order of
//! arrival, as to a network card; so a message waits for at most two quanta of its own flow's competitors each.
//!
//! A link may be a fast one that is *shaped* by a token bucket (`tc-tbf(8)`): as many bytes as the bucket holds pass at once
//! after a pause, and only what is sent over a longer time keeps to the rate.

use std::collections::{HashMap, VecDeque};

/// Bytes of a flow's turn.
const QUANTUM: u64 = 64 << 10;

/// One direction of a machine's link.
#[derive(Debug)]
pub(crate) struct Link {
    /// When what is committed would be through without a bucket. Up to `burst_ns` ahead of when it is.
    free_at: u64,
    /// What the bucket holds, as time at the link's rate.
    burst_ns: u64,
    picoseconds_per_byte: u64,
    message_ns: u64,
    /// There once messages had to wait. Most links of a large simulation never have one.
    waiting: Option<Box<Waiting>>,
    /// First come, first served: all is committed at once.
    by_arrival: bool,
}

/// A message that waits for its flow's turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    /// The job that it carries; [`NONE`](crate::slab::NONE) if it will be lost.
    pub(crate) job: u32,
    /// It is the answer.
    pub(crate) is_answer: bool,
    /// Arrives so much later.
    pub(crate) late_ns: u64,
}

#[derive(Debug, Default)]
struct Waiting {
    /// Messages of each flow with the time that they still take.
    flows: Vec<VecDeque<(Message, u64)>>,
    free: Vec<u32>,
    /// Places in `flows` of those that wait.
    places: HashMap<u64, u32>,
    /// Flows in order of their turns.
    ring: VecDeque<(u64, u32)>,
    /// Sum of all times.
    all_ns: u64,
    /// A turn is planned.
    planned: bool,
}

/// What a link does with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passage {
    /// It is through at that time.
    Through(u64),
    /// It waits; a turn is to be planned at that time, if any.
    Waits(Option<u64>),
}

impl Link {
    /// `bytes_per_s` 0: no limit. Each message costs `message_ns` beside its bytes. `burst` bytes may pass at once.
    pub(crate) fn new(bytes_per_s: u64, message_ns: u64, by_arrival: bool, burst: u64) -> Link {
        let picoseconds_per_byte = 1_000_000_000_000_u64.checked_div(bytes_per_s).unwrap_or(0);
        let burst_ns = (u128::from(burst) * u128::from(picoseconds_per_byte) / 1000) as u64;
        Link { free_at: 0, burst_ns, picoseconds_per_byte, message_ns, waiting: None, by_arrival }
    }

    /// When what would be through at `end` without a bucket is through.
    fn out_at(&self, now: u64, end: u64) -> u64 {
        end.saturating_sub(self.burst_ns).max(now)
    }

    fn takes_ns(&self, bytes: u64) -> u64 {
        (u128::from(bytes) * u128::from(self.picoseconds_per_byte) / 1000) as u64 + self.message_ns
    }

    fn quantum_ns(&self) -> u64 {
        (QUANTUM * self.picoseconds_per_byte / 1000 + self.message_ns).max(1)
    }

    /// Bytes that are on their way through, at most.
    pub(crate) fn backlog(&self, now: u64) -> u64 {
        let ns = self.out_at(now, self.free_at) - now + self.waiting.as_ref().map_or(0, |waiting| waiting.all_ns);
        u128::from(ns).saturating_mul(1000).checked_div(self.picoseconds_per_byte.into()).unwrap_or(0) as u64
    }

    /// Sends a message of a flow.
    pub(crate) fn send(&mut self, now: u64, bytes: u64, flow: u64, message: Message) -> Passage {
        let takes = self.takes_ns(bytes);
        self.pass(now, self.free_at.max(now) + takes, takes, flow, message)
    }

    /// Receives a message whose end is here now. It has flowed in while it was sent, unless others were flowing in.
    pub(crate) fn receive(&mut self, now: u64, bytes: u64, flow: u64, message: Message) -> Passage {
        let takes = self.takes_ns(bytes);
        let end = (self.free_at + takes).max(now);
        self.pass(now, end, takes.min(end - now), flow, message)
    }

    /// A message that would be through at `end` if nothing else waited, and occupies the link for `takes` from now on.
    fn pass(&mut self, now: u64, end: u64, takes: u64, flow: u64, message: Message) -> Passage {
        let horizon = now + 2 * self.quantum_ns() + self.burst_ns;
        let alone = self.waiting.as_ref().is_none_or(|waiting| waiting.ring.is_empty());
        if self.by_arrival || alone && end <= horizon {
            self.free_at = end;
            return Passage::Through(self.out_at(now, end));
        }
        let waiting = self.waiting.get_or_insert_default();
        let place = match waiting.places.get(&flow) {
            Some(place) => *place,
            None => {
                let place = waiting.free.pop().unwrap_or_else(|| {
                    waiting.flows.push(VecDeque::new());
                    waiting.flows.len() as u32 - 1
                });
                waiting.places.insert(flow, place);
                waiting.ring.push_back((flow, place));
                place
            }
        };
        waiting.flows[place as usize].push_back((message, takes));
        waiting.all_ns += takes;
        let plan = !waiting.planned;
        waiting.planned = true;
        Passage::Waits(plan.then_some(self.free_at.saturating_sub(self.burst_ns).max(now)))
    }

    /// A flow's turn; messages that are through then are put into `through` with their times. Returns when the next turn is.
    pub(crate) fn turn(&mut self, now: u64, through: &mut Vec<(Message, u64)>) -> Option<u64> {
        let (mut left, burst_ns) = (self.quantum_ns(), self.burst_ns);
        let out_at = |end: u64| end.saturating_sub(burst_ns).max(now);
        let waiting = self.waiting.as_mut()?;
        waiting.planned = false;
        self.free_at = self.free_at.max(now);
        let (flow, place) = waiting.ring.pop_front()?;
        let messages = &mut waiting.flows[place as usize];
        while let Some((message, takes)) = messages.front_mut() {
            let now_sent = left.min(*takes);
            (*takes, left) = (*takes - now_sent, left - now_sent);
            self.free_at += now_sent;
            waiting.all_ns -= now_sent;
            if *takes > 0 {
                break;
            }
            through.push((*message, out_at(self.free_at)));
            messages.pop_front();
            if left == 0 {
                break;
            }
        }
        if messages.is_empty() {
            waiting.places.remove(&flow);
            waiting.free.push(place);
        } else {
            waiting.ring.push_back((flow, place));
        }
        waiting.planned = !waiting.ring.is_empty();
        waiting.planned.then_some(out_at(self.free_at))
    }
}

/// The cores of a node.
#[derive(Clone, Debug)]
pub(crate) struct Processor {
    free_at: Vec<u64>,
}

impl Processor {
    pub(crate) fn new(cores: u32) -> Processor {
        Processor { free_at: vec![0; cores as usize] }
    }

    /// Works for that long on the core that is free first; returns when it is done.
    pub(crate) fn work(&mut self, now: u64, ns: u64) -> u64 {
        if ns == 0 {
            return now;
        }
        let mut core = 0;
        for other in 1..self.free_at.len() {
            if self.free_at[other] < self.free_at[core] {
                core = other;
            }
        }
        self.free_at[core] = self.free_at[core].max(now) + ns;
        self.free_at[core]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NANOSECOND_PER_BYTE: u64 = 1_000_000_000;

    fn message(job: u32) -> Message {
        Message { job, is_answer: false, late_ns: 0 }
    }

    #[test]
    fn messages_share_a_link_and_flow_through() {
        let link = |message_ns| Link::new(NANOSECOND_PER_BYTE, message_ns, false, 0);
        let mut sender = link(0);
        let sent = [0, 0, 5000].map(|at| sender.send(at, 1000, 1, message(0)));
        assert_eq!(sent, [1000, 2000, 6000].map(Passage::Through));
        let mut receiver = link(0);
        assert_eq!(receiver.receive(1000, 1000, 1, message(0)), Passage::Through(1000), "in while it was sent");
        assert_eq!(receiver.receive(1000, 1000, 2, message(0)), Passage::Through(2000), "two at once share the link");
        assert_eq!(Link::new(0, 3, false, 0).send(7, 1 << 40, 1, message(0)), Passage::Through(10), "no limit");
    }

    /// All messages that wait, with the times when they are through.
    fn drain(link: &mut Link, mut turn: Option<u64>) -> Vec<(u32, u64)> {
        let mut through = Vec::new();
        while let Some(at) = turn {
            turn = link.turn(at, &mut through);
        }
        through.into_iter().map(|(message, at)| (message.job, at)).collect()
    }

    #[test]
    fn a_small_message_does_not_wait_for_anothers_large_one() {
        let small_is_through = |by_arrival| {
            let mut link = Link::new(NANOSECOND_PER_BYTE, 0, by_arrival, 0);
            let turn = match link.send(0, 64 << 20, 1, message(1)) {
                Passage::Waits(turn) => turn,
                Passage::Through(_) => None,
            };
            match link.send(10, 4096, 2, message(2)) {
                Passage::Through(at) => at,
                Passage::Waits(more) => drain(&mut link, turn.or(more)).iter().find(|(job, _)| *job == 2).unwrap().1,
            }
        };
        let (fair, by_arrival) = (small_is_through(false), small_is_through(true));
        assert_eq!(by_arrival, (64 << 20) + 4096);
        assert!(fair <= QUANTUM + 4096, "{fair}");
    }

    proptest! {
        /// Whatever the order, the link is busy without gaps for as long as the bytes take, and a flow's messages keep theirs.
        #[test]
        fn nothing_is_lost_and_the_link_is_never_idle(sizes in proptest::collection::vec((1u64..400_000, 0u64..4), 1..40)) {
            let mut link = Link::new(NANOSECOND_PER_BYTE, 0, false, 0);
            let (mut through, mut turn) = (Vec::new(), None);
            for (job, (bytes, flow)) in (0..).zip(&sizes) {
                match link.send(0, *bytes, *flow, message(job)) {
                    Passage::Through(at) => through.push((job, at)),
                    Passage::Waits(at) => turn = turn.or(at),
                }
            }
            let all: u64 = sizes.iter().map(|(bytes, _)| bytes).sum();
            prop_assert_eq!(link.backlog(0), all);
            through.extend(drain(&mut link, turn));
            prop_assert_eq!(through.len(), sizes.len());
            prop_assert_eq!(through.iter().map(|(_, at)| *at).max().unwrap(), all);
            for flow in 0..4 {
                let of_flow: Vec<u32> =
                    through.iter().map(|(job, _)| *job).filter(|job| sizes[*job as usize].1 == flow).collect();
                prop_assert!(of_flow.is_sorted(), "{:?}", of_flow);
            }
        }
    }

    #[test]
    fn cores_work_at_the_same_time() {
        let mut processor = Processor::new(2);
        let done = [100, 100, 100].map(|ns| processor.work(0, ns));
        assert_eq!(done, [100, 100, 200]);
    }

    /// After a pause the bucket is full; over a longer time its rate is kept, with or without others that wait.
    #[test]
    fn a_bucket_lets_a_burst_pass_and_keeps_the_rate() {
        let mut link = Link::new(NANOSECOND_PER_BYTE, 0, false, 1000);
        let sent = [0, 0, 0, 5000].map(|at| link.send(at, 800, 1, message(0)));
        assert_eq!(sent, [0, 600, 1400, 5000].map(Passage::Through));
        let mut link = Link::new(NANOSECOND_PER_BYTE, 0, false, 100_000);
        let (mut through, mut turn) = (Vec::new(), None);
        for number in 0..40 {
            match link.send(0, 50_000, u64::from(number % 4), message(number)) {
                Passage::Through(at) => through.push((message(number), at)),
                Passage::Waits(at) => turn = turn.or(at),
            }
        }
        while let Some(at) = turn {
            turn = link.turn(at, &mut through);
        }
        assert_eq!(through.len(), 40);
        let last = through.iter().map(|(_, at)| *at).max().unwrap();
        assert_eq!(last, 40 * 50_000 - 100_000);
    }
}
