//! Who holds an engine, and who still has something of it to tell.
//!
//! One word: a bit for "held", a bit for "there is work", and a count of threads that carry effects out. Who brings work
//! leaves it in the inbox and *knocks*: the engine is its own if nobody held it, else the holder is told by the bit. The
//! holder cannot let go while that bit is set. So work is never left behind, and nobody waits for a holder.

use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{back_off, sabotaged};

const HELD: u32 = 1;
const WORK: u32 = 2;
/// One thread that carries out effects.
const CARRIER: u32 = 4;

#[derive(Default)]
pub(crate) struct Token(AtomicU32);

impl Token {
    /// Tells of work. True: the caller is the holder now, and is about to look at all work there is.
    pub(crate) fn knock(&self) -> bool {
        let knocked = |word: u32| Some(if word & HELD == 0 { (word | HELD) & !WORK } else { word | WORK });
        self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, knocked).is_ok_and(|word| word & HELD == 0)
    }

    /// Becomes the holder if nobody is. Tells of no work.
    pub(crate) fn try_take(&self) -> bool {
        let free = |word: u32| (word & HELD == 0).then_some((word | HELD) & !WORK);
        self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, free).is_ok()
    }

    /// Of a thread that carried effects out and has more for the engine: is that no longer, and the holder instead. False if
    /// another one is the holder; then it is as before.
    pub(crate) fn resume(&self) -> bool {
        let free = |word: u32| (word & HELD == 0).then_some(((word | HELD) & !WORK).wrapping_sub(CARRIER));
        self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, free).is_ok()
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

    /// The holder lets go, unless work came meanwhile (false: it is the holder still). `carrying`: it has effects to carry
    /// out, and will call [`Token::carried`].
    pub(crate) fn leave(&self, carrying: bool) -> bool {
        let left =
            |word: u32| (word & WORK == 0 || sabotaged!(TokenForgetsWork)).then(|| Token::without(word, carrying));
        self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, left).is_ok()
    }

    /// The holder lets go although there is work, which it or another one takes up later.
    pub(crate) fn interrupt(&self, carrying: bool) {
        let left = |word: u32| Some(Token::without(word | WORK, carrying));
        let _ = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, left);
    }

    fn without(word: u32, carrying: bool) -> u32 {
        (word & !HELD) + if carrying { CARRIER } else { 0 }
    }

    pub(crate) fn carried(&self) {
        self.0.fetch_sub(CARRIER, Ordering::SeqCst);
    }

    /// Nobody holds and nobody carries out effects.
    pub(crate) fn is_quiet(&self) -> bool {
        self.0.load(Ordering::SeqCst) & !WORK == 0
    }
}
