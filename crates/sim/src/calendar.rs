//! What happens when: a queue of events in order of time, those of equal time in the order in which they were planned.
//!
//! A heap with four children a node: half as deep as a binary one, and the four keys that are compared share a cache line
//! or two.

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
    /// A planned fault begins (even numbers) or ends (odd ones).
    Fault(u32),
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    at: u64,
    /// Order of planning, to tell equal times apart.
    number: u64,
    event: Event,
}

impl Entry {
    fn before(&self, other: &Entry) -> bool {
        (self.at, self.number) < (other.at, other.number)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Calendar {
    heap: Vec<Entry>,
    planned: u64,
    now: u64,
}

impl Calendar {
    /// The time of the event that was taken last, in nanoseconds.
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// Events planned so far.
    pub(crate) fn planned(&self) -> u64 {
        self.planned
    }

    /// Plans an event; for a time past, it happens next.
    pub(crate) fn plan(&mut self, at: u64, event: Event) {
        let entry = Entry { at: at.max(self.now), number: self.planned, event };
        self.planned += 1;
        let mut hole = self.heap.len();
        self.heap.push(entry);
        while hole > 0 {
            let parent = (hole - 1) / 4;
            if !entry.before(&self.heap[parent]) {
                break;
            }
            self.heap[hole] = self.heap[parent];
            hole = parent;
        }
        self.heap[hole] = entry;
    }

    /// Takes the next event and sets the time to its time.
    pub(crate) fn next(&mut self) -> Option<Event> {
        let first = *self.heap.first()?;
        let last = self.heap.pop()?;
        if !self.heap.is_empty() {
            self.sink(last);
        }
        self.now = first.at;
        Some(first.event)
    }

    /// Puts an entry where the first one was.
    fn sink(&mut self, entry: Entry) {
        let heap = &mut self.heap[..];
        let mut hole = 0;
        loop {
            let from = hole * 4 + 1;
            if from >= heap.len() {
                break;
            }
            let to = (from + 4).min(heap.len());
            let mut least = from;
            for child in from + 1..to {
                if heap[child].before(&heap[least]) {
                    least = child;
                }
            }
            if !heap[least].before(&entry) {
                break;
            }
            heap[hole] = heap[least];
            hole = least;
        }
        heap[hole] = entry;
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
