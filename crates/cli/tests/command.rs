//! What holds for every command: version, verbosity, colours, standard streams, JSON.

mod common;

use std::path::Path;
use std::process::{Command, Output, Stdio};

use common::{Foreground, LIMIT, Place, eventually, fuse_works, run, stderr, unmount};

const SCENARIO: &str = "[[application]]\nname = \"reader\"\n[[application.phase]]\ndata = \"64K\"\n";

fn with_input(place: &Place, args: &[&str], input: &str) -> Output {
    common::with_input(place, args, input.as_bytes())
}

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap()
}

/// The build script itself: tests are not built as releases are.
#[test]
fn the_version_names_the_commit_where_there_is_one() {
    let place = Place::new();
    let sources = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut compiler = Command::new("rustc");
    compiler.args(["--edition", "2024", "-o"]).arg(place.path("script")).arg(sources.join("build.rs"));
    assert!(run(&mut compiler).status.success());
    let version = |dir: &Path, variables: &[(&str, &str)]| {
        let mut script = Command::new(place.path("script"));
        script.current_dir(dir).env_remove("SLUICE_COMMIT").env("CARGO_PKG_VERSION", "1.2").env("PROFILE", "release");
        let output = run(script.envs(variables.iter().copied()));
        assert!(output.status.success(), "{}", stderr(&output));
        let said = String::from_utf8(output.stdout).unwrap();
        said.lines().find_map(|line| line.strip_prefix("cargo:rustc-env=SLUICE_VERSION=")).unwrap().to_owned()
    };
    let given = [("SLUICE_COMMIT", "abc 2026-01-31")];
    assert_eq!(version(&place.path("source"), &given), "1.2 (abc 2026-01-31)");
    assert_eq!(version(&place.path("source"), &[]), "1.2", "a packaged source");
    assert_eq!(version(&place.path("source"), &[("PATH", "")]), "1.2", "no git");
    assert_eq!(version(sources, &[("PROFILE", "debug")]), "1.2 (debug build)");
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).current_dir(sources).output().ok()?;
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap().trim().to_owned())
    };
    match git(&["ls-files", "--error-unmatch", "build.rs"]) {
        Some(_) => {
            let commit = git(&["log", "-1", "--abbrev=12", "--format=%h %cs"]).unwrap();
            assert_eq!(version(sources, &[]), format!("1.2 ({commit})"));
        }
        None => eprintln!("SKIP: these sources are in no repository: this test did NOT run to its end"),
    }
    assert!(place.good(&["--version"]).starts_with(concat!("sluice ", env!("CARGO_PKG_VERSION"))));
}

#[test]
fn completions_are_understood_by_the_shell() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(place.good(&["completions", shell]).contains("simulate"), "{shell}");
    }
    std::fs::write(place.path("sluice.bash"), place.good(&["completions", "bash"])).unwrap();
    let script = "source ./sluice.bash && COMP_WORDS=(sluice mount --policy '') COMP_CWORD=3 && \
                  _sluice sluice '' --policy && echo ${COMPREPLY[@]}";
    let output = run(Command::new("bash").args(["-c", script]).current_dir(place.path(".")));
    let said = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(said.contains("hbrr") && said.contains("to-agg"), "{said}{}", stderr(&output));
}

#[test]
fn standard_input_and_output_are_files() {
    let place = Place::new();
    let profile = place.good(&["profile", "--device", "pastel", "--budget", "1s", "--sizes", "8K,64K", "--out", "-"]);
    assert!(profile.contains("\nversion = 1\n") && !profile.contains("saturate"), "{profile}");
    let shown = with_input(&place, &["profile", "show", "-"], &profile);
    assert!(shown.status.success() && shown.stdout.starts_with(b"emulated pastel"), "{}", stderr(&shown));
    let drawn = with_input(&place, &["profile", "show", "-", "--plot", "-"], &profile);
    assert!(drawn.status.success() && drawn.stdout.starts_with(b"<svg"), "{}", stderr(&drawn));
    let damaged = with_input(&place, &["profile", "show", "-"], "version = 1\nmethod = 7\n");
    assert!(stderr(&damaged).contains("standard input") && !damaged.status.success(), "{}", stderr(&damaged));

    let simulated = with_input(&place, &["simulate", "-", "--json", "--out", "@out"], SCENARIO);
    let results = json(&String::from_utf8(simulated.stdout).unwrap());
    assert_eq!((&results[0]["schema"], &results[0]["name"]), (&1.into(), &"scenario".into()));
    assert!(place.good(&["report", "@out", "--out", "-"]).contains("<html"));
    assert!(!place.path("-").exists());
    let wrong = with_input(&place, &["simulate", "-"], "nonsense = 1\n");
    assert!(stderr(&wrong).contains("standard input"), "{}", stderr(&wrong));

    for args in [
        &["profile", "--device", "pastel", "--out", "-", "--json"][..],
        &["profile", "--device", "pastel", "--out", "-", "--plot", "-"],
        &["demo", "--plot", "-", "--json"],
    ] {
        assert!(place.bad(args).contains("standard output takes one thing"), "{args:?}");
    }
}

