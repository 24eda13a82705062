//! The workloads: what runs, on which data, and what is counted.

use std::ffi::OsString;
use std::path::Path;

use super::data::{self, Data, SMALL_DIRS, SMALL_FILES_OF_A_DIR, STREAM_FILES, WRITTEN_FILES};

/// What a workload's figure is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unit {
    /// Millions of bytes in a second, read and written.
    MegaBytes,
    /// Operations in a second.
    Operations,
    /// Files in a second.
    Files,
    /// Committed transactions in a second.
    Transactions,
}

impl Unit {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Unit::MegaBytes => "MB/s",
            Unit::Operations => "ops/s",
            Unit::Files => "files/s",
            Unit::Transactions => "transactions/s",
        }
    }
}

/// Who makes the requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Program {
    /// fio, with these groups of jobs.
    Fio(&'static [Jobs]),
    /// A part of `programs.py`.
    Python(&'static str),
}

/// Jobs of fio that do the same, each on files of its own or all on one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Jobs {
    /// What the group is called in the results.
    pub(crate) name: &'static str,
    count: u32,
    files: Files,
    rw: &'static str,
    block: u32,
    /// Requests of a job at a time; above 1 with asynchronous I/O.
    depth: u32,
    /// Further options.
    options: &'static [&'static str],
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Files {
    /// The files of streams, dealt out to the jobs, which take theirs one after the other.
    Own,
    /// The same, but those of the first and of the second half of the disk are for different groups.
    OwnOfHalf(usize),
    /// All files of streams, at random.
    All,
    /// One file, of which job `i` of `n` takes each `n`th block from block `i` on.
    Shared,
    /// Files that are written, one for each job.
    Written,
    /// Short ones, by one job, which opens one after the other.
    Short,
}

/// Something that programs do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    /// What it is, for people.
    pub(crate) about: &'static str,
    /// Bypasses the page cache.
    pub(crate) direct: bool,
    pub(crate) unit: Unit,
    pub(crate) program: Program,
    pub(crate) needs: &'static [Data],
}

const fn jobs(count: u32, files: Files, rw: &'static str, block: u32) -> Jobs {
    Jobs { name: "jobs", count, files, rw, block, depth: 1, options: &[] }
}

const fn streams(name: &'static str, about: &'static str, direct: bool, group: &'static [Jobs]) -> Workload {
    Workload { name, about, direct, unit: Unit::MegaBytes, program: Program::Fio(group), needs: &[Data::Streams] }
}

const K4: u32 = 4 << 10;
const K16: u32 = 16 << 10;
const K64: u32 = 64 << 10;

const STREAM_AGAINST_FILES: &[Jobs] = &[
    Jobs { name: "stream", ..jobs(1, Files::OwnOfHalf(1), "read", K64) },
    Jobs { name: "files", ..jobs(1, Files::Short, "read", K64) },
];

