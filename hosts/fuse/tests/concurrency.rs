//! Many threads on one file, compared with what the file must hold.

mod common;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

const THREADS: usize = 4;
/// Neighbouring blocks belong to different threads and share pages.
const BLOCK: usize = 1000;
const BLOCKS: usize = 1200;
const ROUNDS: usize = 1500;

/// xorshift64*
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % n
    }
}

/// Writes and reads blocks of its own; returns what they hold in the end.
fn work(file: &File, thread: usize, seed: u64) -> Vec<(usize, u8)> {
    let mut random = Random(seed + 1 + thread as u64);
    let mut model = vec![0u8; BLOCKS / THREADS];
    let mut buffer = [0; BLOCK];
    for _ in 0..ROUNDS {
        let mine = random.below(model.len());
        let at = ((mine * THREADS + thread) * BLOCK) as u64;
        if random.below(2) == 0 {
            model[mine] = random.below(256) as u8;
            file.write_all_at(&[model[mine]; BLOCK], at).unwrap();
        } else {
            file.read_exact_at(&mut buffer, at).unwrap();
            assert!(buffer.iter().all(|&b| b == model[mine]), "block {mine} of thread {thread}, seed {seed}");
        }
    }
    model.into_iter().enumerate().map(|(mine, value)| (mine * THREADS + thread, value)).collect()
}

fn check(m: &common::Mount, flags: i32) {
    let seed = std::env::var("SLUICE_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(20_260);
    println!("seed {seed}; run again with SLUICE_SEED={seed}");
    let open =
        || OpenOptions::new().read(true).write(true).create(true).truncate(false).custom_flags(flags).open(m.path("f"));
    open().unwrap().set_len((BLOCK * BLOCKS) as u64).unwrap();
    let mut expected = vec![0; BLOCK * BLOCKS];
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let file = open().unwrap();
                scope.spawn(move || work(&file, thread, seed))
            })
            .collect();
        for thread in threads {
            for (block, value) in thread.join().unwrap() {
                expected[block * BLOCK..][..BLOCK].fill(value);
            }
        }
    });
    assert!(fs::read(m.path("f")).unwrap() == expected, "through the mount, seed {seed}");
    open().unwrap().sync_all().unwrap();
    assert!(fs::read(m.source("f")).unwrap() == expected, "in the source, seed {seed}");
}

each_mode! {
    fn random_blocks(m) {
        check(m, 0);
    }

    fn random_blocks_directly(m) {
        check(m, libc::O_DIRECT);
    }

    fn names_come_and_go(m) {
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                scope.spawn(move || {
                    for i in 0..150 {
                        // Two threads each fight for the same names: every call may find them gone.
                        let (a, b) = (m.path(&format!("a{}", (i + thread) % 3)), m.path(&format!("b{}", thread / 2)));
                        let _ = fs::write(&a, b"x");
                        let _ = fs::hard_link(&a, &b);
                        let _ = fs::rename(&b, &a);
                        let _ = fs::read_dir(m.path("")).unwrap().inspect(|entry| assert!(entry.is_ok())).count();
                        let _ = fs::remove_file(&a);
                        let _ = fs::remove_file(&b);
                    }
                });
            }
        });
        for entry in fs::read_dir(m.path("")).unwrap() {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
        assert!(fs::read_dir(m.source("")).unwrap().next().is_none());
    }
}
