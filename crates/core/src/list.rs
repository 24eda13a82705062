//! Doubly linked lists whose links live in an array beside the members: any member leaves in O(1), and nothing is
//! allocated after start.

/// "No member".
pub(crate) const NIL: u32 = u32::MAX;

/// Links of the members `0..capacity`. Several lists may share one `Links`, as long as a member is in at most one.
#[derive(Debug)]
pub(crate) struct Links(Vec<(u32, u32)>);

impl Links {
    pub(crate) fn new(capacity: u32) -> Links {
        Links(vec![(NIL, NIL); capacity as usize])
    }

    /// The member behind `id`, or [`NIL`].
    pub(crate) fn next(&self, id: u32) -> u32 {
        self.0[id as usize].1
    }

    /// The member before `id`, or [`NIL`].
    pub(crate) fn prev(&self, id: u32) -> u32 {
        self.0[id as usize].0
    }
}

/// The two ends of a list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    head: u32,
    tail: u32,
}

impl List {
    pub(crate) const fn new() -> List {
        List { head: NIL, tail: NIL }
    }

    pub(crate) fn front(&self) -> Option<u32> {
        (self.head != NIL).then_some(self.head)
    }

    pub(crate) fn back(&self) -> Option<u32> {
        (self.tail != NIL).then_some(self.tail)
    }

    pub(crate) fn push_back(&mut self, links: &mut Links, id: u32) {
        links.0[id as usize] = (self.tail, NIL);
        match self.tail {
            NIL => self.head = id,
            tail => links.0[tail as usize].1 = id,
        }
        self.tail = id;
    }

    pub(crate) fn push_front(&mut self, links: &mut Links, id: u32) {
        links.0[id as usize] = (NIL, self.head);
        match self.head {
            NIL => self.tail = id,
            head => links.0[head as usize].0 = id,
        }
        self.head = id;
    }

    /// Inserts `id` behind the last member that `is_before` it, looking from the back.
    pub(crate) fn insert_from_back(&mut self, links: &mut Links, id: u32, is_before: impl Fn(u32) -> bool) {
        let mut prev = self.tail;
        while prev != NIL && !is_before(prev) {
            prev = links.prev(prev);
        }
        let next = if prev == NIL { self.head } else { links.next(prev) };
        links.0[id as usize] = (prev, next);
        match prev {
            NIL => self.head = id,
            prev => links.0[prev as usize].1 = id,
        }
        match next {
            NIL => self.tail = id,
            next => links.0[next as usize].0 = id,
        }
    }

    /// Removes `id`, which must be in this list.
    pub(crate) fn remove(&mut self, links: &mut Links, id: u32) {
        let (prev, next) = links.0[id as usize];
        match prev {
            NIL => self.head = next,
            prev => links.0[prev as usize].1 = next,
        }
        match next {
            NIL => self.tail = prev,
            next => links.0[next as usize].0 = prev,
        }
    }

    pub(crate) fn pop_front(&mut self, links: &mut Links) -> Option<u32> {
        let id = self.front()?;
        self.remove(links, id);
        Some(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        #[test]
        fn behaves_like_a_deque(ops in prop::collection::vec((0u32..16, 0u8..5), 0..200)) {
            let (mut links, mut list, mut model) = (Links::new(16), List::new(), VecDeque::new());
            for (id, what) in ops {
                let there = model.iter().position(|&m| m == id);
                match (what, there) {
                    (0, None) => { list.push_back(&mut links, id); model.push_back(id); }
                    (1, None) => { list.push_front(&mut links, id); model.push_front(id); }
                    (2, Some(at)) => { list.remove(&mut links, id); model.remove(at); }
                    (4, None) => {
                        list.insert_from_back(&mut links, id, |other| other < id);
                        let at = model.iter().rposition(|&other| other < id).map_or(0, |at| at + 1);
                        model.insert(at, id);
                    }
                    (3, _) => prop_assert_eq!(list.pop_front(&mut links), model.pop_front()),
                    _ => {}
                }
                let forwards = std::iter::successors(list.front(), |&id| Some(links.next(id)).filter(|&id| id != NIL));
                prop_assert_eq!(forwards.collect::<Vec<_>>(), model.iter().copied().collect::<Vec<_>>());
                let backwards = std::iter::successors(list.back(), |&id| Some(links.prev(id)).filter(|&id| id != NIL));
                prop_assert_eq!(backwards.collect::<Vec<_>>(), model.iter().rev().copied().collect::<Vec<_>>());
            }
        }
    }
}
