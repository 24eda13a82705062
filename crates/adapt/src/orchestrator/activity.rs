//! What programs say that they do, and how far that is believed.
//!
//! A program that announces that it computes needs no slice: nobody has to wait for a window in which it sends nothing. What is seen
//! outweighs what is said: requests that are served after the announcement end it. And what is said is never more than a request
//! would be: who says that it begins I/O is taken to have sent something then.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::verdict::{At, Server};

/// Servers' times are those of messages: they may be off by this part of a window, as clocks may be that plans are followed by.
const OFF: u64 = 8;

/// What the processes of a program at a server have said that they do.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Activity {
    /// Which: the same at all servers.
    pub program: String,
    /// All of them compute; else some do I/O.
    pub computes: bool,
    /// Since the last of them said so, in nanoseconds.
    pub for_ns: u64,
}

#[derive(Clone, Copy, Debug)]
struct Said {
    computes: bool,
    since: u64,
    heard: u64,
}

/// What a program has said, by server.
#[derive(Debug, Default)]
pub(super) struct Activities(BTreeMap<u64, Said>);

impl Activities {
    /// A server reports at a time, which is heard now.
    pub(super) fn hear(&mut self, server: u64, activity: &Activity, at: u64, now: u64) {
        let since = at.saturating_sub(activity.for_ns);
        self.0.insert(server, Said { computes: activity.computes, since, heard: now });
    }

    /// What is not in a server's newest report does not hold any more: its processes there have ended.
    pub(super) fn forget(&mut self, servers: &BTreeMap<u64, Server>) {
        self.0.retain(|server, said| servers.get(server).is_some_and(|known| known.heard == said.heard));
    }

    /// Whether it computes, wherever it has said anything, and none of these servers has served a request of it since.
    pub(super) fn computes(&self, at: &BTreeMap<u64, At>, window_ns: u64) -> bool {
        let Some(since) = self.0.values().map(|said| said.since).max() else { return false };
        let seen = at.values().map(|at| at.seen).max().unwrap_or(0);
        self.0.values().all(|said| said.computes) && seen <= since.saturating_add(window_ns / OFF)
    }

    /// When it said last that it does I/O, if that holds; 0: it does not.
    pub(super) fn began_io(&self) -> u64 {
        self.0.values().filter(|said| !said.computes).map(|said| said.since).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: u64 = 800;

    fn said(computes: bool, for_ns: u64) -> Activity {
        Activity { program: "p".to_owned(), computes, for_ns }
    }

    #[test]
    fn it_computes_if_all_servers_agree_and_nothing_of_it_was_served_since() {
        let mut activities = Activities::default();
        let served = |seen| BTreeMap::from([(1, At { seen, ..At::default() })]);
        assert!(!activities.computes(&served(0), WINDOW), "who says nothing");
        activities.hear(1, &said(true, 300), 1_000, 1_000);
        assert!(activities.computes(&served(700), WINDOW));
        assert!(activities.computes(&served(800), WINDOW), "clocks may be off by so much");
        assert!(!activities.computes(&served(801), WINDOW), "it has sent something since");
        activities.hear(2, &said(false, 50), 1_000, 1_010);
        assert!(!activities.computes(&served(0), WINDOW));
        assert_eq!(activities.began_io(), 950);
        // The second server says nothing of it any more.
        let server = |heard| Server { heard, ..Server::default() };
        activities.forget(&BTreeMap::from([(1, server(1_000)), (2, server(1_500))]));
        assert!(activities.computes(&served(700), WINDOW));
        assert_eq!(activities.began_io(), 0);
        activities.forget(&BTreeMap::new());
        assert!(!activities.computes(&served(0), WINDOW));
    }
}
