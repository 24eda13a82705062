//! Watching and changing a mount that is in use.

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{Foreground, LIMIT, Place, eventually, fuse_works, run, unmount};

/// What a mount begins with that names none, where nothing is known of the device.
const BEGINNING: &str = "noop";

fn algorithms(place: &Place) -> Vec<String> {
    let list: serde_json::Value = serde_json::from_str(&place.good(&["policy", "--list", "--json"])).unwrap();
    list["algorithms"].as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn the_table_of_algorithms_explains_every_parameter() {
    let place = Place::new();
    let (plain, listed) = (place.good(&["policy"]), place.good(&["policy", "--list"]));
    assert_eq!(plain, listed);
    assert_eq!(algorithms(&place).len(), sluice_core::policy::table().len());
    for info in sluice_core::policy::table() {
        assert!(listed.contains(info.summary), "{}", info.name);
        for param in info.params {
            assert!(listed.contains(&format!("{}={}", param.key, param.show_default())), "{}", param.key);
            assert!(listed.contains(param.help), "{}", param.key);
        }
    }
}

/// Writes and reads back blocks of a file of its own until `end`, in a fixed pseudo-random order.
fn load(path: PathBuf, end: &AtomicBool) -> u64 {
    const BLOCKS: u64 = 256;
    let file = fs::OpenOptions::new().read(true).write(true).create_new(true).open(path).unwrap();
    let (mut turn, mut state) = (0u64, [0u8; BLOCKS as usize]);
    while !end.load(Ordering::Relaxed) || turn < 2 * BLOCKS {
        let block = turn.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
        let mut buffer = [0; 4096];
        if turn % 3 == 2 && state[block as usize] != 0 {
            file.read_exact_at(&mut buffer, block * 4096).unwrap();
            assert!(buffer.iter().all(|&b| b == state[block as usize]), "block {block} in turn {turn}");
        } else {
            state[block as usize] = (turn % 255) as u8 + 1;
            buffer.fill(state[block as usize]);
            file.write_all_at(&buffer, block * 4096).unwrap();
        }
        turn += 1;
    }
    turn
}

#[test]
fn the_algorithm_changes_under_load_to_every_other() {
    if !fuse_works() {
        return;
    }
    let place = Place::new();
    let daemon = place.daemon(&["--cache", "none", "--policy", "noop", "--in-flight", "1"]);
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let loads: Vec<_> = (0..4)
            .map(|i| {
                let (path, end) = (place.path(&format!("mnt/f{i}")), &end);
                scope.spawn(move || load(path, end))
            })
            .collect();
        for name in algorithms(&place).iter().chain(algorithms(&place).iter().rev()) {
            let said = place.good(&["policy", "@mnt", name]);
            assert!(said.contains(&format!(": {name}")), "{said}");
            assert_eq!(place.status()["policy"]["name"], **name);
        }
        end.store(true, Ordering::Relaxed);
        for load in loads {
            load.join().unwrap();
        }
    });
    let total = &place.status()["total"];
    assert!(total["reads"].as_u64().unwrap() > 0 && total["writes"].as_u64().unwrap() > 0, "{total}");
    assert_eq!(total["errors"], 0);
    daemon.unmount();
}

