//! Links and processors: resources that serve one after the other.

/// One direction of a node's connection to the network. A message occupies it for its length at the link's rate.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    free_at: u64,
    picoseconds_per_byte: u64,
    message_ns: u64,
}

impl Link {
    /// `bytes_per_s` 0: no limit. Each message costs `message_ns` beside its bytes.
    pub(crate) fn new(bytes_per_s: u64, message_ns: u64) -> Link {
        let picoseconds_per_byte = 1_000_000_000_000_u64.checked_div(bytes_per_s).unwrap_or(0);
        Link { free_at: 0, picoseconds_per_byte, message_ns }
    }

    fn takes_ns(&self, bytes: u64) -> u64 {
        bytes * self.picoseconds_per_byte / 1000 + self.message_ns
    }

    /// Sends a message as soon as the link is free; returns when its end is on the wire.
    pub(crate) fn send(&mut self, now: u64, bytes: u64) -> u64 {
        self.free_at = self.free_at.max(now) + self.takes_ns(bytes);
        self.free_at
    }

    /// Receives a message whose end is here now. It has flowed in while it was sent, unless others were flowing in.
    pub(crate) fn receive(&mut self, now: u64, bytes: u64) -> u64 {
        self.free_at = (self.free_at + self.takes_ns(bytes)).max(now);
        self.free_at
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

    #[test]
    fn messages_share_a_link_and_flow_through() {
        let mut sender = Link::new(1_000_000_000, 0);
        assert_eq!((sender.send(0, 1000), sender.send(0, 1000), sender.send(5000, 1000)), (1000, 2000, 6000));
        let mut receiver = Link::new(1_000_000_000, 0);
        assert_eq!(receiver.receive(1000, 1000), 1000, "it has flowed in while it was sent");
        assert_eq!(receiver.receive(1000, 1000), 2000, "two at once share the link");
        assert_eq!(Link::new(0, 3).send(7, 1 << 40), 10, "no limit but the cost of a message");
    }

    #[test]
    fn cores_work_at_the_same_time() {
        let mut processor = Processor::new(2);
        let done = [100, 100, 100].map(|ns| processor.work(0, ns));
        assert_eq!(done, [100, 100, 200]);
    }
}