#[test]
fn a_mount_reads_its_configuration_from_standard_input() {
    if !fuse_works() {
        return;
    }
    let place = Place::new();
    let text = "[mount]\nsource = \"source\"\nmountpoint = \"mnt\"\n[scheduler]\npolicy = \"sjf\"\n";
    let error = with_input(&place, &["mount", "--daemon", "--config", "-"], text);
    assert!(stderr(&error).contains("the background has no standard input"), "{}", stderr(&error));
    std::fs::write(place.path("c.toml"), text).unwrap();
    let mut command = place.sluice(&["mount", "--config", "-"]);
    command.stdin(std::fs::File::open(place.path("c.toml")).unwrap());
    let mount = Foreground::start(command);
    assert_eq!(place.status()["policy"]["name"], "sjf");
    unmount(&place);
    assert!(mount.end().success());
}

#[test]
fn quiet_says_only_results_and_verbose_more() {
    if !fuse_works() {
        return;
    }
    let place = Place::new();
    for before in [true, false] {
        let own = ["mount", "--daemon", "--log", "@log", "@source", "@mnt"];
        let args = if before { [&["-q"][..], &own].concat() } else { [&own[..], &["-q"]].concat() };
        assert_eq!(place.good(&args), "");
        eventually("unmounted", || run(&mut place.sluice(&["unmount", "--quiet", "@mnt"])).status.success());
        assert_eq!(std::fs::read_to_string(place.path("log")).unwrap(), "");
    }
    let mut command = place.sluice(&["mount", "-v", "@source", "@mnt"]);
    command.env("NO_COLOR", "1");
    let mount = Foreground::start(command);
    let line = mount.errors.recv_timeout(LIMIT).unwrap();
    assert!(line.contains("INFO") && line.contains("is mounted") && !line.contains('\u{1b}'), "{line:?}");
    unmount(&place);
    mount.end();
    let error = place.bad(&["-q", "-v", "status", "@mnt"]);
    assert!(error.contains("cannot be used with"), "{error}");
}

/// On a terminal, which `script` makes.
#[test]
fn colours_are_for_terminals_that_want_them() {
    if !fuse_works() || Command::new("script").arg("--version").output().is_err() {
        return eprintln!("SKIP: no FUSE, or no script: this test did NOT run");
    }
    let place = Place::new();
    let logged = |variable: Option<(&str, &str)>| {
        let line = format!("{} mount -v {} {}", env!("CARGO_BIN_EXE_sluice"), place.text("source"), place.text("mnt"));
        let mut command = Command::new("script");
        command.args(["-qec", &line, "/dev/null"]).stdin(Stdio::null()).env_remove("NO_COLOR").env("TERM", "xterm");
        command.env("SLUICE_RUNTIME_DIR", place.path("run")).envs(variable);
        let child = command.stdout(Stdio::piped()).spawn().unwrap();
        eventually("it is mounted", || run(&mut place.sluice(&["status", "@mnt"])).status.success());
        unmount(&place);
        let text = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
        assert!(text.contains("INFO"), "{text}");
        text.contains("\u{1b}[32m")
    };
    assert!(logged(None));
    assert!(!logged(Some(("NO_COLOR", "1"))));
    assert!(!logged(Some(("TERM", "dumb"))));
}

#[test]
fn every_json_says_its_version() {
    let place = Place::new();
    assert_eq!(json(&place.good(&["policy", "--list", "--json"]))["schema"], 1);
    let profile = ["profile", "--device", "pastel", "--budget", "1s", "--sizes", "8K,64K", "--json"];
    assert_eq!(json(&place.good(&profile))["schema"], 1);
    assert_eq!(json(&place.good(&["simulate", "--chaos", "--seeds", "2", "--json"]))["schema"], 1);
    std::fs::write(place.path("log"), "fio version 2 iolog\n/t/a add\n/t/a open\n/t/a read 0 4096\n/t/a close\n")
        .unwrap();
    place.good(&["trace", "import", "@log", "@t.slt"]);
    for what in ["info", "stats", "cat"] {
        assert_eq!(json(&place.good(&["trace", what, "--json", "@t.slt"]))["schema"], 1, "{what}");
    }
    let replayed = place.good(&["trace", "replay", "--json", "@t.slt", "@source"]);
    assert_eq!(json(&replayed)["schema"], 1);
    if fuse_works() {
        let daemon = place.daemon(&[]);
        assert_eq!(place.status()["schema"], 1);
        assert_eq!(json(&place.good(&["policy", "--json", "@mnt"]))["schema"], 1);
        place.good(&["trace", "start", "--out", "@r.slt", "@mnt"]);
        assert_eq!(json(&place.good(&["trace", "stop", "--json", "@mnt"]))["schema"], 1);
        daemon.unmount();
    }
}