/// All of them.
pub(crate) const WORKLOADS: &[Workload] = &[
    streams("stream-1", "1 sequential reader, 64K, O_DIRECT", true, &[jobs(1, Files::Own, "read", K64)]),
    streams("stream-2", "2 sequential readers, 64K, O_DIRECT", true, &[jobs(2, Files::Own, "read", K64)]),
    streams("stream-4", "4 sequential readers, 64K, O_DIRECT", true, &[jobs(4, Files::Own, "read", K64)]),
    streams("stream-8", "8 sequential readers, 64K, O_DIRECT", true, &[jobs(8, Files::Own, "read", K64)]),
    streams("stream-16", "16 sequential readers, 64K, O_DIRECT", true, &[jobs(16, Files::Own, "read", K64)]),
    streams("stream-32", "32 sequential readers, 64K, O_DIRECT", true, &[jobs(32, Files::Own, "read", K64)]),
    streams("stream-8-buffered", "8 sequential readers, 64K", false, &[jobs(8, Files::Own, "read", K64)]),
    Workload {
        needs: &[Data::Shared],
        ..streams(
            "strided-8",
            "8 readers of one file, 64K by turns, O_DIRECT",
            true,
            &[jobs(8, Files::Shared, "read", K64)],
        )
    },
    Workload {
        needs: &[Data::Shared],
        ..streams(
            "strided-8-buffered",
            "8 readers of one file, 16K by turns",
            false,
            &[jobs(8, Files::Shared, "read", K16)],
        )
    },
    Workload {
        unit: Unit::Operations,
        ..streams("random-1", "random reads, 4K, depth 1, O_DIRECT", true, &[jobs(1, Files::All, "randread", K4)])
    },
    Workload {
        unit: Unit::Operations,
        ..streams(
            "random-32",
            "random reads, 4K, depth 32, O_DIRECT",
            true,
            &[Jobs { depth: 32, ..jobs(1, Files::All, "randread", K4) }],
        )
    },
    Workload {
        unit: Unit::Operations,
        ..streams("random-16-buffered", "16 random readers, 4K", false, &[jobs(16, Files::All, "randread", K4)])
    },
    Workload {
        needs: &[Data::Written],
        unit: Unit::Operations,
        ..streams(
            "mixed-16",
            "8 jobs of 70 % random reads and 30 % writes, 4K, depth 2, O_DIRECT",
            true,
            &[Jobs { depth: 2, options: &["--rwmixread=70"], ..jobs(8, Files::Written, "randrw", K4) }],
        )
    },
    Workload {
        needs: &[Data::Streams, Data::Written],
        ..streams(
            "writer-against-readers",
            "1 sequential writer against 8 sequential readers, 64K, O_DIRECT",
            true,
            &[
                Jobs { name: "writer", ..jobs(1, Files::Written, "write", K64) },
                Jobs { name: "readers", ..jobs(8, Files::Own, "read", K64) },
            ],
        )
    },
    Workload {
        needs: &[Data::Streams, Data::Written],
        ..streams(
            "writer-against-readers-buffered",
            "1 sequential writer with fsync every 8M against 8 sequential readers, 64K",
            false,
            &[
                Jobs { name: "writer", options: &["--fsync=128"], ..jobs(1, Files::Written, "write", K64) },
                Jobs { name: "readers", ..jobs(8, Files::Own, "read", K64) },
            ],
        )
    },
    streams(
        "stream-against-random",
        "1 sequential reader, 64K, against 4 random ones, 4K, O_DIRECT",
        true,
        &[
            Jobs { name: "stream", ..jobs(1, Files::OwnOfHalf(0), "read", K64) },
            Jobs { name: "random", ..jobs(4, Files::OwnOfHalf(1), "randread", K4) },
        ],
    ),
    Workload {
        needs: &[Data::Streams, Data::Short],
        ..streams(
            "stream-against-files",
            "1 sequential reader, 64K, against 1 that reads files of 256K one after the other, O_DIRECT",
            true,
            STREAM_AGAINST_FILES,
        )
    },
    Workload {
        needs: &[Data::Streams, Data::Short],
        ..streams(
            "stream-against-files-buffered",
            "1 sequential reader, 64K, against 1 that reads files of 256K one after the other",
            false,
            STREAM_AGAINST_FILES,
        )
    },
    Workload {
        needs: &[Data::Written],
        ..streams("writers-4", "4 sequential writers, 64K, O_DIRECT", true, &[jobs(4, Files::Written, "write", K64)])
    },
    Workload {
        needs: &[Data::Written],
        ..streams(
            "writers-4-buffered",
            "4 sequential writers, 64K, fsync every 8M",
            false,
            &[Jobs { options: &["--fsync=128"], ..jobs(4, Files::Written, "write", K64) }],
        )
    },
    Workload {
        needs: &[Data::Written],
        unit: Unit::Operations,
        ..streams(
            "fsync-4",
            "4 writers, 4K at random, each with fsync",
            false,
            &[Jobs { options: &["--fsync=1"], ..jobs(4, Files::Written, "randwrite", K4) }],
        )
    },
    Workload {
        name: "create-files",
        about: "4 processes create files of 8K, each with fsync",
        direct: false,
        unit: Unit::Files,
        program: Program::Python("create"),
        needs: &[],
    },
    Workload {
        name: "read-files",
        about: "4 processes read files of 8K in random order",
        direct: false,
        unit: Unit::Files,
        program: Program::Python("read"),
        needs: &[Data::Small],
    },
    Workload {
        name: "database",
        about: "3 SQLite databases, each read and updated at random by turns, a transaction each",
        direct: false,
        unit: Unit::Transactions,
        program: Program::Python("database"),
        needs: &[Data::Database],
    },
];