/// Four programs that read sequentially: their requests go in slices, whatever the algorithm, and the bytes are right.
#[test]
fn streams_are_served_in_slices() {
    if !fuse_works() {
        return;
    }
    let place = Place::new();
    let content: Vec<u8> = (0..2_u32 << 20).map(|at| (at / 4096 * 7) as u8).collect();
    (0..4).for_each(|i| std::fs::write(place.path(&format!("source/f{i}")), &content).unwrap());
    let daemon = place.daemon(&["--cache", "none", "--policy", "to", "--in-flight", "1", "--anticipation", "100ms"]);
    let read = || {
        std::thread::scope(|scope| {
            for i in 0..4 {
                let (path, content) = (place.path(&format!("mnt/f{i}")), &content);
                scope.spawn(move || {
                    let file = std::fs::File::open(path).unwrap();
                    let mut block = [0; 4096];
                    for at in (0..content.len()).step_by(block.len()) {
                        file.read_exact_at(&mut block, at as u64).unwrap();
                        assert_eq!(block, content[at..at + block.len()]);
                    }
                });
            }
        });
        let status = place.status();
        assert_eq!(status["anticipation"]["positioning_ms"], 100.0, "{status}");
        ["batches", "continued"].map(|count| status["total"][count].as_u64().unwrap())
    };
    // A slice is a time. Where others have the machine the programs use little of theirs, and more of the time between two.
    let mut before = [0; 2];
    eventually("most go on where the one before has ended", || {
        let now = read();
        let [batches, continued] = [now[0] - before[0], now[1] - before[1]];
        before = now;
        continued * 2 > batches
    });
    daemon.unmount();
}

#[test]
fn status_tells_what_the_requests_of_the_last_window_were_like() {
    if !fuse_works() {
        return;
    }
    let place = Place::new();
    // An algorithm that waits: with another, most requests go by the engine where the storage is fast.
    let daemon = place.daemon(&["--cache", "none", "--policy", "aioli"]);
    assert_eq!(place.status()["windows"], serde_json::json!([]), "nothing has happened");
    let file = fs::File::create(place.path("mnt/f")).unwrap();
    let mut blocks = 0..;
    // The window closes by itself, a second after it began. Where others have the machine it may have a single request.
    let mut window = serde_json::Value::Null;
    eventually("a window with several requests closes", || {
        blocks.by_ref().take(20).for_each(|block| file.write_all_at(&[1; 4096], block * 4096).unwrap());
        window = place.status()["windows"][0].clone();
        window["writes"]["submitted"].as_u64() > Some(1)
    });
    let writes = &window["writes"];
    assert_eq!((window["engine"].as_u64(), window["files"].as_u64()), (Some(0), Some(1)), "{window}");
    assert_eq!((writes["size_min_bytes"].as_u64(), writes["size_max_bytes"].as_u64()), (Some(4096), Some(4096)));
    assert_eq!(writes["bytes"].as_u64(), Some(4096 * writes["submitted"].as_u64().unwrap()));
    assert_eq!(writes["contiguous"].as_f64(), Some(1.0), "{writes}");
    assert!(window["seconds"].as_f64().unwrap() > 0.0 && window["service"]["p99_us"].as_f64().unwrap() > 0.0);
    assert!(place.good(&["status", "@mnt"]).contains("contiguous"));
    drop(file);
    daemon.unmount();
}

#[test]
fn parameters_change_live_and_wrong_ones_change_nothing() {
    if !fuse_works() {
        return;
    }
    let place = Place::new();
    let daemon = place.daemon(&["--policy", "mlf", "--param", "wait_time=2ms"]);
    assert!(place.good(&["policy", "@mnt"]).contains("mlf quantum=8K wait_time=2ms"));
    assert!(
        place.good(&["policy", "@mnt", "mlf", "wait_time=1ms", "quantum=16K"]).contains("quantum=16K wait_time=1ms")
    );
    for (args, wanted) in [
        (&["policy", "@mnt", "mlff"][..], "did you mean \"mlf\"?"),
        (&["policy", "@mnt", "mlf", "wait=1ms"], "did you mean \"wait_time\"?"),
        (&["policy", "@mnt", "mlf", "wait_time=-1"], "expected a duration"),
    ] {
        let error = place.bad(args);
        assert!(error.contains(wanted), "{error}");
    }
    assert_eq!(place.status()["policy"]["params"][1][1], "1ms");
    daemon.unmount();
}

