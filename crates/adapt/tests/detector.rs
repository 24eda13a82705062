//! Models: what they say, and what is refused.

use sluice_adapt::detector::{Class, Detector, INPUTS, PURPOSE, SHIPPED, THESIS, THESIS_PURPOSE};
use sluice_adapt::features::{Answers, Settings, Watcher};
use sluice_adapt::forest::{Forest, ForestError, winner};
use sluice_core::{AppId, FileId, Op, Request, TargetId, Time};

/// As `forest.py` writes them.
fn model(rest: &str) -> String {
    let head = "{\n\"format\": \"sluice-forest 1\",\n";
    let sum = sluice_trace::checksum(format!("{head}{rest}").as_bytes());
    format!("{head}\"crc32\": \"{sum:08x}\",\n{rest}")
}

fn with(trees: &str) -> String {
    let (inputs, classes) = (serde_json::to_string(&INPUTS).unwrap(), serde_json::to_string(&Class::NAMES).unwrap());
    model(&format!(
        "\"kind\": \"detector\",\n\"features\": 1,\n\"inputs\": {inputs},\n\"classes\": {classes},\n\"trees\": [{trees}]\n}}\n"
    ))
}

#[test]
fn the_shipped_models_are_whole() {
    let (trees, nodes) = Detector::shipped().unwrap().forest().size();
    assert!(trees >= 1 && nodes > 10, "{trees} trees of {nodes} nodes");
    assert!(Forest::parse(THESIS, &THESIS_PURPOSE).unwrap().size().1 > 10);
    assert!(SHIPPED.len() < 1 << 20, "{} bytes are not small", SHIPPED.len());
}

#[test]
fn a_tree_goes_left_up_to_its_threshold() {
    let tree = "{\"input\": [2, -1, -1], \"threshold\": [0.5, 0, 0], \"left\": [1, 0, 0], \"right\": [2, 0, 0], \
                \"votes\": [[], [1, 0, 0, 0], [0, 0.25, 0, 0.75]]}";
    let forest = Forest::parse(&with(tree), &PURPOSE).unwrap();
    let mut votes = [0.0; 4];
    let mut inputs = [0.0; INPUTS.len()];
    inputs[2] = 0.5;
    forest.votes(&inputs, &mut votes);
    assert_eq!((votes, winner(&votes)), ([1.0, 0.0, 0.0, 0.0], 0));
    inputs[2] = 0.500_001;
    forest.votes(&inputs, &mut votes);
    assert_eq!((votes, winner(&votes)), ([0.0, 0.25, 0.0, 0.75], 3));
    inputs[2] = f32::NAN;
    forest.votes(&inputs, &mut votes);
    let both = Forest::parse(&with(&format!("{tree},{tree}")), &PURPOSE).unwrap();
    inputs[2] = 1.0;
    both.votes(&inputs, &mut votes);
    assert_eq!(votes, [0.0, 0.25, 0.0, 0.75]);
}

/// Every change of a byte is an error, and every end before the end.
#[test]
fn damaged_models_are_refused() {
    let mut state = 1u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for text in [SHIPPED, THESIS] {
        let purpose = if text == SHIPPED { PURPOSE } else { THESIS_PURPOSE };
        for case in 0..400 {
            // Half of the places are in the first lines, where the format and the checksum are.
            let at = random(if case % 2 == 0 { 80.min(text.len()) } else { text.len() });
            let mut bytes = text.as_bytes().to_vec();
            bytes[at] ^= 1 << random(7);
            if let Ok(damaged) = String::from_utf8(bytes) {
                assert!(Forest::parse(&damaged, &purpose).is_err(), "a bit of byte {at} was changed");
            }
            assert!(Forest::parse(&text[..at], &purpose).is_err(), "cut off at byte {at}");
        }
    }
}

#[test]
fn models_for_something_else_are_refused() {
    let leaf = "{\"input\": [-1], \"threshold\": [0], \"left\": [0], \"right\": [0], \"votes\": [[1, 0, 0, 0]]}";
    assert!(Forest::parse(&with(leaf), &PURPOSE).is_ok());
    let error = |text: &str| Forest::parse(text, &PURPOSE).unwrap_err().to_string();
    for text in ["", "{}", "null", "{\n\"format\": \"other 1\",\n\"crc32\": \"0\",\n}", "\u{0}\u{1}\n\n\n"] {
        assert_eq!(Forest::parse(text, &PURPOSE).unwrap_err(), ForestError::Foreign, "{text:?}");
    }
    assert!(error(&with(leaf).replace("sluice-forest 1", "sluice-forest 2")).contains("another version"));
    assert!(error(THESIS).contains("list of inputs"), "{}", error(THESIS));
    let other = |from: &str, to: &str| {
        let lines: Vec<String> = with(leaf).lines().skip(3).map(|line| line.replace(from, to) + "\n").collect();
        error(&model(&lines.concat()))
    };
    assert!(other("\"detector\"", "\"selector\"").contains("its kind is \"selector\""));
    assert!(other("\"features\": 1", "\"features\": 2").contains("version of the features"));
    assert!(other("strided small", "strided tiny").contains("list of classes"));
    assert!(other("\"trees\"", "\"tress\"").contains("not a model"));
}

