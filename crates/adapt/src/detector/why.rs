//! Verdicts in words.

use super::{Class, Verdict};
use crate::features::Features;

/// Requests that reach over less than this times what they move are together.
const NEAR: f64 = 4.0;

impl Verdict {
    /// What in the features speaks for the pattern, in a line.
    #[must_use]
    pub fn why(&self, features: &Features) -> String {
        let percent = |share: f64| (share * 100.0).round();
        let kib = |bytes: f64| {
            if bytes < 10_240.0 { format!("{:.1} KiB", bytes / 1024.0) } else { format!("{:.0} KiB", bytes / 1024.0) }
        };
        let f = features;
        let spatiality = if self.class.is_strided() {
            let (how, reach) = if f.reach < NEAR { ("stay together", 1) } else { ("are spread out", 0) };
            format!(
                "requests {how}: 16 of them reach over {:.reach$} times what they move, {} % continue one",
                f.reach,
                percent(f.continued)
            )
        } else if f.app_files > 1 && f.reach < NEAR {
            format!(
                "{} files, each from front to back: {} % of the requests continue one",
                f.app_files,
                percent(f.continued)
            )
        } else if f.reach < NEAR {
            format!("one sequential stream: {} % of the requests continue one", percent(f.continued))
        } else {
            format!(
                "{} sequential streams far apart: 16 requests reach over {:.0} times what they move, {} % continue one",
                f.streams,
                f.reach,
                percent(f.continued)
            )
        };
        let size = match self.class {
            Class::ContiguousLarge | Class::StridedLarge => format!(
                "{} % of the requests are whole stripes of {}, {} asked for at once",
                percent(f.whole_stripes),
                kib(f.stripe as f64),
                kib(f.burst_bytes)
            ),
            _ => format!("{} a request on average, below a stripe of {}", kib(f.size_mean), kib(f.stripe as f64)),
        };
        format!("{spatiality}; {size}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_spread_out_does_not_stay_together() {
        let verdict = Verdict { class: Class::StridedSmall, votes: [0.0, 0.0, 1.0, 0.0] };
        let why = |reach| verdict.why(&Features { reach, stripe: 65_536, ..Features::default() });
        assert!(why(2.9).starts_with("requests stay together: 16 of them reach over 2.9 times"), "{}", why(2.9));
        assert!(
            why(1903.9).starts_with("requests are spread out: 16 of them reach over 1904 times"),
            "{}",
            why(1903.9)
        );
    }
}
