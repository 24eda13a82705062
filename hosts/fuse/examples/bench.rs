//! The benchmark by hand: `cargo run --release --example bench -- DIR [none|auto|writeback] [SECONDS] [REPETITIONS]`.

use std::sync::Arc;

use sluice_fuse::CacheMode;
use sluice_fuse::bench::{BenchOptions, run};
use sluice_runtime::VolumeConfig;
use sluice_storage::posix::{PosixOptions, PosixStorage};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let mut options = BenchOptions::new(args.next().ok_or("which directory?")?.into());
    options.mount.cache = match args.next().as_deref() {
        Some("none") => CacheMode::None,
        Some("writeback") => CacheMode::Writeback,
        _ => CacheMode::Auto,
    };
    options.seconds = args.next().map_or(Ok(options.seconds), |text| text.parse())?;
    options.repetitions = args.next().map_or(Ok(options.repetitions), |text| text.parse())?;
    println!("load       block direct  sluice MB/s  plain MB/s  ratio (min..max)");
    let storage = |dir: &std::path::Path| {
        PosixStorage::open(dir, PosixOptions::default()).map(|s| Arc::new(s) as Arc<dyn sluice_storage::Storage>)
    };
    let result = run(&options, storage, VolumeConfig::default(), |c| {
        println!(
            "{:9} {:>6} {:6}  {:11.1}  {:10.1}  {:.3} ({:.3}..{:.3})",
            c.load, c.block, c.direct, c.sluice_mb_s, c.plain_mb_s, c.ratio, c.ratio_min, c.ratio_max
        );
    })?;
    println!("{}; {}", result.storage, result.setup);
    Ok(())
}
