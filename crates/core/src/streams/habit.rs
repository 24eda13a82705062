//! How requests follow each other, and whether it pays to wait for the next one.

use super::Anticipation;

/// Weight of the newest observation.
pub(super) const NEW: f32 = 0.25;

/// How long after something requests come, and how many of them in time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Habit {
    /// Requests that came.
    pub(super) followed: u32,
    think_ns: f32,
    /// Mean deviation of the think time.
    deviation_ns: f32,
    /// Share of requests that came before waiting for them had cost more than it saves.
    in_time: f32,
}

impl Habit {
    pub(super) const NEW: Habit = Habit { followed: 0, think_ns: 0.0, deviation_ns: 0.0, in_time: 0.0 };

    /// One came after so long; where it is not known how long it took, as the others.
    pub(super) fn note(&mut self, think_ns: Option<f32>, gain_ns: f32) {
        let think_ns = think_ns.unwrap_or(self.think_ns);
        self.followed = self.followed.saturating_add(1);
        let came = if think_ns <= gain_ns { 1.0 } else { 0.0 };
        if self.followed == 1 {
            (self.think_ns, self.in_time) = (think_ns, came);
            return;
        }
        self.deviation_ns += NEW * ((think_ns - self.think_ns).abs() - self.deviation_ns);
        self.think_ns += NEW * (think_ns - self.think_ns);
        self.in_time += NEW * (came - self.in_time);
    }

    /// What is expected of another one that goes on likewise, as if so many had followed there.
    pub(super) fn expected(self, followed: u32) -> Habit {
        Habit { followed, ..self }
    }

    /// None came.
    pub(super) fn missed(&mut self) {
        self.in_time -= NEW * self.in_time;
    }

    pub(super) fn in_time(&self) -> f32 {
        self.in_time
    }

    /// How long to wait for the next one at most.
    pub(super) fn patience_ns(&self, config: &Anticipation) -> u64 {
        let usual = (self.think_ns + 4.0 * self.deviation_ns) as u64;
        usual.clamp(config.positioning_ns / 8, config.positioning_ns)
    }

    /// Waiting for the next one costs less than it saves, if this share comes in time.
    pub(super) fn is_worth(&self, config: &Anticipation, in_time: f32) -> bool {
        let saved = in_time * config.positioning_ns as f32;
        let patience = self.patience_ns(config) as f32;
        let cost = in_time * self.think_ns.min(patience) + (1.0 - in_time) * patience;
        saved > cost
    }
}