#[test]
fn the_file_sets_and_the_command_line_overrides() {
    if !fuse_works() {
        return;
    }
    let place = Place::new();
    let text = "[mount]\nsource = \"source\"\nmountpoint = \"mnt\"\ncache = \"none\"\n[log]\nfile = \"log\"\n\
        [scheduler]\npolicy = \"mlf\"\nin_flight = 3\n[scheduler.params]\nwait_time = \"2ms\"\n";
    fs::write(place.path("c.toml"), text).unwrap();
    place.good(&["mount", "--daemon", "--config", "c.toml"]);
    let status = place.status();
    assert_eq!(status["policy"]["params"][1][1], "2ms");
    assert_eq!((status["in_flight_max"].as_u64(), status["cache"].as_str()), (Some(3), Some("none")));
    unmount(&place);
    place.good(&["mount", "--daemon", "--config", "c.toml", "--param", "wait_time=3ms", "--cache", "auto"]);
    let status = place.status();
    assert_eq!((status["policy"]["params"][1][1].as_str(), status["cache"].as_str()), (Some("3ms"), Some("auto")));
    unmount(&place);
    place.good(&["mount", "--daemon", "--config", "c.toml", "--policy", "sjf", "--in-flight", "0"]);
    let status = place.status();
    assert_eq!(
        (status["policy"]["name"].as_str(), status["policy"]["params"].as_array().unwrap().len()),
        (Some("sjf"), 0)
    );
    assert_eq!(status["in_flight_max"], 0);
    unmount(&place);
}

#[test]
fn applications_are_told_apart_by_their_batch_job() {
    if !fuse_works() {
        return;
    }
    let place = Place::new();
    let daemon = place.daemon(&["--job-variable", "MY_JOB", "--cache", "none"]);
    for job in ["17", "18"] {
        let script = format!("echo data > {}/{job}", place.text("mnt"));
        let name = format!("MY_JOB={job} uid=");
        // Nobody waits for long for what a process's variables are: on a busy machine it may not be known at once.
        eventually(&name, || {
            assert!(run(Command::new("sh").args(["-c", &script]).env("MY_JOB", job)).status.success());
            let status = place.status();
            let mut apps = status["apps"].as_array().unwrap().iter();
            apps.any(|app| app["name"].as_str().unwrap().starts_with(&name))
        });
    }
    let shown = place.good(&["status", "@mnt"]);
    assert!(shown.contains(&format!("algorithm  {BEGINNING}")), "{shown}");
    for wanted in ["buffered I/O", "MY_JOB=17", "wait p50", "service p50", "requests a batch"] {
        assert!(shown.contains(wanted), "{shown}");
    }
    assert!(!shown.contains("emulated"), "{shown}");
    daemon.unmount();
}

#[test]
fn watching_ends_with_the_mount() {
    if !fuse_works() {
        return;
    }
    let place = Place::new();
    let daemon = place.daemon(&[]);
    let mut watch = place.sluice(&["status", "--watch", "--json", "@mnt"]);
    let mut watch = watch.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    for _ in 0..2 {
        let line: serde_json::Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        assert_eq!(line["policy"]["name"], BEGINNING);
    }
    daemon.unmount();
    assert!(watch.wait().unwrap().success());
}

fn socket(place: &Place) -> PathBuf {
    fs::read_dir(place.path("run")).unwrap().next().unwrap().unwrap().path()
}

