//! The model that selectors ask: what it says, and what is refused.

use proptest::prelude::*;
use sluice_adapt::forest::{Forest, ForestError, Leaves};
use sluice_adapt::selector::{
    Arm, Device, INPUTS, Kind, Load, Model, ModelError, PURPOSE, Prior, SHIPPED_MODEL, Selector, Settings, arms, inputs,
};
use sluice_core::{Anticipation, DurationFeatures, EngineConfig, OpFeatures, Time, WindowFeatures};

/// As `forest.py` writes them.
fn file(rest: &str) -> String {
    let head = "{\n\"format\": \"sluice-forest 1\",\n";
    let sum = sluice_trace::checksum(format!("{head}{rest}").as_bytes());
    format!("{head}\"crc32\": \"{sum:08x}\",\n{rest}")
}

/// A model of two arms, with more keys and these trees.
fn with(more: &str, trees: &str) -> String {
    let inputs = serde_json::to_string(&INPUTS).unwrap();
    file(&format!(
        "\"kind\": \"selection\",\n\"features\": 1,\n\"inputs\": {inputs},\n\"classes\": [\"noop\", \"hbrr anticipation=on\"],\n\
         \"leaves\": \"numbers\",\n{more}\"trees\": [{trees}]\n}}\n"
    ))
}

fn leaf(noop: f64, hbrr: f64) -> String {
    format!("{{\"input\": [-1], \"threshold\": [0], \"left\": [0], \"right\": [0], \"votes\": [[{noop}, {hbrr}]]}}")
}

/// `noop` above a read share of a half, the other up to it.
const SPLIT: &str = "{\"input\": [1, -1, -1], \"threshold\": [0.5, 0, 0], \"left\": [1, 0, 0], \"right\": [2, 0, 0], \
                     \"votes\": [[], [-0.5, 0], [0, -0.5]]}";

fn load(reads: u64, size: u64) -> Load {
    let op = |requests: u64| OpFeatures {
        requests,
        bytes: requests * size,
        distances: requests,
        contiguous: 0.5,
        distance_normalised: 3.0,
        completed: requests,
        moved: requests * size,
        ..OpFeatures::default()
    };
    Load::of(&WindowFeatures {
        end: Time(250_000_000),
        busy_ns: 250_000_000,
        ops: [op(reads), op(100 - reads)],
        outstanding_mean: 8.0,
        files: 4,
        apps: 1,
        batches: 50,
        batch_requests_mean: 2.0,
        service: DurationFeatures { count: 100, mean_ns: 2_000_000, ..DurationFeatures::default() },
        ..Default::default()
    })
}

#[test]
fn the_inputs_are_what_they_are_called() {
    let of = |name: &str| {
        let at = INPUTS.iter().position(|one| *one == name).unwrap();
        inputs(&load(80, 65_536), Device::Disk)[at]
    };
    let close = |name: &str, value: f32| assert!((of(name) - value).abs() < 0.01, "{name}: {}", of(name));
    close("disk", 1.0);
    close("read_share", 0.8);
    close("size_log2", 16.0);
    close("contiguous", 0.5);
    close("distance_log2", 3f32.log2());
    close("concurrency_log2", 3.0);
    close("files_log2", 2.0);
    close("apps_log2", 0.0);
    close("per_file_log2", 1.0);
    close("service_us_log2", 2_000f32.log2());
    close("request_us_log2", 2_500f32.log2());
    close("batch_log2", 1.0);
    close("in_device_log2", 0.8f32.log2());
    close("busy", 1.0);
    close("rate_log2", (100.0 * (65_536.0 + 4_096.0) / 0.25 / 1e6f32).log2());
}

