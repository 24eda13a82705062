//! What is predicted for a volume does not depend on where the trace is from: a recording of the same volume, of one that
//! stripes in another way, or a log of what programs asked for.
//!
//! A failure prints its input; `PROPTEST_CASES=5000 cargo test -p sluice-adapt --test splitting` tries harder.

use proptest::prelude::*;
use sluice_adapt::predictor::{Added, Combiner, FileForecast, Predicted, Settings};
use sluice_core::Op;
use sluice_trace::{Entry, Meta, Reader, Split, Writer};

/// When, and what of which file.
type Request = (u64, bool, bool, u64, u32);

/// A trace of requests: split as a volume would, or as programs sent them.
fn trace(requests: &[Request], volume: Option<Split>) -> Vec<u8> {
    let (targets, stripe) = volume.map_or((1, 0), |volume| (volume.targets, volume.stripe));
    let meta = Meta { targets, stripe, pieces: volume.is_some(), ..Meta::default() };
    let mut writer = Writer::new(Vec::new(), &meta).unwrap();
    for path in ["out", "/absolute"] {
        writer.file(path.as_bytes()).unwrap();
    }
    for &(time, absolute, write, offset, len) in requests {
        let op = if write { Op::Write } else { Op::Read };
        let whole = Entry { time, file: absolute.into(), app: 0, target: 0, op, offset, len };
        match volume {
            None => writer.push(whole).unwrap(),
            Some(volume) => volume
                .pieces(offset, len)
                .for_each(|(target, offset, len)| writer.push(Entry { target, offset, len, ..whole }).unwrap()),
        }
    }
    writer.finish(0).unwrap()
}

fn forecast(trace: &[u8], split: Option<Split>) -> (Vec<FileForecast>, Vec<Predicted>, Added) {
    let mut combiner = Combiner::new(Settings::default()).splitting(split);
    let added = combiner.add(&mut Reader::new(trace).unwrap()).unwrap();
    let forecast = combiner.finish();
    (forecast.files().to_vec(), forecast.requests().to_vec(), added)
}

fn volume() -> impl Strategy<Value = Split> {
    let stripe = prop::sample::select(vec![64 << 10, 100_000, 1 << 20]);
    let piece_max = prop::sample::select(vec![64 << 10, 1 << 20]);
    (1..5_u32, stripe, piece_max).prop_map(|(targets, stripe, piece_max)| Split {
        request_max: u32::MAX,
        piece_max,
        targets,
        stripe: if targets > 1 { stripe } else { 0 },
    })
}

fn requests() -> impl Strategy<Value = Vec<Request>> {
    let offset = prop_oneof![(0..40_u64).prop_map(|n| n << 18), 0..10_000_000_u64];
    let len = prop_oneof![Just(4096), Just(1 << 20), Just(4 << 20), 1..3_000_000_u32];
    prop::collection::vec((any::<bool>(), any::<bool>(), offset, len), 1..20).prop_map(|list| {
        // Programs send one at a time.
        (0..).zip(list).map(|(n, (absolute, write, offset, len))| (n * 1000, absolute, write, offset, len)).collect()
    })
}

proptest! {
    #[test]
    fn predictions_are_those_of_a_recording_of_the_volume(requests in requests(), here in volume(), there in volume()) {
        let (files, predicted, added) = forecast(&trace(&requests, Some(here)), None);
        for from in [trace(&requests, None), trace(&requests, Some(there)), trace(&requests, Some(here))] {
            let (other_files, other_predicted, other) = forecast(&from, Some(here));
            prop_assert_eq!(&files, &other_files);
            prop_assert_eq!(&predicted, &other_predicted);
            prop_assert_eq!((other.requests, other.reads, other.absolute), (added.requests, added.reads, added.absolute));
        }
    }
}

#[test]
fn what_became_of_a_trace_is_counted() {
    let requests = [(0, false, true, 0, 4 << 20), (1000, true, false, 0, 1 << 20), (2000, false, false, 5, 10)];
    let plain = Split { request_max: u32::MAX, piece_max: 1 << 20, targets: 1, stripe: 0 };
    let (_, _, added) = forecast(&trace(&requests, None), Some(plain));
    assert_eq!(added, Added { entries: 3, requests: 6, absolute: 1, reads: 2, parts: 0 });
    // The kernel hands on large writes in parts, which are cut where all are.
    let parts = Split { request_max: 1_500_000, ..plain };
    let (_, predicted, added) = forecast(&trace(&requests[..1], None), Some(parts));
    assert_eq!((added.requests, added.parts), (6, 6));
    let pieces: Vec<_> = predicted.iter().map(|piece| (piece.offset, piece.len)).collect();
    let (large, part) = (1 << 20, 1_500_000);
    assert_eq!(
        pieces,
        [
            (0, large),
            (1 << 20, part - large),
            (1_500_000, 2 * large - part),
            (2 << 20, 2 * part - 2 * large),
            (3_000_000, 3 * large - 2 * part),
            (3 << 20, large),
        ]
    );
    // On the same volume a recording stays as it is.
    let striped = Split { targets: 2, stripe: 4 << 20, piece_max: 4 << 20, ..plain };
    let recorded = trace(&requests, Some(striped));
    assert_eq!(forecast(&recorded, Some(striped)).2.requests, 3);
    assert_eq!(forecast(&recorded, Some(Split { piece_max: 1 << 20, ..striped })).2.requests, 6);
}
