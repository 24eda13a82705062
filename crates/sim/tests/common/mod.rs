//! What several tests simulate.

/// A program that reads a file by turns, and one that writes own files and begins a little later.
pub const TWO_PROGRAMS: &str = r#"
    [clients]
    nodes = 4
    [servers]
    count = 4
    in_flight = 4
    [[application]]
    name = "a"
    processes = 8
    [[application.phase]]
    pattern = "strided"
    request = "32K"
    data = "512K"
    [[application]]
    name = "b"
    processes = 4
    start = "5ms"
    [[application.phase]]
    op = "write"
    files = "per-process"
    request = "16K"
    data = "256K"
    depth = 4
"#;