#[test]
fn a_model_says_what_its_trees_say_and_nothing_of_what_it_does_not_know() {
    let model = Model::parse(&with("", SPLIT), "test").unwrap();
    let [noop, hbrr, sjf] = ["noop", "hbrr anticipation=on", "sjf"].map(|text| Arm::parse(text).unwrap());
    let (reads, writes) = (load(90, 65_536), load(10, 65_536));
    for _ in 0..2 {
        assert!((model.expected(&reads, Device::Disk, &noop).unwrap() - 1.0).abs() < 1e-12);
        assert!((model.expected(&writes, Device::Disk, &noop).unwrap() - (-0.5f64).exp()).abs() < 1e-12);
        assert!((model.expected(&reads, Device::Flash, &hbrr).unwrap() - (-0.5f64).exp()).abs() < 1e-12);
    }
    assert_eq!(model.expected(&reads, Device::Disk, &sjf), None, "an arm that it was not trained with");
    assert_eq!(model.expected(&reads, Device::Unknown, &noop), None, "a device of which nothing is known");
    let ranges: Vec<[f64; 2]> =
        INPUTS.iter().map(|name| if *name == "size_log2" { [0.0, 17.0] } else { [-99.0, 99.0] }).collect();
    let more = format!("\"ranges\": {},\n", serde_json::to_string(&ranges).unwrap());
    let model = Model::parse(&with(&more, SPLIT), "test").unwrap();
    assert!(model.expected(&reads, Device::Disk, &noop).is_some());
    assert_eq!(
        model.expected(&load(90, 1 << 20), Device::Disk, &noop),
        None,
        "larger than any that it was trained with"
    );
    let mut nan = inputs(&reads, Device::Disk);
    nan[3] = f32::NAN;
    assert_eq!(model.values(&nan), None);
}

#[test]
fn trees_that_disagree_are_believed_less() {
    let trees = [leaf(-0.1, 0.0), leaf(-0.1, -0.4)].join(",");
    let values = |caution: &str| {
        Model::parse(&with(&format!("\"caution\": {caution},\n"), &trees), "test")
            .unwrap()
            .values(&[0.0; INPUTS.len()])
            .unwrap()
    };
    let (plain, careful) = (values("0"), values("1"));
    assert!((plain[0] + 0.1).abs() < 1e-12 && (plain[1] + 0.2).abs() < 1e-12);
    assert!((careful[0] + 0.1).abs() < 1e-12 && (careful[1] + 0.4).abs() < 1e-12, "{careful:?}");
}

#[test]
fn the_shipped_model_is_whole_and_knows_the_arms_of_all_devices() {
    let model = Model::shipped().unwrap();
    assert!(SHIPPED_MODEL.len() < 300 << 10, "{} bytes are not small", SHIPPED_MODEL.len());
    let host =
        EngineConfig { anticipation: Some(Anticipation::for_device(8_000_000, 100_000_000)), ..Default::default() };
    for device in [Device::Disk, Device::Flash] {
        for host in [&host, &EngineConfig::default()] {
            for arm in arms(device, host) {
                assert!(model.arms().contains(&arm), "{arm}");
            }
        }
        let told =
            arms(device, &host).iter().filter(|arm| model.expected(&load(100, 65_536), device, arm).is_some()).count();
        assert_eq!(told, arms(device, &host).len(), "{device}");
    }
}

/// Rows of its training data, and what scikit-learn says of them.
#[test]
fn the_shipped_model_says_what_scikit_learn_said() {
    let model = Model::shipped().unwrap();
    let text = include_str!("../../../models/selection-check.csv");
    let (mut rows, count) = (0, model.arms().len());
    for line in text.lines().skip(1) {
        let fields: Vec<f64> = line.split(',').map(|field| field.parse().unwrap()).collect();
        let (given, said) = fields.split_at(INPUTS.len());
        let given: Vec<f32> = given.iter().map(|value| *value as f32).collect();
        let mut ours = vec![0.0; count];
        model.forest().votes(&given, &mut ours);
        ours.extend(model.values(&given).unwrap());
        assert_eq!(ours.len(), said.len());
        for (ours, said) in ours.iter().zip(said) {
            assert!((ours - said).abs() < 1e-9, "row {rows}: {ours} and {said}");
        }
        rows += 1;
    }
    assert!(rows >= 100, "{rows} rows");
}