impl Workload {
    /// The arguments with which fio runs it below `dir` for so many seconds; its seed is the round's.
    pub(crate) fn fio(&self, groups: &[Jobs], dir: &Path, seconds: u32, shared_bytes: u64, seed: u64) -> Vec<OsString> {
        let mut args: Vec<OsString> = vec![
            "--output-format=json".into(),
            "--thread".into(),
            "--time_based".into(),
            "--group_reporting".into(),
            "--norandommap".into(),
            "--fallocate=none".into(),
            "--invalidate=0".into(),
            format!("--randseed={seed}").into(),
            format!("--runtime={seconds}").into(),
            format!("--direct={}", u8::from(self.direct)).into(),
        ];
        for group in groups {
            for job in 0..group.count {
                args.push(format!("--name={}", group.name).into());
                // Results are summed up for each group, not for all jobs.
                if job == 0 {
                    args.push("--new_group".into());
                }
                args.extend(group.job(job, dir, shared_bytes));
            }
        }
        args
    }
}

impl Jobs {
    fn job(&self, job: u32, dir: &Path, shared_bytes: u64) -> Vec<OsString> {
        let (engine, block) = (if self.depth > 1 { "libaio" } else { "psync" }, u64::from(self.block));
        let mut args: Vec<OsString> = vec![
            format!("--ioengine={engine}").into(),
            format!("--iodepth={}", self.depth).into(),
            format!("--bs={block}").into(),
        ];
        let mut rw = self.rw.to_owned();
        let files: Vec<String> = match self.files {
            Files::Own => deal(0..STREAM_FILES, job as usize, self.count as usize),
            Files::OwnOfHalf(half) => {
                let half = half * STREAM_FILES / 2..(half + 1) * STREAM_FILES / 2;
                deal(half, job as usize, self.count as usize)
            }
            Files::All => (0..STREAM_FILES).map(Data::stream).collect(),
            Files::Shared => {
                let step = u64::from(self.count);
                // After each block goes past those of the others.
                rw = format!("{rw}:{}", block * (step - 1));
                args.push(format!("--offset={}", block * u64::from(job)).into());
                args.push(format!("--size={}", shared_bytes - block * u64::from(job)).into());
                vec![Data::SHARED.to_owned()]
            }
            Files::Written => vec![Data::written(job as usize % WRITTEN_FILES)],
            Files::Short => {
                args.extend(data::short_args(dir, shared_bytes));
                Vec::new()
            }
        };
        let order = if rw.starts_with("rand") { "random" } else { "sequential" };
        let paths: Vec<String> = files.iter().map(|file| dir.join(file).display().to_string()).collect();
        args.extend([format!("--rw={rw}").into(), format!("--file_service_type={order}").into()]);
        if !paths.is_empty() {
            args.push(format!("--filename={}", paths.join(":")).into());
        }
        args.extend(self.options.iter().map(OsString::from));
        args
    }
}

/// The files of a job: as many as of any other, those that lie together on the disk.
fn deal(files: std::ops::Range<usize>, job: usize, jobs: usize) -> Vec<String> {
    let each = files.len() / jobs;
    (0..each).map(|file| Data::stream(files.start + job * each + file)).collect()
}

/// The arguments of `programs.py`.
pub(crate) fn python(part: &str, dir: &Path, seconds: u32, seed: u64) -> Vec<OsString> {
    let numbers = [u64::from(seconds), seed, SMALL_DIRS as u64, SMALL_FILES_OF_A_DIR as u64];
    let numbers = numbers.map(|number| number.to_string().into());
    [part.into(), dir.as_os_str().to_owned()].into_iter().chain(numbers).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_share_the_files_and_have_none_twice() {
        for jobs in [1, 2, 4, 8, 16, 32] {
            let mut all: Vec<String> = (0..jobs).flat_map(|job| deal(0..STREAM_FILES, job, jobs)).collect();
            all.sort();
            all.dedup();
            assert_eq!(all.len(), STREAM_FILES);
        }
    }

    #[test]
    fn workloads_have_names_of_their_own_and_those_that_are_buffered_say_nothing_else() {
        let mut names: Vec<&str> = WORKLOADS.iter().map(|workload| workload.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), WORKLOADS.len());
        assert!(WORKLOADS.iter().all(|workload| workload.direct == workload.about.contains("O_DIRECT")));
    }

    #[test]
    fn strided_jobs_take_turns() {
        let workload = WORKLOADS.iter().find(|workload| workload.name == "strided-8").unwrap();
        let Program::Fio(groups) = workload.program else { panic!("not fio") };
        let args = workload.fio(groups, Path::new("/d"), 1, 1 << 20, 1);
        let has = |text: &str| args.iter().any(|arg| arg == text);
        assert!(has("--rw=read:458752") && has("--offset=65536") && has("--size=983040"), "{args:?}");
    }
}
