//! Who holds an engine, who still has something of it to tell, and how many places are taken.
//!
//! One word: a bit for "held", a bit for "there is work", a count of threads that carry effects out, and a count of requests
//! accepted and not yet ended. Who brings work leaves it in the inbox and *knocks*: the engine is its own if nobody held it,
//! else the holder is told by the bit. The holder cannot let go while that bit is set. So work is never left behind, and
//! nobody waits for a holder. Places are in the same word because a request takes one just before its thread wants to hold,
//! and gives it back where that thread lets go: one change of one cache line for both.

use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{back_off, sabotaged};

const HELD: u64 = 1;
const WORK: u64 = 2;
/// One thread that carries out effects.
const CARRIER: u64 = 4;
/// One place that is taken.
const PLACE: u64 = 1 << 32;
const FLAGS: u64 = PLACE - 1;

#[derive(Default)]
pub(crate) struct Token(AtomicU64);

impl Token {
    fn change(&self, next: impl FnMut(u64) -> Option<u64>) -> Result<u64, u64> {
        self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next)
    }

    /// Tells of work. True: the caller is the holder now, and is about to look at all work there is.
    pub(crate) fn knock(&self) -> bool {
        self.change(|word| Some(Token::taken(word).unwrap_or(word | WORK))).is_ok_and(|word| word & HELD == 0)
    }

    /// Becomes the holder if nobody is. Tells of no work.
    pub(crate) fn try_take(&self) -> bool {
        self.change(Token::taken).is_ok()
    }

    fn taken(word: u64) -> Option<u64> {
        (word & HELD == 0).then_some((word | HELD) & !WORK)
    }

    /// Takes a place, if fewer than `capacity` are taken, and with `hold` the engine too, if nobody holds it. `Some(true)`: both.
    pub(crate) fn enter(&self, capacity: u32, hold: bool) -> Option<bool> {
        let entered = |word: u64| {
            let word = (Token::places_in(word) < capacity).then_some(word + PLACE)?;
            Some(if hold { Token::taken(word).unwrap_or(word) } else { word })
        };
        self.change(entered).ok().map(|word| hold && word & HELD == 0)
    }

    /// Gives places back.
    pub(crate) fn give_back(&self, places: u32) {
        self.0.fetch_sub(u64::from(places) * PLACE, Ordering::SeqCst);
    }

    /// Places that are taken.
    pub(crate) fn places(&self) -> u32 {
        Token::places_in(self.0.load(Ordering::SeqCst))
    }

    fn places_in(word: u64) -> u32 {
        (word / PLACE) as u32
    }

    /// Of a thread that carried effects out and has more for the engine: is that no longer, and the holder instead. False if
    /// another one is the holder; then it is as before.
    pub(crate) fn resume(&self) -> bool {
        self.change(|word| Token::taken(word).map(|word| word - CARRIER)).is_ok()
    }

    /// Tells of work, for a thread that does not want to hold.
    pub(crate) fn announce(&self) {
        self.0.fetch_or(WORK, Ordering::SeqCst);
    }

    /// Becomes the holder, once nobody else is. It does not tell of work before: the holder would never be done.
    pub(crate) fn take(&self) {
        let mut turn = 0;
        while !self.try_take() {
            back_off(turn);
            turn += 1;
        }
    }

    /// Becomes the holder if there is work that nobody holds.
    pub(crate) fn take_work(&self) -> bool {
        self.has_work() && self.knock()
    }

    pub(crate) fn has_work(&self) -> bool {
        self.0.load(Ordering::SeqCst) & (WORK | HELD) == WORK
    }

    /// The holder is about to look at all work there is, again.
    pub(crate) fn accept(&self) {
        self.0.fetch_and(!WORK, Ordering::SeqCst);
    }

    /// The holder lets go and gives back the places of what has ended, unless work came meanwhile (false: it is the holder
    /// still, with all places). `carrying`: it has effects to carry out, and will call [`Token::carried`].
    pub(crate) fn leave(&self, carrying: bool, ended: u32) -> bool {
        let left = |word: u64| {
            let word = if sabotaged!(TokenForgetsWork) { word & !WORK } else { word };
            (word & WORK == 0).then(|| Token::without(word, carrying, ended))
        };
        self.change(left).is_ok()
    }

    /// The holder lets go although there is work, which it or another one takes up later. Else as [`Token::leave`].
    pub(crate) fn interrupt(&self, carrying: bool, ended: u32) {
        let _ = self.change(|word| Some(Token::without(word | WORK, carrying, ended)));
    }

    fn without(word: u64, carrying: bool, ended: u32) -> u64 {
        (word & !HELD) + if carrying { CARRIER } else { 0 } - u64::from(ended) * PLACE
    }

    /// One more thread has effects to carry out, and will call [`Token::carried`].
    pub(crate) fn carry(&self) {
        self.0.fetch_add(CARRIER, Ordering::SeqCst);
    }

    pub(crate) fn carried(&self) {
        self.0.fetch_sub(CARRIER, Ordering::SeqCst);
    }

    /// No place is taken, and nobody carries out effects: of requests that had places all is over, calls of hosts included.
    pub(crate) fn is_idle(&self) -> bool {
        self.0.load(Ordering::SeqCst) & !(HELD | WORK) == 0
    }

    /// Nobody holds and nobody carries out effects.
    pub(crate) fn is_quiet(&self) -> bool {
        self.0.load(Ordering::SeqCst) & FLAGS & !WORK == 0
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;

    #[test]
    fn places_and_the_engine_are_taken_and_given_back_together() {
        let token = Token::default();
        assert_eq!(token.enter(2, true), Some(true));
        assert_eq!(token.enter(2, true), Some(false), "held: only a place");
        assert_eq!(token.enter(2, true), None, "full");
        assert!(token.leave(true, 1) && !token.is_quiet() && !token.is_idle(), "one carries out effects");
        assert_eq!(token.places(), 1);
        assert_eq!(token.enter(2, false), Some(false), "it did not want to hold");
        assert!(token.resume());
        token.announce();
        assert!(!token.leave(false, 2), "work came");
        assert_eq!(token.places(), 2, "so nothing was given back");
        token.interrupt(false, 1);
        assert!(token.has_work() && token.is_quiet());
        token.give_back(1);
        assert_eq!(token.places(), 0);
        assert!(token.take_work() && token.is_idle() && token.leave(true, 0));
        assert!(!token.is_idle(), "nothing has a place, but somebody may be called");
        token.carried();
        assert!(token.is_idle());
    }
}