fn connect(place: &Place) -> UnixStream {
    let stream = UnixStream::connect(socket(place)).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

/// Sends bytes and returns the answer's line.
fn ask(place: &Place, bytes: &[u8]) -> String {
    let mut stream = connect(place);
    // Whoever sends more than is read may find the other end closed; the answer is there all the same.
    let sent = stream.write_all(bytes).and_then(|()| stream.shutdown(std::net::Shutdown::Write));
    let closed = |error: &std::io::Error| {
        matches!(error.kind(), std::io::ErrorKind::BrokenPipe | std::io::ErrorKind::NotConnected)
    };
    assert!(sent.as_ref().err().is_none_or(closed), "{sent:?}");
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    answer
}

#[test]
fn the_control_socket_survives_its_clients() {
    if !fuse_works() {
        return;
    }
    let place = Place::new();
    let daemon = place.daemon(&[]);
    assert_eq!(fs::metadata(socket(&place)).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::metadata(place.path("run")).unwrap().permissions().mode() & 0o777, 0o700);

    let question = b"{\"version\":1,\"command\":\"status\"}\n";
    assert!(ask(&place, question).starts_with("{\"version\":1,\"ok\":true,\"status\":{"));
    assert!(
        ask(&place, b"{\"version\":9,\"command\":\"status\"}\n").contains("version 1 of the control protocol, not 9")
    );
    for garbage in [&b"\n"[..], b"garbage\n", b"\xff\x00\xfe\n", b"{\"version\":1,\"command\":\"explode\"}\n", b"{}\n"]
    {
        let answer = ask(&place, garbage);
        assert!(answer.contains("\"ok\":false") && answer.contains("not a question"), "{answer}");
    }
    assert!(ask(&place, b"{\"version\":1").contains("one line"));

    // Gone without waiting for the answer, in the middle of a line, and with more than a line may have.
    for bytes in [&question[..], b"{\"vers", &[b'x'; 200_000]] {
        let mut stream = connect(&place);
        let _ = stream.write_all(bytes);
    }
    // More at a time than are let in: those beyond are told so, and places become free again.
    let crowd: Vec<UnixStream> = (0..40).map(|_| connect(&place)).collect();
    let mut refused = String::new();
    (&crowd[39]).read_to_string(&mut refused).unwrap();
    assert!(refused.contains("try again later"), "{refused}");
    drop(crowd);
    common::eventually("a free place", || ask(&place, question).contains("\"ok\":true"));
    assert_eq!(place.status()["policy"]["name"], BEGINNING);
    daemon.unmount();
}

/// As `sluice mpirun` has MPI programs do: the process is this test.
#[test]
fn what_a_program_says_of_itself_reaches_the_coordinator() {
    if !fuse_works() {
        return;
    }
    let place = Place::new();
    fs::write(place.path("source/data"), vec![7; 1 << 20]).unwrap();
    let coordinate = ["coordinate", "--listen", "127.0.0.1:0", "--role", "orchestrator", "--window", "1s"];
    let (coordinator, said) = Foreground::saying(place.sluice(&coordinate));
    let address = said.split([' ', ';']).find(|word| word.starts_with("127.0.0.1:")).expect(&said).to_owned();
    let daemon = place.daemon(&["--cache", "none", "--policy", "hbrr", "--coordinator", &address]);
    let file = fs::File::open(place.path("mnt/data")).unwrap();
    let say = |name, text: &str| {
        rustix::fs::fsetxattr(&file, name, text.as_bytes(), rustix::fs::XattrFlags::empty()).unwrap();
    };
    let computing = || {
        let text = place.good(&["coordinate", "status", "--json", &address]);
        let status: serde_json::Value = serde_json::from_str(&text).unwrap();
        status["roles"]["orchestrator"]["computing"].as_array().cloned().unwrap_or_default()
    };
    say("system.sluice.job", "run-17");
    // Who is not planned for is not known for long: a busy machine may come too late to see it.
    let mut seen = Vec::new();
    eventually("the coordinator knows that it computes", || {
        say("system.sluice.phase", "io");
        (0..8).for_each(|n| file.read_exact_at(&mut [0; 4096], n * 65_536).unwrap());
        say("system.sluice.phase", "compute");
        let until = Instant::now() + Duration::from_secs(3);
        while seen.is_empty() && Instant::now() < until {
            seen = computing();
        }
        !seen.is_empty()
    });
    let apps = place.status()["apps"].clone();
    let name = |app: &serde_json::Value| app["name"].as_str().is_some_and(|name| name.starts_with("job=run-17 "));
    let number = apps.as_array().unwrap().iter().find(|app| name(app)).expect("it has requests")["number"].as_u64();
    assert_eq!(seen, [format!("{:08x}", number.unwrap())]);
    say("system.sluice.phase", "io");
    eventually("the coordinator knows that it does not any more", || computing().is_empty());
    drop(file);
    daemon.unmount();
    coordinator.signal(rustix::process::Signal::INT);
    assert!(coordinator.end().success());
}
