//! Programs in C and C++ against the built library: compiled with every warning an error, run plainly, under AddressSanitizer
//! and under valgrind.
//!
//! By hand: `cargo test -p sluice-capi --test programs NAME`.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Longest time that a program may take. Under valgrind, on a busy machine.
const LIMIT: Duration = Duration::from_secs(600);

/// Where Cargo has put the libraries.
fn built() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_owned()
}

/// The library, there also by the name that programs look for.
fn libraries(dir: &Path) -> PathBuf {
    let lib = dir.join("lib");
    if std::fs::create_dir(&lib).is_ok() {
        ["libsluice.so", "libsluice.so.0"]
            .iter()
            .for_each(|name| std::os::unix::fs::symlink(built().join("libsluice.so"), lib.join(name)).unwrap());
    }
    lib
}

fn room() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn examples() -> PathBuf {
    room().join("../../examples")
}

fn run(mut command: Command) -> Output {
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    output
}

fn within(program: &Path) -> Command {
    let mut command = Command::new("timeout");
    command.arg(LIMIT.as_secs().to_string()).arg(program);
    command
}

/// Compiles a program and links it with the library.
fn build(dir: &Path, compiler: &str, source: &Path, extra: &[&str]) -> PathBuf {
    let name = format!("{}{}", source.file_stem().unwrap().to_str().unwrap(), extra.len());
    let program = dir.join(name);
    let mut command = Command::new(compiler);
    command.args(["-g", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]).args(extra);
    command.arg(if compiler == "g++" { "-std=c++17" } else { "-std=gnu11" });
    command.arg("-I").arg(room().join("include")).arg(source).arg("-o").arg(&program);
    command.arg("-L").arg(libraries(dir)).arg("-lsluice").arg("-pthread");
    command.arg(format!("-Wl,-rpath,{}", libraries(dir).display()));
    run(command);
    program
}

#[test]
fn both_compilers_take_the_header_alone() {
    let dir = tempfile::tempdir().unwrap();
    for (compiler, standard, file) in
        [("gcc", "c11", "a.c"), ("gcc", "c2x", "b.c"), ("g++", "c++11", "c.cpp"), ("g++", "c++20", "d.cpp")]
    {
        let source = dir.path().join(file);
        std::fs::write(&source, "#include <sluice.h>\nint main(void) { return SLUICE_OK; }\n").unwrap();
        let mut command = Command::new(compiler);
        command.args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"]).arg(format!("-std={standard}"));
        run({
            command.arg("-I").arg(room().join("include")).arg(source);
            command
        });
    }
}

#[test]
fn the_library_exports_the_list_and_no_more() {
    let mut nm = Command::new("nm");
    nm.args(["-D", "--defined-only", "--format=posix"]).arg(built().join("libsluice.so"));
    let output = run(nm);
    let text = String::from_utf8(output.stdout).unwrap();
    let mut names: Vec<&str> = text.lines().map(|line| line.split(' ').next().unwrap()).collect();
    names.sort_unstable();
    let listed = std::fs::read_to_string(room().join("include/symbols.txt")).unwrap();
    assert_eq!(names, listed.lines().collect::<Vec<_>>(), "see the test of the header for how to change the list");
}

#[test]
fn misuse_has_defined_answers() {
    let dir = tempfile::tempdir().unwrap();
    run(within(&build(dir.path(), "gcc", &room().join("tests/c/misuse.c"), &[])));
}

#[test]
fn many_threads_lose_nothing() {
    let dir = tempfile::tempdir().unwrap();
    run(within(&build(dir.path(), "gcc", &room().join("tests/c/stress.c"), &[])));
}

#[test]
fn callbacks_may_call_anything() {
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), "gcc", &room().join("tests/c/nested.c"), &[]);
    for seed in 1..=4 {
        let mut command = within(&program);
        command.args(["4", "100", &seed.to_string()]);
        run(command);
    }
}

#[test]
fn clients_hear_of_their_own_and_come_and_go() {
    let dir = tempfile::tempdir().unwrap();
    run(within(&build(dir.path(), "gcc", &room().join("tests/c/clients.c"), &[])));
}

/// A trace of a run in which four processes take turns in file 7, and the profile of a hard disk's model.
fn trace_and_profile(dir: &Path) -> [PathBuf; 3] {
    use sluice_trace::{Entry, Meta, Writer};
    let (trace, profile) = (dir.join("run.slt"), dir.join("device.toml"));
    let mut writer = Writer::create(&trace, &Meta::default()).unwrap();
    let file = writer.file(b"file 7").unwrap();
    for n in 0..96_u64 {
        let time = n / 4 * 10_000_000 + n % 4 * 1_000_000;
        let op = sluice_core::Op::Write;
        writer.push(Entry { time, file, app: 0, target: 0, op, offset: n << 16, len: 1 << 16 }).unwrap();
    }
    writer.finish(0).unwrap();
    let measured = sluice_device::profiler::profile_of_model("hdd-7200").unwrap();
    std::fs::write(&profile, measured.to_text()).unwrap();
    [dir.to_owned(), trace, profile]
}