#[test]
fn a_selector_that_only_asks_the_model_does_what_it_says_and_stays_with_it() {
    let host =
        EngineConfig { anticipation: Some(Anticipation::for_device(8_000_000, 100_000_000)), ..Default::default() };
    let all = arms(Device::Disk, &host);
    let model = Model::parse(&with("", SPLIT), "test").unwrap();
    let mut selector =
        Selector::new(Settings::new(Kind::Tree, Device::Disk), all.clone(), &all[0], Some(Box::new(model))).unwrap();
    let mut changes = 0;
    for window in 0..60 {
        // Mostly reads, then mostly writes.
        let reads = if window < 30 { 95 } else { 5 };
        let mut load = load(reads, 65_536);
        (load.start, load.end) = (Time(window * 250_000_000), Time((window + 1) * 250_000_000));
        changes += u32::from(selector.window(&load).is_some());
        match window {
            3..30 => assert_eq!(selector.arm().to_string(), "noop", "window {window}"),
            33.. => assert_eq!(selector.arm().to_string(), "hbrr anticipation=on", "window {window}"),
            _ => {}
        }
    }
    assert_eq!(changes, 2, "no change without a reason");
    assert_eq!(selector.explain().model.as_deref(), Some("test"));
}

#[test]
fn models_that_cannot_be_used_are_refused_with_the_reason() {
    let error = |text: &str| Model::parse(text, "test").unwrap_err().to_string();
    let good = with("", SPLIT);
    assert!(error(&good.replacen("0.5", "0.6", 1)).contains("damaged"));
    assert!(error(&good.replace("sluice-forest 1", "sluice-forest 2")).contains("another version"));
    assert!(error("").contains("not a model") && error(sluice_adapt::detector::SHIPPED).contains("another purpose"));
    let other = |from: &str, to: &str| {
        assert!(good.contains(from), "{from}");
        error(&file(&good.lines().skip(3).map(|line| line.replace(from, to) + "\n").collect::<String>()))
    };
    assert!(other("\"features\": 1", "\"features\": 2").contains("version of the features"));
    assert!(other("\"contiguous\"", "\"continuous\"").contains("list of inputs"));
    assert!(other("\"noop\"", "\"nope\"").contains("no algorithm"));
    assert!(other("numbers", "shares").contains("kind of leaves"));
    assert!(other("-0.5", "-500").contains("no numbers for the classes"));
    assert!(other("[-0.5, 0]", "[-0.5]").contains("no numbers for the classes"));
    assert!(error(&with("\"ranges\": [[0, 1]],\n", SPLIT)).contains("ranges"));
    assert!(error(&with("\"caution\": -1,\n", SPLIT)).contains("caution"));
    assert!(matches!(
        Model::parse(&good.replacen("noop", "nope", 1), "test"),
        Err(ModelError::Forest(ForestError::Damaged { .. }))
    ));
    assert_eq!(
        (PURPOSE.leaves, Forest::parse_any(&good).unwrap().about().kind.as_str()),
        (Leaves::Numbers, "selection")
    );
}

proptest! {
    #[test]
    fn any_damage_is_noticed(at in 0..SHIPPED_MODEL.len(), bit in 0..7_u32) {
        let mut bytes = SHIPPED_MODEL.as_bytes().to_vec();
        bytes[at] ^= 1 << bit;
        if let Ok(text) = String::from_utf8(bytes) {
            prop_assert!(Model::parse(&text, "test").is_err());
        }
        prop_assert!(Model::parse(SHIPPED_MODEL.get(..at).unwrap_or_default(), "test").is_err());
    }

    /// With a right checksum, too, nothing makes it panic or run for ever.
    #[test]
    fn any_tree_is_refused_or_evaluated(
        nodes in prop::collection::vec((-3..20_i32, -9.0..9.0_f64, 0..12_u32, 0..12_u32), 0..8),
        votes in prop::collection::vec(prop::collection::vec(-200.0..200.0_f64, 0..4), 8),
        given in prop::collection::vec(prop::num::f32::ANY, 0..16),
    ) {
        let tree = serde_json::json!({
            "input": nodes.iter().map(|node| node.0).collect::<Vec<_>>(),
            "threshold": nodes.iter().map(|node| node.1).collect::<Vec<_>>(),
            "left": nodes.iter().map(|node| node.2).collect::<Vec<_>>(),
            "right": nodes.iter().map(|node| node.3).collect::<Vec<_>>(),
            "votes": votes[..nodes.len()],
        });
        if let Ok(model) = Model::parse(&with("\"caution\": 1,\n", &tree.to_string()), "test") {
            let values = model.values(&given).unwrap();
            prop_assert!(values.len() == 2 && values.iter().all(|value| value.is_finite()));
        }
    }
}
