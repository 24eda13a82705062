//! What happens when: a queue of events in order of time, those of equal time in the order in which they were planned.

/// What happens. The numbers name records of the simulation; see [`crate::simulation`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A process goes on after thinking, computing or a barrier.
    Process(u32),
    /// All of a process's request is answered: the call.
    Done(u32),
    /// The first byte of a request reaches its receiver's link: the job.
    Arrive(u32),
    /// A request has been received and the processor has dealt with it: the job.
    Ready(u32),
    /// An answer reaches the sender's link: the job.
    Answer(u32),
    /// A node's engine wants to be asked again.
    Timer(u32),
    /// A device has served a command.
    Device(u32),
    /// Something was not answered in time: what was sent, and which attempt.
    Retry(u32, u32),
    /// The answer to a batch of an I/O node has been received: the job.
    Received(u32),
    /// The next flow has its turn on a link: twice the machine's number, and one more for the receiving direction.
    Link(u32),
    /// The kernel's scheduler of a server wants to be asked again.
    Kernel(u32),
    /// A server's SSD has served a command: the node, the command's number there.
    Ssd(u32, u32),
    /// A server's tier looks whether something is to be done.
    Tier(u32),
    /// A batch's bytes have been copied from or to the page cache.
    Copied(u32),
    /// A server's page cache looks for old dirty pages.
    Flush(u32),
    /// A window of a node's statistics is over.
    Window(u32),
    /// A planned fault begins (even numbers) or ends (odd ones).
    Fault(u32),
    /// A data server reports to the orchestrator.
    Report(u32),
    /// The orchestrator decides.
    Decide,
    /// A message from or to the orchestrator has come.
    Control(u32),
    /// What a process has read or written for others is done: the work.
    Work(u32),
    /// What a process reads or writes for others begins: the work.
    Begin(u32),
    /// The processes of a collective call have told each other what they had to: the application.
    Collective(u32),
    /// A process has waited for others as long as it may.
    Patience(u32),
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    at: u64,
    event: Event,
}

/// A radix heap (Ahuja et al., Faster algorithms for the shortest path problem, 1990): an event is in the bucket of the
/// highest bit in which its time differs from now. When the events of now are used up, those of the lowest bucket are
/// spread over the buckets below, in the order in which they were planned, which therefore is kept among equal times.
#[derive(Debug)]
pub(crate) struct Calendar {
    buckets: [Vec<Entry>; 64],
    /// One bit for each bucket that is not empty.
    filled: u64,
    /// Events of now; the first `taken` are over.
    current: Vec<Event>,
    taken: usize,
    planned: u64,
    happened: u64,
    now: u64,
}

impl Default for Calendar {
    fn default() -> Calendar {
        Calendar {
            buckets: [const { Vec::new() }; 64],
            filled: 0,
            current: Vec::new(),
            taken: 0,
            planned: 0,
            happened: 0,
            now: 0,
        }
    }
}

impl Calendar {
    /// The time of the event that was taken last, in nanoseconds.
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.filled == 0 && self.taken == self.current.len()
    }

    /// Events planned so far.
    pub(crate) fn planned(&self) -> u64 {
        self.planned
    }

    /// Events that are planned and have not happened.
    pub(crate) fn left(&self) -> u64 {
        self.planned - self.happened
    }

    /// Plans an event; for a time past, it happens after those of now.
    pub(crate) fn plan(&mut self, at: u64, event: Event) {
        self.planned += 1;
        self.put(Entry { at: at.max(self.now), event });
    }

    fn put(&mut self, entry: Entry) {
        let differs = entry.at ^ self.now;
        if differs == 0 {
            self.current.push(entry.event);
            return;
        }
        let bucket = 63 - differs.leading_zeros();
        self.buckets[bucket as usize].push(entry);
        self.filled |= 1 << bucket;
    }

    /// Takes the next event and sets the time to its time.
    pub(crate) fn next(&mut self) -> Option<Event> {
        if self.taken == self.current.len() {
            self.advance()?;
        }
        self.taken += 1;
        self.happened += 1;
        Some(self.current[self.taken - 1])
    }

    /// Makes the earliest time that has events the current one.
    fn advance(&mut self) -> Option<()> {
        if self.filled == 0 {
            return None;
        }
        self.current.clear();
        self.taken = 0;
        let lowest = self.filled.trailing_zeros() as usize;
        self.filled &= !(1 << lowest);
        let mut bucket = std::mem::take(&mut self.buckets[lowest]);
        self.now = bucket.iter().map(|entry| entry.at).min()?;
        bucket.drain(..).for_each(|entry| self.put(entry));
        // Its memory is used again.
        self.buckets[lowest] = bucket;
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn events_come_in_order_of_time_then_of_planning(times in proptest::collection::vec((0u64..20, any::<bool>()), 1..200)) {
            let mut calendar = Calendar::default();
            let mut model: Vec<(u64, u32)> = Vec::new();
            for (number, (ahead, take)) in (0u32..).zip(times) {
                let at = calendar.now() + ahead;
                calendar.plan(at, Event::Timer(number));
                model.push((at, number));
                if take {
                    model.sort_unstable();
                    prop_assert_eq!(calendar.next(), Some(Event::Timer(model[0].1)));
                    prop_assert_eq!(calendar.now(), model.remove(0).0);
                }
            }
            model.sort_unstable();
            for (at, number) in model {
                prop_assert_eq!(calendar.next(), Some(Event::Timer(number)));
                prop_assert_eq!(calendar.now(), at);
            }
            prop_assert_eq!(calendar.next(), None);
        }
    }
}