#[test]
fn requests_are_predicted_from_traces_and_from_what_repeats() {
    let dir = tempfile::tempdir().unwrap();
    for flags in [&[][..], &["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]] {
        let mut command = within(&build(dir.path(), "gcc", &room().join("tests/c/predict.c"), flags));
        command.args(trace_and_profile(dir.path())).env("ASAN_OPTIONS", "detect_leaks=1");
        run(command);
        assert!(dir.path().join("learned.slt").exists(), "what was learned is kept");
    }
}

#[test]
fn a_selector_chooses_explains_and_remembers() {
    let dir = tempfile::tempdir().unwrap();
    for flags in [&[][..], &["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]] {
        let mut command = within(&build(dir.path(), "gcc", &room().join("tests/c/select.c"), flags));
        command.arg(dir.path()).env("ASAN_OPTIONS", "detect_leaks=1");
        run(command);
        assert!(dir.path().join("learned").exists(), "what was learned is kept");
        std::fs::remove_file(dir.path().join("learned")).unwrap();
    }
}

#[test]
fn no_error_under_address_sanitizer() {
    let dir = tempfile::tempdir().unwrap();
    let programs = [
        ("tests/c/misuse.c", &[][..]),
        ("tests/c/stress.c", &["8", "500"]),
        ("tests/c/nested.c", &["4", "30"]),
        ("tests/c/clients.c", &["20", "100"]),
    ];
    for (source, args) in programs {
        let flags = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
        let mut command = within(&build(dir.path(), "gcc", &room().join(source), &flags));
        command.args(args).env("ASAN_OPTIONS", "detect_leaks=1");
        run(command);
    }
}

/// Looks at the library's code, too. Leaks of all kinds but what is kept on purpose count.
#[test]
fn no_error_under_valgrind() {
    let dir = tempfile::tempdir().unwrap();
    let programs = [
        ("tests/c/misuse.c", &[][..]),
        ("tests/c/stress.c", &["4", "40"]),
        ("tests/c/nested.c", &["2", "5"]),
        ("tests/c/clients.c", &["4", "50"]),
    ];
    for (source, args) in programs {
        let program = build(dir.path(), "gcc", &room().join(source), &[]);
        let mut command = within(Path::new("valgrind"));
        command.args(["-q", "--error-exitcode=9", "--leak-check=full", "--show-leak-kinds=definite,indirect"]);
        command
            .args(["--errors-for-leak-kinds=definite,indirect", "--fair-sched=yes", "--child-silent-after-fork=yes"])
            .arg(program)
            .args(args);
        run(command);
    }
}

#[test]
fn the_wrapper_for_cpp_reads_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, vec![7; 3_000_001]).unwrap();
    let program = build(dir.path(), "g++", &examples().join("cpp/interleaved.cpp"), &[]);
    let mut command = within(&program);
    let output = run({
        command.arg(&file);
        command
    });
    let text = String::from_utf8(output.stdout).unwrap();
    let missing = within(&program).arg("nowhere").output().unwrap();
    let said = String::from_utf8(missing.stderr).unwrap();
    assert!(missing.status.code() == Some(1) && said.contains("nowhere: No such file"), "{said}");
    assert!(text.starts_with("3000001 bytes of 3000001, requests: 184, batches: "), "{text}");
    let lines = std::fs::read_to_string(examples().join("cpp/sluice.hpp")).unwrap().lines().count();
    assert!(lines <= 80, "the wrapper has {lines} lines");
}

/// The example server, with clients that write and read back interleaved blocks.
#[test]
fn the_example_server_serves() {
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), "gcc", &examples().join("c/fileserver.c"), &[]);
    let missing = within(&program).args(["nowhere", "socket"]).output().unwrap();
    let said = String::from_utf8(missing.stderr).unwrap();
    assert!(missing.status.code() == Some(1) && said.contains("nowhere: No such file"), "{said}");
    for policy in ["noop", "sjf", "aioli", "twins"] {
        let files = tempfile::tempdir().unwrap();
        let socket = files.path().join("socket");
        let mut server = Command::new(&program);
        let mut server = server.arg(files.path()).arg(&socket).env("POLICY", policy).spawn().unwrap();
        std::thread::scope(|scope| {
            for client in 0..4_u64 {
                let socket = &socket;
                scope.spawn(move || be_client(&mut connect(socket), client));
            }
        });
        server.kill().unwrap();
        server.wait().unwrap();
    }
}

fn connect(socket: &Path) -> UnixStream {
    let until = Instant::now() + LIMIT;
    loop {
        match UnixStream::connect(socket) {
            Ok(stream) => return stream,
            Err(error) => assert!(Instant::now() < until, "{}: {error}", socket.display()),
        }
        std::thread::yield_now();
    }
}

fn be_client(stream: &mut UnixStream, client: u64) {
    const LEN: u32 = 8192;
    let block = |n: u64| vec![(client * 50 + n) as u8; LEN as usize];
    let offset = |n: u64| (n * 4 + client) * u64::from(LEN);
    for write in [true, false] {
        for n in 0..40 {
            let mut order = Vec::new();
            [u32::from(write), 1, LEN, client as u32].iter().for_each(|field| order.extend(field.to_ne_bytes()));
            order.extend(offset(n).to_ne_bytes());
            if write {
                order.extend(block(n));
            }
            stream.write_all(&order).unwrap();
            let mut result = [0; 8];
            stream.read_exact(&mut result).unwrap();
            assert_eq!(i64::from_ne_bytes(result), i64::from(LEN));
            if !write {
                let mut data = vec![0; LEN as usize];
                stream.read_exact(&mut data).unwrap();
                assert!(data == block(n), "client {client}, block {n}");
            }
        }
    }
}
