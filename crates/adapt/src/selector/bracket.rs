//! What trials have shown, once the arm that is in use is back.
//!
//! A device that serves others, too, or processors that have less time, are slower for some seconds, whatever arm is in force. An arm
//! that was tried then has lost against what came before, and one that was tried right after has won. So the first observation on the way back
//! says by how much everything has changed meanwhile, and what was seen of the arms in between is moved by its share of that.

use super::Known;

/// The arms that were tried since the one in use was judged last, with how many observations.
#[derive(Clone, Debug, Default)]
pub(super) struct Bracket {
    tried: Vec<(usize, f64)>,
}

impl Bracket {
    /// An arm was tried.
    pub(super) fn note(&mut self, arm: usize, observations: u32) {
        if observations > 0 {
            self.tried.push((arm, f64::from(observations)));
        }
    }

    /// What comes is not to be compared with what was.
    pub(super) fn clear(&mut self) {
        self.tried.clear();
    }

    /// The arm in use gives `off` more than before the trials, as a logarithm.
    pub(super) fn close(&mut self, known: &mut Known, names: &[String], off: f64) {
        let noise = known.noise();
        // As much as is not likely to be noise (Wiener's filter).
        let off = off * off * off / (off * off + 2.0 * noise * noise);
        let arms = self.tried.len() as f64;
        for (at, (arm, observations)) in self.tried.drain(..).enumerate() {
            let then = off * (at as f64 + 0.5) / arms;
            if let Some(value) = known.arms.get_mut(&names[arm]) {
                value.gain -= then * (observations / value.weight.max(1.0)).min(1.0);
            }
        }
    }
}
