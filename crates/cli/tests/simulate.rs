//! `sluice simulate` and `sluice report`, as people use them.

mod common;

use common::Place;
use std::fs;
use std::process::{Command, Output};

const TWO: &str = r#"
title = "two algorithms"
[servers]
count = 2
in_flight = 4
[[application]]
name = "reader"
processes = 4
[[application.phase]]
pattern = "strided"
request = "32K"
data = "256K"
[report]
compare = "algorithm"
baseline = "noop"
[[axis]]
name = "algorithm"
key = "servers.policy"
values = ["noop", "aioli"]
"#;

fn sluice(place: &Place, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    command.args(args).current_dir(place.path("source")).output().unwrap()
}

fn good(place: &Place, args: &[&str]) -> String {
    let output = sluice(place, args);
    assert!(output.status.success(), "sluice {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_file_becomes_a_table_files_and_a_page() {
    let place = Place::new();
    fs::write(place.path("source/two.toml"), TWO).unwrap();
    let table = good(&place, &["simulate", "two.toml", "--seeds", "3", "--out", "out"]);
    for word in ["two algorithms", "2 runs x 3 seeds", "less time than algorithm noop", "aioli", "±"] {
        assert!(table.contains(word), "{word} is missing: {table}");
    }
    let runs = fs::read_to_string(place.path("source/out/runs.csv")).unwrap();
    assert_eq!(runs.lines().count(), 7, "{runs}");
    let columns = runs.lines().map(|line| line.split(',').count()).collect::<Vec<_>>();
    assert!(columns.windows(2).all(|pair| pair[0] == pair[1]), "{runs}");
    assert!(good(&place, &["report", "out"]).contains("out/report.html"));
    let page = fs::read_to_string(place.path("source/out/report.html")).unwrap();
    assert!(page.contains("two algorithms") && page.contains("\"path\""));
    seen(&place, "out/report.html");
}

/// Looks at a page as a browser would show it: see `page.mjs`.
fn seen(place: &Place, page: &str) {
    let looker = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/page.mjs");
    let output = Command::new("node").arg(looker).arg(place.path("source").join(page)).output();
    let output = output.expect("node looks at pages: `make setup-tests` installs it");
    assert!(output.status.success(), "{page}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_page_of_many_applications_and_long_names_can_be_read() {
    let place = Place::new();
    let (head, axis) = TWO.split_once("[report]\ncompare = \"algorithm\"\nbaseline = \"noop\"\n").unwrap();
    let writers: String = (0..9)
        .map(|at| {
            let phase =
                "[[application.phase]]\npattern = \"contiguous\"\nop = \"write\"\nrequest = \"8K\"\ndata = \"256K\"\n";
            format!("[[application]]\nname = \"WWWW-writer-{at}\"\nprocesses = 2\n{phase}")
        })
        .collect();
    fs::write(place.path("source/many.toml"), format!("scale = \"1/2\"\n{head}{writers}{axis}")).unwrap();
    good(&place, &["simulate", "many.toml", "--seeds", "2", "--out", "many", "--record"]);
    good(&place, &["report", "many"]);
    seen(&place, "many/report.html");
}

#[test]
fn the_same_command_gives_the_same_digests() {
    let place = Place::new();
    fs::write(place.path("source/two.toml"), TWO).unwrap();
    let json = |jobs: &str| good(&place, &["simulate", "two.toml", "--json", "--seeds", "2", "--jobs", jobs]);
    assert_eq!(json("1"), json("2"));
    let other = |args: &[&str]| good(&place, &[&["simulate", "two.toml", "--json", "--seeds", "2"][..], args].concat());
    assert_eq!(other(&["--seed", "1"]), json("1"));
    assert_eq!(other(&["--seed", "5"]), other(&["--set", "seed=5"]));
    assert_ne!(other(&["--seed", "5"]), json("1"));
    let parsed: serde_json::Value = serde_json::from_str(&json("1")).unwrap();
    assert_eq!(parsed[0]["rows"].as_array().unwrap().len(), 2);
}

#[test]
fn mistakes_are_explained() {
    let place = Place::new();
    fs::write(place.path("source/two.toml"), TWO).unwrap();
    fs::write(place.path("source/bad.toml"), "name = 3").unwrap();
    fs::create_dir(place.path("source/empty")).unwrap();
    let cases: &[(&[&str], &str)] = &[
        (&["simulate"], "name a scenario file"),
        (&["simulate", "none.toml"], "none.toml: No such file"),
        (&["simulate", "empty"], "there is no scenario (*.toml)"),
        (&["simulate", "bad.toml"], "bad.toml"),
        (&["simulate", "two.toml", "--set", "servers.polcy=sjf"], "did you mean \"policy\"?"),
        (&["simulate", "two.toml", "--only", "algoritm=noop"], "did you mean \"algorithm\"?"),
        (&["simulate", "two.toml", "--only", "algorithm=foo"], "no value is called \"foo\"; there are noop, aioli\n"),
        (&["simulate", "two.toml", "--only", "algorithm=sjf"], "there are noop, aioli"),
        (&["simulate", "two.toml", "--set", "servers"], "is not KEY=VALUE"),
        (&["simulate", "two.toml", "--chaos"], "cannot be used with"),
        (&["simulate", "two.toml", "--out", "two.toml"], "--out: two.toml is not a directory"),
        (&["report", "empty"], "make some with `sluice simulate FILE --out DIR`"),
        (&["report", "nowhere"], "cannot read nowhere"),
    ];
    for (args, wanted) in cases {
        let output = sluice(&place, args);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(wanted), "sluice {args:?} says {error}");
    }
}

#[test]
fn chaos_says_what_it_survived() {
    let place = Place::new();
    let text = good(&place, &["simulate", "--chaos", "--seed", "5", "--seeds", "20"]);
    assert!(text.contains("20 experiments") && text.contains("nothing was lost or done twice"), "{text}");
    assert_eq!(text, good(&place, &["simulate", "--chaos", "--seed", "5", "--seeds", "20", "--jobs", "1"]));
}