#[test]
fn trees_that_are_none_are_refused() {
    let tree = |input: &str, threshold: &str, left: &str, right: &str, votes: &str| {
        let text = format!(
            "{{\"input\": [{input}], \"threshold\": [{threshold}], \"left\": [{left}], \"right\": [{right}], \"votes\": [{votes}]}}"
        );
        Forest::parse(&with(&text), &PURPOSE).unwrap_err().to_string()
    };
    let leaf = "[1, 0, 0, 0]";
    assert!(Forest::parse(&with(""), &PURPOSE).unwrap_err().to_string().contains("0 trees"));
    assert!(tree("", "", "", "", "").contains("lengths"));
    assert!(tree("-1", "0, 0", "0", "0", leaf).contains("lengths"));
    assert!(
        tree("99, -1, -1", "0, 0, 0", "1, 0, 0", "2, 0, 0", &format!("[], {leaf}, {leaf}")).contains("no input 99")
    );
    assert!(tree("0, -1", "0, 0", "0, 0", "1, 0", &format!("[], {leaf}")).contains("children"), "a circle");
    assert!(tree("0, -1", "0, 0", "1, 0", "7, 0", &format!("[], {leaf}")).contains("children"));
    for votes in ["[]", "[1, 0, 0]", "[2, 0, 0, 0]", "[0.5, 0, 0, 0]", "[1, 1, 0, 0]"] {
        assert!(tree("-1", "0", "0", "0", votes).contains("votes of node 0"), "{votes}");
    }
}

/// Sixteen processes, as they look behind four servers with stripes of 64 KiB and requests that are split by stripe.
fn seen(class: Class, settings: Settings) -> sluice_adapt::features::Window {
    const STRIPE: u64 = 64 << 10;
    let (calls, size) = if class.is_large() { (64, 4 * STRIPE) } else { (256, STRIPE / 4) };
    let mut watcher = Watcher::new(settings, Time::ZERO);
    let (mut now, mut open) = (1, Vec::new());
    for call in 0..calls {
        for turn in 0..16u64 {
            // They do not keep an order.
            let process = (turn * 7 + call * 5) % 16;
            let at = if class.is_strided() { (call * 16 + process) * size } else { (process * calls + call) * size };
            let mut from = at;
            while from < at + size {
                let (stripe, len) = (from / STRIPE, (STRIPE - from % STRIPE).min(at + size - from));
                let offset = stripe / 4 * STRIPE + from % STRIPE;
                let (app, target) = (AppId(0), TargetId(0));
                let request =
                    Request { cookie: 0, file: FileId(3), app, target, op: Op::Read, offset, len: len as u32 };
                if stripe % 4 == 0 {
                    watcher.arrived(Time(now), &request);
                    open.push(request);
                }
                from += len;
            }
            now += 10_000;
        }
        now += 5_000_000;
        open.drain(..).for_each(|request| watcher.completed(Time(now), &request, None));
    }
    watcher.close(Time(now)).clone()
}

#[test]
fn the_four_patterns_are_recognised_with_completions_and_without() {
    let detector = Detector::shipped().unwrap();
    for answers in [Answers::Known, Answers::After(100_000)] {
        for class in Class::ALL {
            let window = seen(class, Settings { answers, ..Settings::default() });
            let patterns = detector.detect(&window, 16);
            let verdict = patterns.files[0].verdict.unwrap();
            assert_eq!(verdict.class, class, "{answers:?}: {verdict:?} {:?}", window.files[0].features);
            assert_eq!((patterns.all.class(), patterns.targets[0].1.class()), (Some(class), Some(class)));
            assert_eq!(patterns.all.share(class), 1.0);
            assert!(patterns.all.confidence() > 0.5);
            let why = verdict.why(&window.files[0].features);
            assert!(why.contains(if class.is_strided() { "together" } else { "far apart" }), "{why}");
        }
    }
}

#[test]
fn files_with_few_requests_are_judged_together_or_not_at_all() {
    let detector = Detector::shipped().unwrap();
    let mut watcher = Watcher::new(Settings { answers: Answers::Known, ..Settings::default() }, Time::ZERO);
    let read = |file: u64, n: u64, app| Request {
        cookie: 0,
        file: FileId(file),
        app: AppId(app),
        target: TargetId(0),
        op: Op::Read,
        offset: n * 8192,
        len: 8192,
    };
    for n in 0..8u64 {
        for file in 0..32 {
            let request = read(file, n, 1);
            watcher.arrived(Time(1 + n * 1_000_000), &request);
            watcher.completed(Time(1 + n * 1_000_000 + 500_000), &request, None);
        }
    }
    watcher.arrived(Time(9_000_000), &read(99, 0, 2));
    let patterns = detector.detect(watcher.close(Time(10_000_000)), 16);
    assert_eq!(patterns.files.len(), 2);
    assert!(patterns.files.iter().all(|file| file.file.is_none()));
    assert_eq!(patterns.all.class(), Some(Class::ContiguousSmall));
    assert_eq!(patterns.all.unknown, 8192);
}

/// Rows of the data that the model was trained with, and what scikit-learn says of them.
#[test]
fn rust_and_scikit_learn_agree() {
    let detector = Detector::shipped().unwrap();
    let mut rows = 0;
    for line in include_str!("../../../models/detector-check.csv").lines().skip(1) {
        let fields: Vec<&str> = line.split(',').collect();
        assert_eq!(fields.len(), INPUTS.len() + 4);
        let inputs: Vec<f32> = fields[..INPUTS.len()].iter().map(|field| field.parse().unwrap()).collect();
        let theirs: Vec<f64> = fields[INPUTS.len()..].iter().map(|field| field.parse().unwrap()).collect();
        let mut ours = [0.0; 4];
        detector.forest().votes(&inputs, &mut ours);
        assert_eq!(winner(&ours), winner(&theirs), "{line}");
        assert!(ours.iter().zip(&theirs).all(|(ours, theirs)| (ours - theirs).abs() < 1e-12), "{ours:?} {theirs:?}");
        rows += 1;
    }
    assert_eq!(rows, 200);
}
