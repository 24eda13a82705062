//! What programs say that they do, as a host has heard it ([`crate::sluice_activity()`]), for a coordinator.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use sluice_control::{Announced, Doing};
use sluice_core::AppId;

/// Programs remembered, one for each machine that speaks for it.
const MOST: usize = 4096;
/// For so long what was said is passed on: whoever spoke may have gone without a word.
const HOLDS: Duration = Duration::from_secs(600);

#[derive(Clone, Copy, Debug)]
struct Said {
    number: u64,
    computes: bool,
    /// Of the newest word, and of the first that said the same.
    heard: Instant,
    since: Instant,
}

/// What was said, by application and by who speaks for some of its processes.
#[derive(Debug, Default)]
pub(crate) struct Announcements(Mutex<HashMap<(AppId, u64), Said>>);

impl Announcements {
    /// A speaker's word of some number; older ones that come late say nothing.
    pub(crate) fn hear(&self, app: AppId, speaker: u64, number: u64, computes: bool) {
        self.hear_at(Instant::now(), app, speaker, number, computes);
    }

    fn hear_at(&self, now: Instant, app: AppId, speaker: u64, number: u64, computes: bool) {
        let mut all = self.0.lock();
        let known = all.get(&(app, speaker)).copied();
        if known.is_some_and(|known| known.number >= number) {
            return;
        }
        if known.is_none() && all.len() >= MOST {
            all.retain(|_, said| now - said.heard < HOLDS);
            if all.len() >= MOST
                && let Some(oldest) = all.iter().min_by_key(|(_, said)| said.heard).map(|(&key, _)| key)
            {
                all.remove(&oldest);
            }
        }
        let since = known.filter(|known| known.computes == computes).map_or(now, |known| known.since);
        all.insert((app, speaker), Said { number, computes, heard: now, since });
    }

    fn doing_at(&self, now: Instant) -> Vec<Doing> {
        let mut all = self.0.lock();
        all.retain(|_, said| now - said.heard < HOLDS);
        // Of each application whether it computes everywhere, and who said so last: those count that do what it does.
        let mut apps: BTreeMap<AppId, (bool, Instant)> = BTreeMap::new();
        for (&(app, _), said) in all.iter() {
            let known = apps.entry(app).or_insert((said.computes, said.since));
            match (known.0, said.computes) {
                (true, false) => *known = (false, said.since),
                (false, true) => {}
                _ => known.1 = known.1.max(said.since),
            }
        }
        let ns = |since| u64::try_from(now.saturating_duration_since(since).as_nanos()).unwrap_or(u64::MAX);
        apps.into_iter().map(|(app, (computes, since))| Doing { app, computes, for_ns: ns(since) }).collect()
    }
}

impl Announced for Announcements {
    fn doing(&self) -> Vec<Doing> {
        self.doing_at(Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const APP: AppId = AppId(7);

    #[test]
    fn an_application_computes_if_it_does_wherever_it_runs() {
        let (all, start) = (Announcements::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(all.doing_at(start), []);
        let doing = |ms| {
            let [doing] = all.doing_at(at(ms))[..] else { panic!("one application") };
            assert_eq!(doing.app, APP);
            (doing.computes, doing.for_ns / 1_000_000)
        };
        all.hear_at(at(10), APP, 1, 1, true);
        assert_eq!(doing(15), (true, 5));
        all.hear_at(at(20), APP, 2, 1, false);
        assert_eq!(doing(30), (false, 10));
        all.hear_at(at(40), APP, 2, 5, true);
        // It has done so since, however often it says so; and what comes late is over.
        all.hear_at(at(50), APP, 1, 2, true);
        all.hear_at(at(60), APP, 2, 4, false);
        assert_eq!(doing(60), (true, 20));
        all.hear_at(at(70), AppId(8), 2, 1, false);
        assert_eq!(all.doing_at(at(70)).len(), 2);
    }

    #[test]
    fn who_is_silent_for_long_is_forgotten_and_so_are_the_oldest_of_too_many() {
        let (all, start) = (Announcements::default(), Instant::now());
        all.hear_at(start, APP, 1, 1, true);
        all.hear_at(start + HOLDS / 2, AppId(8), 1, 1, true);
        let doing = all.doing_at(start + HOLDS);
        assert!(matches!(doing[..], [Doing { app: AppId(8), .. }]), "{doing:?}");
        for speaker in 0..MOST as u64 {
            all.hear_at(start + HOLDS, AppId(9), speaker, 1, true);
        }
        assert!(all.doing_at(start + HOLDS).iter().all(|doing| doing.app == AppId(9)));
        assert_eq!(all.0.lock().len(), MOST);
    }
}
