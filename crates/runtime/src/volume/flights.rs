//! Jobs that end by themselves, found again by a number.

use std::collections::HashMap;

use crate::sync::Mutex;

struct Under<J> {
    jobs: HashMap<u64, J>,
    next: u64,
}

pub(super) struct Flights<J>(Mutex<Under<J>>);

impl<J> Default for Flights<J> {
    fn default() -> Flights<J> {
        Flights(Mutex::new(Under { jobs: HashMap::new(), next: 0 }))
    }
}

impl<J> Flights<J> {
    /// The number of a job that is under way from now on.
    pub(super) fn put(&self, job: J) -> u64 {
        let mut under = self.0.lock();
        let number = under.next;
        under.next += 1;
        under.jobs.insert(number, job);
        number
    }

    /// A job that has ended; `None` if it had before.
    pub(super) fn take(&self, number: u64) -> Option<J> {
        self.0.lock().jobs.remove(&number)
    }
}
