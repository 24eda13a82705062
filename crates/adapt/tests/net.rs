//! The council's pattern networks: what they say, what is refused, and that asking costs no memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use sluice_adapt::council::Pattern;
use sluice_adapt::features::{Answers, Settings, Watcher};
use sluice_adapt::net::{CLASSES, INPUTS, NetError, Network, Observation, PAPER_INPUTS, REQUESTS_MIN};
use sluice_core::{AppId, FileId, Op, OpFeatures, Request, TargetId, Time, WindowFeatures};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: everything is the system's; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: as promised to us.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as promised to us.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const SHIPPED: &str = include_str!("../../../models/council.json");

/// The file with its checksum made right.
fn sealed(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let rest: String = lines[..2].iter().chain(&lines[3..]).map(|line| format!("{line}\n")).collect();
    let sum = sluice_trace::checksum(rest.as_bytes());
    let rest: String = lines[3..].iter().map(|line| format!("{line}\n")).collect();
    format!("{}\n{}\n\"crc32\": \"{sum:08x}\",\n{rest}", lines[0], lines[1])
}

/// A network of the paper's inputs with these layers.
fn small(change: impl Fn(&str) -> String, layers: &str) -> Result<Network, NetError> {
    let inputs = serde_json::to_string(&PAPER_INPUTS).unwrap();
    let classes = serde_json::to_string(&CLASSES).unwrap();
    let text = format!(
        "{{\n\"format\": \"sluice-net 1\",\n\"crc32\": \"0\",\n\"kind\": \"council\",\n\"features\": 1,\n\"inputs\": {inputs},\n\
         \"classes\": {classes},\n\"ranges\": [[0,9],[0,9],[0,9],[0,9],[-9,9]],\n\"lambdas\": [1,1,0,2,2],\n\
         \"means\": [0,0,0,0,0],\n\"deviations\": [1,2,1,1,1],\n\"layers\": [{layers}]\n}}\n"
    );
    Network::parse(&sealed(&change(&text)))
}

/// Shows what comes in: the third, fourth and fifth input.
const LAST: &str = "{\"weights\": [[0,0,1,0,0],[0,0,0,1,0],[0,0,0,0,1]], \"bias\": [0,0,0]}";

#[test]
fn inputs_are_cut_off_transformed_and_scaled_and_the_outputs_shared_out() {
    let network = small(str::to_owned, LAST).unwrap();
    // Yeo and Johnson: ln(x + 1) for 0, ((x + 1)^2 - 1) / 2 for 2, -ln(1 - x) for 2 and less than 0; 99 counts as 9.
    let shares = network.shares(&[0.0, 0.0, 1.0, 1.0, -3.0]).unwrap();
    let powers = [2f64.ln().exp(), 1.5f64.exp(), (-4f64.ln()).exp()];
    let sum: f64 = powers.iter().sum();
    for (share, power) in shares.iter().zip(powers) {
        assert!((share - power / sum).abs() < 1e-12, "{shares:?}");
    }
    let (least, most) = (network.shares(&[0.0, 0.0, 99.0, 0.0, 0.0]), network.shares(&[0.0, 0.0, 9.0, 0.0, 0.0]));
    assert!(least.is_some() && least == most);
    assert_eq!(network.shares(&[0.0, 0.0, f64::NAN, 0.0, 0.0]), None);
    assert_eq!(network.shares(&[0.0; 4]), None);
    // The second unit would be negative: what is rectified has no share left.
    let first = "{\"weights\": [[0,0,1,0,0],[0,0,-1,0,0],[0,0,0,0,0]], \"bias\": [0,0,0]}";
    let second = "{\"weights\": [[1,0,0],[0,1,0],[0,0,1]], \"bias\": [0,0,0]}";
    let shares =
        small(str::to_owned, &format!("{first},{second}")).unwrap().shares(&[0.0, 0.0, 1.0, 0.0, 0.0]).unwrap();
    assert!((shares[0] - 0.5).abs() < 1e-12 && (shares[1] - shares[2]).abs() < 1e-12, "{shares:?}");
}

