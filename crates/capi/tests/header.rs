//! The committed header is the one that the sources give, and the functions are those of the committed list.
//!
//! After a wanted change: `UPDATE_ABI=1 cargo test -p sluice-capi --test header`.

use std::path::Path;

fn same_as_committed(path: &Path, made: &str) {
    if std::env::var_os("UPDATE_ABI").is_some() {
        std::fs::write(path, made).unwrap();
    }
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        committed == made,
        "{} is not up to date. If the change of the interface is wanted, run\n  UPDATE_ABI=1 cargo test -p sluice-capi --test header\nand commit the result.",
        path.display()
    );
}

/// Without the sections on safety: those are for callers in Rust.
fn for_c(generated: &str) -> String {
    let mut header = String::new();
    let mut skipping = false;
    for line in generated.lines().map(str::trim_end) {
        if line == "// # Safety" {
            skipping = true;
            if header.ends_with("//\n") {
                header.truncate(header.len() - "//\n".len()); // the empty line before it
            }
        }
        skipping &= line.starts_with("//");
        if !skipping {
            header.push_str(line);
            header.push('\n');
        }
    }
    header
}

#[test]
fn the_header_is_up_to_date() {
    let room = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(room.join("cbindgen.toml")).unwrap();
    let mut made = Vec::new();
    cbindgen::Builder::new().with_crate(room).with_config(config).generate().unwrap().write(&mut made);
    same_as_committed(&room.join("include/sluice.h"), &for_c(&String::from_utf8(made).unwrap()));
}

/// As the sources mark them; what the built library exports is compared with the same list by the tests in C.
#[test]
fn the_exported_functions_are_those_of_the_list() {
    let room = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(room.join("src/calls.rs")).unwrap();
    let marked = text.split("#[unsafe(no_mangle)]").skip(1);
    let mut names: Vec<&str> =
        marked.map(|rest| rest.split("fn ").nth(1).unwrap().split('(').next().unwrap()).collect();
    names.sort_unstable();
    same_as_committed(&room.join("include/symbols.txt"), &(names.join("\n") + "\n"));
    let packaged = std::fs::read_to_string(room.join("../../debian/libsluice0.symbols")).unwrap();
    for name in names {
        assert!(packaged.contains(&format!("\n {name}@Base ")), "debian/libsluice0.symbols lacks {name}");
    }
}
