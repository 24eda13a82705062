//! What the choice costs and gains where times are noise: another program on the same disks, an adversary, on a simulated clock.

mod random;

use sluice_mpiio::choose::{Chooser, Costs, Ended, Kind};
use sluice_mpiio::flat::Range;
use sluice_mpiio::layout::Layout;
use sluice_mpiio::plan::{Call, Strategy as How};

use random::random;

const KIND: Kind = Kind { write: false, bytes: 20, range: 16 };
/// Of a look, in seconds.
const LOOK: f64 = 1e-4;
/// Of a program.
const CALLS: usize = 2000;

fn call() -> Call {
    let chunk = 65536;
    let of = |rank: i64| (0..4).map(|n| Range { offset: (4 * n + rank) * chunk, len: chunk }).collect::<Vec<_>>();
    let ranges: Vec<Vec<Range>> = (0..4).map(of).collect();
    let views: Vec<&[Range]> = ranges.iter().map(Vec::as_slice).collect();
    Call::new(&Layout::round_robin(chunk, 0, 4).unwrap(), &views, 1 << 20).unwrap()
}

/// Carries out so many calls, of which each takes what `time` says; what they take, and how each was carried out.
fn run(calls: usize, mut time: impl FnMut(usize, How) -> f64) -> (f64, Vec<How>) {
    let call = call();
    let (mut chooser, mut last, mut total) = (Chooser::new(Costs::default(), None), Ended::default(), 0.0);
    let hows = (0..calls).map(|number| {
        if chooser.skips() {
            let seconds = time(number, How::Library);
            last.skipped += seconds;
            total += seconds;
            return How::Library;
        }
        chooser.ended(std::mem::take(&mut last));
        if chooser.wants_costs() {
            chooser.measured(1e-5, 1e-9);
        }
        let how = if chooser.leaves(KIND, call.bytes()) {
            chooser.left(KIND, call.bytes());
            How::Library
        } else {
            chooser.choose(&call, KIND)
        };
        last = Ended { call: time(number, how), look: LOOK, skipped: 0.0 };
        total += last.call + LOOK;
        how
    });
    let hows = hows.collect();
    (total, hows)
}

/// Now and then the disk serves another program first.
#[derive(Clone, Copy)]
struct Noisy {
    usual: f64,
    how_often: f64,
    longer: f64,
}

impl Noisy {
    fn mean(self) -> f64 {
        self.usual + self.how_often * self.longer
    }

    fn draw(self, next: &mut impl FnMut() -> f64) -> f64 {
        let disturbed = if next() < self.how_often { self.longer } else { 0.0 };
        self.usual * (0.9 + 0.2 * next()) + disturbed
    }
}

/// How much longer than by the library alone programs take on average, as a part of that.
fn loss(seeds: u64, library: Noisy, of: impl Fn(How) -> Noisy) -> f64 {
    let all: f64 = (0..seeds)
        .map(|seed| {
            let mut next = random(seed);
            run(CALLS, |_, how| if how == How::Library { library } else { of(how) }.draw(&mut next)).0
        })
        .sum();
    all / (seeds as f64 * CALLS as f64 * library.mean()) - 1.0
}

/// The times of the simulator's demo beside mpi-io-test: a call of the other program costs a slice of 100 ms.
#[test]
fn beside_another_program_most_of_what_the_best_way_gains_is_gained() {
    let noisy = |usual, how_often| Noisy { usual, how_often, longer: 0.1 };
    let (library, agents, early) = (noisy(6e-3, 0.065), noisy(3.7e-3, 0.043), noisy(2.5e-3, 0.022));
    let gained = -loss(100, library, |how| if how == How::Agents { agents } else { early });
    let possible = 1.0 - early.mean() / library.mean();
    assert!(gained > 0.6 * possible, "{gained} of {possible}");
}

/// The same noise on all ways: nobody can tell soon what is a little slower, and it must not cost much.
#[test]
fn what_is_slower_under_noise_costs_little() {
    for (how_often, longer) in [(0.0, 0.0), (0.02, 0.1), (0.06, 0.1), (0.2, 0.03)] {
        for slower in [1.0, 1.1, 1.5, 3.0] {
            let library = Noisy { usual: 2e-2, how_often, longer };
            let lost = loss(100, library, |_| Noisy { usual: slower * library.usual, ..library });
            assert!(lost < 0.015, "{lost}: {slower} times slower, disturbed {how_often} by {longer}");
            let lost = loss(100, library, |_| Noisy { how_often: slower * how_often, ..library });
            assert!(lost < 0.015, "{lost}: disturbed {slower} times {how_often} by {longer}");
        }
    }
}

/// Somebody who knows the rules lets strategies be a little faster for as long as he likes, and then three times slower, again and
/// again. What that costs is what finding out costs, ever more seldom.
#[test]
fn an_adversary_gets_little() {
    let library = 2e-2;
    for good in [0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144] {
        for bad in [1, 2, 3, 5, 8, 13, 1000] {
            let mut used = 0;
            let (took, hows) = run(5 * CALLS, |_, how| {
                if how == How::Library {
                    return library;
                }
                used += 1;
                if (used - 1) % (good + bad) < good { 0.99 * library } else { 3.0 * library }
            });
            let lost = took / (5.0 * CALLS as f64 * library) - 1.0;
            let others = hows.iter().filter(|&&how| how != How::Library).count();
            assert!(lost < 0.02, "{lost} with {others} calls by others: {good} good ones, {bad} bad ones");
        }
    }
}

/// "Wrong twice in a row" leaves the file to the library, each time for twice as many calls: 64, 128, ...
#[test]
fn wrong_twice_in_a_row_is_the_library_s_for_ever_longer() {
    let (_, hows) = run(20_000, |_, how| if how == How::Library { 2e-2 } else { 2.2e-2 });
    let tried: Vec<usize> = (0..hows.len()).filter(|&call| hows[call] != How::Library).collect();
    assert!(tried.len() > 2 && tried.len() < 20, "{tried:?}");
    let gaps: Vec<usize> = tried.windows(2).map(|pair| pair[1] - pair[0]).collect();
    for (number, gap) in gaps[1..].iter().enumerate() {
        assert!(*gap >= 64 << number, "{gaps:?}");
    }
}