#[test]
fn files_that_cannot_be_used_are_refused_with_the_reason() {
    let error = |text: &str| Network::parse(text).unwrap_err().to_string();
    assert!(error("").contains("not a network") && error(&SHIPPED.replace("net 1", "net 2")).contains("not a network"));
    for at in (60..SHIPPED.len()).step_by(1_009) {
        let mut bytes = SHIPPED.as_bytes().to_vec();
        bytes[at] ^= 1;
        assert!(error(&String::from_utf8(bytes).unwrap()).contains("damaged"), "byte {at}");
    }
    assert!(error(&SHIPPED[..SHIPPED.len() / 2]).contains("damaged"));
    let refused = |from: &str, to: &str, why: &str| {
        let change = |text: &str| {
            assert!(text.contains(from), "{from}");
            text.replacen(from, to, 1)
        };
        let error = small(change, LAST).unwrap_err().to_string();
        assert!(error.contains(why), "{from} -> {to}: {error}");
    };
    refused("\"council\"", "\"detector\"", "other inputs or patterns");
    refused("\"size_max\"", "\"size_least\"", "other inputs or patterns");
    refused("\"features\": 1", "\"features\": 2", "version 2 of the features");
    refused("[0,9],", "", "one for each input");
    refused("[0,9]", "[9,0]", "\"files\" makes no sense");
    refused("[1,2,1,1,1]", "[0,2,1,1,1]", "\"files\" makes no sense");
    refused("[1,1,0,2,2]", "[1e999,1,0,2,2]", "not a network");
    refused("\"bias\": [0,0,0]", "\"bias\": [0,0]", "layer 0 does not fit");
    refused("[0,0,1,0,0]", "[0,0,1,0]", "layer 0 does not fit");
    refused("[0,0,1,0,0]", "[0,0,1e7,0,0]", "a million");
    refused(LAST, "", "0 layers");
    refused(LAST, "{\"weights\": [[0,0,1,0,0]], \"bias\": [0]}", "1 units in the last layer");
}

/// Rows of the training data, and what Python says of them.
#[test]
fn both_networks_say_what_python_said() {
    let (ours, paper) = (Network::shipped().unwrap(), Network::paper().unwrap());
    let text = include_str!("../../../models/council-check.csv");
    let head: Vec<&str> = text.lines().next().unwrap().split(',').collect();
    assert_eq!(&head[PAPER_INPUTS.len()..][..INPUTS.len()], &INPUTS);
    let mut rows = 0;
    for line in text.lines().skip(1) {
        let fields: Vec<f64> = line.split(',').map(|field| field.parse().unwrap()).collect();
        let (inputs, said) = fields.split_at(PAPER_INPUTS.len() + INPUTS.len());
        let (few, many) = inputs.split_at(PAPER_INPUTS.len());
        let found = ours.shares(many).unwrap().into_iter().chain(paper.shares(few).unwrap());
        for (found, said) in found.zip(said) {
            assert!((found - said).abs() < 1e-9, "row {rows}: {found} and {said}");
        }
        rows += 1;
    }
    assert!(rows >= 100, "{rows} rows");
}

/// Processes that take turns in one file each.
fn observed(requests: u64) -> Observation {
    let mut watcher = Watcher::new(Settings { answers: Answers::Known, ..Settings::default() }, Time::ZERO);
    let len = 64 << 10;
    for n in 0..requests {
        let (file, target, offset) = (FileId(n % 64), TargetId((n / 64 % 4) as u32), n / 256 * len);
        let request = Request { cookie: 0, file, app: AppId(1), target, op: Op::Read, offset, len: len as u32 };
        watcher.arrived(Time(n * 200_000), &request);
        watcher.completed(Time(n * 200_000 + 100_000), &request, None);
    }
    let read = OpFeatures { requests, bytes: requests * len, size_mean: len as f64, ..OpFeatures::default() };
    let ops = [read, OpFeatures::default()];
    let window = WindowFeatures { ops, files: 256, targets: 4, ..WindowFeatures::default() };
    Observation::of(&window, Some(watcher.close(Time(1_000_000_000))))
}

#[test]
fn asking_allocates_nothing_and_too_little_has_no_answer() {
    let (ours, paper) = (Network::shipped().unwrap(), Network::paper().unwrap());
    let observation = observed(2_048);
    let before = ALLOCATIONS.get();
    let verdict = ours.classify(&observation);
    assert_eq!(ALLOCATIONS.get(), before);
    let verdict = verdict.unwrap();
    assert_eq!(verdict.pattern, Pattern::OwnContiguous, "{verdict:?}");
    assert!((verdict.shares.iter().sum::<f64>() - 1.0).abs() < 1e-12);
    assert_eq!(ours.classify(&observed(REQUESTS_MIN - 1)), None);
    let unfollowed = Observation { inputs: None, ..observation };
    assert_eq!(ours.classify(&unfollowed), None);
    assert!(paper.classify(&unfollowed).is_some());
}
