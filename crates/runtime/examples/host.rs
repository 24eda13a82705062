//! A program that reads a file from eight threads, in strides, through the scheduler: `cargo run --example host -- FILE`.
//!
//! The host does its own I/O: the scheduler only says what goes next. Neighbouring blocks that meet in the queue come back
//! as one batch and are read with one call.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sluice_core::{AppId, Batch, FileId, Op, Outcome, Part, PolicyConfig, Request, TargetId};
use sluice_runtime::{Callbacks, Driving, Scheduler, SchedulerConfig, Shutdown, Started};

const BLOCK: u32 = 16_384;
const THREADS: u64 = 8;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: host FILE")?;
    let file = Arc::new(File::open(&path)?);
    let blocks = file.metadata()?.size().div_ceil(BLOCK.into());
    let bytes = Arc::new(AtomicU64::new(0));

    let read = {
        let (file, bytes) = (file, bytes.clone());
        move |parts: &[Part], started: &Started<'_>| {
            let len = parts.iter().map(|part| part.request.len as usize).sum();
            let result = file.read_at(&mut vec![0; len], parts[0].request.offset);
            let mut left = *result.as_ref().unwrap_or(&0);
            for part in parts {
                let done = left.min(part.request.len as usize);
                left -= done;
                bytes.fetch_add(done as u64, Ordering::Relaxed);
                let error = result.as_ref().err().and_then(std::io::Error::raw_os_error).unwrap_or(0);
                started.complete(part.id, Outcome { bytes: done as u32, error });
            }
        }
    };
    let one = read.clone();
    let callbacks = Callbacks::new(
        move |part: &Part, started: &Started<'_>| one(&[*part], started),
        |request, errno| eprintln!("block at {} was not read: error {errno}", request.offset),
    )
    .with_batch(move |batch: &Batch, started: &Started<'_>| read(batch.parts(), started));

    // A thread of its own, because the callbacks do the I/O themselves and so take long.
    let config = SchedulerConfig { driving: Driving::Thread, ..SchedulerConfig::new(PolicyConfig::parse("to-agg")?) };
    let scheduler = Scheduler::start(config)?;
    let client = scheduler.attach(Arc::new(callbacks))?;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let client = &client;
            scope.spawn(move || {
                for block in (thread..blocks).step_by(THREADS as usize) {
                    let offset = block * u64::from(BLOCK);
                    let request = Request {
                        cookie: block,
                        file: FileId(1),
                        app: AppId(thread as u32),
                        target: TargetId(0),
                        op: Op::Read,
                        offset,
                        len: BLOCK,
                    };
                    if let Err(error) = client.submit(0, request) {
                        eprintln!("block at {offset}: {error}");
                    }
                }
            });
        }
    });
    scheduler.shutdown(Shutdown::Drain { timeout: Duration::from_secs(30) });
    let total = scheduler.snapshot().total.total();
    println!(
        "{} bytes; requests: {}, batches: {} (of {:.1} requests)",
        bytes.load(Ordering::Relaxed),
        total.batched_requests,
        total.batches,
        total.mean_aggregation()
    );
    Ok(())
}
