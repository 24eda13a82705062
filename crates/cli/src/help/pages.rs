//! The pages. A test asks for one of each command, and that its examples are command lines that are understood.

use super::{Page, Variable};

/// What every command heeds.
pub(super) const COMMON_VARIABLES: &[Variable] = &[("NO_COLOR", "if set and not empty, nothing is coloured")];

const RUNTIME: [Variable; 2] = [
    (
        "SLUICE_RUNTIME_DIR",
        "directory of the control sockets [default: /run/sluice for root, else sluice/ in XDG_RUNTIME_DIR]",
    ),
    ("XDG_RUNTIME_DIR", "see SLUICE_RUNTIME_DIR; without it /tmp/sluice-UID"),
];
const STATE: [Variable; 2] = [
    (
        "SLUICE_STATE_DIR",
        "directory of what was learned [default: /var/lib/sluice for root, else sluice/ in XDG_STATE_HOME]",
    ),
    ("XDG_STATE_HOME", "for others than root, logs are in its sluice/, too [default: ~/.local/state]"),
];
const DISKS: Variable =
    ("SLUICE_DISK_DIR", "directory of the disks' state files and images [default: /var/lib/sluice/disks]");
const PYTHON: Variable = ("SLUICE_PYTHON", "the Python that has the package sluicegate [default: python3]");

/// Of commands that ask a mount.
const ASKS: &[Variable] = &RUNTIME;
const MOUNTS: &[Variable] = &[RUNTIME[0], RUNTIME[1], STATE[0], STATE[1]];
const FAILED: &str = "it failed; standard error says why";
const NOBODY: &str = "nobody serves the mount, or it refused";

pub(super) static PAGES: &[Page] = &[
    Page {
        command: "",
        examples: &[
            ("sluice demo", "see what the algorithms do, on emulated disks; nothing of yours is touched"),
            ("sluice mount /scratch /mnt/scratch --daemon", "put the scheduler in front of a directory"),
            ("sluice status /mnt/scratch", "what it does now"),
            ("sluice help mount", "everything about one command; man sluice-mount has the same"),
        ],
        variables: &[RUNTIME[0], RUNTIME[1], STATE[0], STATE[1], DISKS, PYTHON],
        success: "done",
        failure: FAILED,
        interruptible: true,
    },
    Page {
        command: "mount",
        examples: &[
            (
                "sluice mount /lustre/scratch /mnt/scratch",
                "any directory; what serves it best is chosen while it is in use; until Ctrl-C",
            ),
            (
                "sluice mount --policy sjf /data /mnt/data --daemon",
                "with one algorithm, which stays; return when it is usable",
            ),
            (
                "sluice mount --target /disk1 --target /disk2 --stripe 64K /mnt/volume",
                "several directories as one striped volume",
            ),
            (
                "sluice mount --emulate hdd-7200 /tmp/a /mnt/a",
                "real bytes, the computed times of an emulated hard disk",
            ),
            (
                "sluice mount /data /mnt/data",
                "with an SSD before the disk, after: sluice disk create data --disk /dev/sdb --tier /ssd --mount /data",
            ),
            ("sluice mount --config /etc/sluice/data.toml", "everything as a file says"),
            ("sluice mount -o remount,ro /mnt/data", "refuse changes from now on"),
        ],
        variables: MOUNTS,
        success: "the mount was ended; with --daemon it is usable",
        failure: "it could not be mounted, or serving it failed",
        interruptible: false,
    },
    Page {
        command: "unmount",
        examples: &[
            ("sluice unmount /mnt/data", "end the mount and wait for its process"),
            ("sluice unmount --lazy /mnt/data", "even if it is in use"),
        ],
        variables: ASKS,
        success: "it is not mounted any more",
        failure: "nothing of Sluicegate is mounted there, or it is in use",
        interruptible: false,
    },
    Page {
        command: "status",
        examples: &[
            ("sluice status /mnt/data", "once"),
            ("sluice status --watch /mnt/data", "every second"),
            ("sluice status --json /mnt/data", "for programs; docs/status.md explains the fields"),
        ],
        variables: ASKS,
        success: "it was printed",
        failure: NOBODY,
        interruptible: false,
    },
    Page {
        command: "policy",
        examples: &[
            ("sluice policy --list", "all algorithms and their parameters"),
            ("sluice policy /mnt/data", "that of a mount"),
            ("sluice policy /mnt/data mlf wait_time=500us", "another one from now on"),
        ],
        variables: ASKS,
        success: "it was printed, and changed if that was asked for",
        failure: "nobody serves the mount, or the change was refused as a whole",
        interruptible: false,
    },
    Page {
        command: "trace",
        examples: &[
            ("sluice trace start /mnt/data --out day.slt", "record a mount that is in use"),
            ("sluice trace info day.slt", "what is in it"),
        ],
        variables: &[RUNTIME[0], RUNTIME[1], PYTHON],
        success: "done",
        failure: FAILED,
        interruptible: false,
    },
    Page {
        command: "trace start",
        examples: &[
            ("sluice trace start /mnt/data --out day.slt", "record every request that reaches the scheduler"),
            ("sluice trace start /mnt/data --checksums", "with checksums of the data, for trace replay --check"),
        ],
        variables: ASKS,
        success: "it is being recorded",
        failure: "nobody serves the mount, it records already, or the file cannot be written",
        interruptible: false,
    },
    Page {
        command: "trace stop",
        examples: &[("sluice trace stop /mnt/data", "end the recording; says how many requests there are")],
        variables: ASKS,
        success: "the trace is complete",
        failure: "nothing was being recorded, or the recording had ended early",
        interruptible: false,
    },
    Page {
        command: "trace predict",
        examples: &[
            ("sluice trace predict /mnt/data run1.slt run2.slt", "expect what these runs did"),
            ("sluice trace predict /mnt/data learn", "notice what repeats"),
            ("sluice trace predict /mnt/data off", "no prediction any more"),
        ],
        variables: ASKS,
        success: "the mount predicts from them",
        failure: "nobody serves the mount, or the change was refused as a whole",
        interruptible: false,
    },
    Page {
        command: "trace info",
        examples: &[
            ("sluice trace info day.slt", "files, sizes, read share, bursts, duration"),
            ("sluice trace info day.slt --plot day.svg", "and a picture of what arrived when"),
            ("sluice trace info - < day.slt", "of standard input, as out of another program"),
        ],
        variables: &[],
        success: "it was printed",
        failure: FAILED,
        interruptible: false,
    },
    Page {
        command: "trace stats",
        examples: &[("sluice trace stats day.slt", "requests and bytes of each file")],
        variables: &[],
        success: "it was printed",
        failure: FAILED,
        interruptible: false,
    },
    Page {
        command: "trace cat",
        examples: &[
            ("sluice trace cat -n 20 day.slt", "the first 20 requests"),
            ("sluice trace cat --json day.slt | jq .offset", "for programs, one object a line"),
        ],
        variables: &[],
        success: "they were printed",
        failure: FAILED,
        interruptible: false,
    },
    Page {
        command: "trace merge",
        examples: &[
            ("sluice trace merge a.slt b.slt --out both.slt", "in the order of the clock"),
            ("sluice trace merge a.slt b.slt --align start --out both.slt", "as if they had begun together"),
        ],
        variables: &[],
        success: "the trace is written",
        failure: FAILED,
        interruptible: false,
    },
    Page {
        command: "trace convert",
        examples: &[
            ("sluice trace convert day.slt day.csv", "a line for each request"),
            ("sluice trace convert day.slt day.parquet", "for data frames; needs the Python package"),
            ("sluice trace convert --format csv day.slt - | head", "on standard output"),
            ("sluice trace convert cut.slt whole.slt", "a whole trace of one that a killed recorder left"),
        ],
        variables: &[PYTHON],
        success: "the file is written",
        failure: FAILED,
        interruptible: false,
    },
    Page {
        command: "trace import",
        examples: &[
            ("sluice trace import job.darshan job.slt --below /scratch", "Darshan's log of a job; /scratch is mounted"),
            ("sluice trace import fio.log fio.slt", "what fio --write_iolog=fio.log wrote"),
            ("sluice trace import fio.log - | sluice trace info -", "look at it, and keep nothing"),
        ],
        variables: &[PYTHON],
        success: "the trace is written",
        failure: FAILED,
        interruptible: false,
    },
    Page {
        command: "trace replay",
        examples: &[
            ("sluice trace replay day.slt /mnt/other", "the same requests, as fast as possible"),
            ("sluice trace replay --timed day.slt /mnt/other", "each at its time"),
            ("sluice trace replay --check day.slt /mnt/data", "compare what is read with the checksums in the trace"),
        ],
        variables: &[],
        success: "all requests were done, and no data differed",
        failure: "it failed, or data differed",
        interruptible: true,
    },
    Page {
        command: "check",
        examples: &[
            ("sluice check --target /disk1 --target /disk2", "look, change nothing"),
            ("sluice check --repair --target /disk1 --target /disk2", "and put right what can be"),
        ],
        variables: &[],
        success: "all is well, or was repaired",
        failure: "something is left to do, or the directories are not one volume, or it is mounted",
        interruptible: false,
    },
    Page {
        command: "disk",
        examples: &[
            (
                "sluice disk create slow --model hdd-7200 --size 20G --mkfs ext4 --mount /mnt/slow",
                "a disk to measure on",
            ),
            ("sluice disk remove slow", "and no trace of it"),
        ],
        variables: &[DISKS, RUNTIME[0]],
        success: "done",
        failure: "it failed, or was not asked for by root",
        interruptible: false,
    },
    Page {
        command: "disk create",
        examples: &[
            (
                "sluice disk create slow --model hdd-7200 --size 20G",
                "a block device with a hard disk's times, emulated",
            ),
            ("sluice disk create fast --model nvme --mkfs xfs --mount /mnt/fast", "with a file system on it, mounted"),
            ("sluice disk create raid --model hdd-7200 --stripe 4 --scheduler bfq", "RAID-0, under the kernel's BFQ"),
            ("sluice disk create data --disk /dev/sdb --tier /ssd --mount /data", "a real disk, with an SSD before it"),
            (
                "sluice disk create slow --model hdd-7200 --size 20G --mkfs ext4 --tier /ssd --tier-set rule=always",
                "an emulated one",
            ),
        ],
        variables: &[DISKS, RUNTIME[0]],
        success: "the disk is there",
        failure: "it could not be made; nothing of it is left",
        interruptible: false,
    },
    Page {
        command: "disk list",
        examples: &[("sluice disk list", "all emulated disks and what they are made of")],
        variables: &[DISKS, RUNTIME[0]],
        success: "they were printed, broken ones too",
        failure: FAILED,
        interruptible: false,
    },
    Page {
        command: "disk up",
        examples: &[
            ("sluice disk up data", "after its process was killed, with all that was durable"),
            ("sluice disk up --all", "after a restart of the machine"),
        ],
        variables: &[DISKS, RUNTIME[0]],
        success: "all of them run",
        failure: "one of them is not there, was never finished, or is in use",
        interruptible: false,
    },
    Page {
        command: "disk remove",
        examples: &[
            ("sluice disk remove slow", "with everything that is on it; a real disk gets what only its SSD has"),
            ("sluice disk remove --force --all", "all of them, even those in use"),
        ],
        variables: &[DISKS, RUNTIME[0]],
        success: "they are removed",
        failure: "one of them is not there, or in use",
        interruptible: false,
    },
    Page {
        command: "tier",
        examples: &[
            ("sluice tier create /ssd/sdb.tier --disk /dev/sdb", "8G for writes, 8G for what is read, 4M slots"),
            (
                "sluice tier check /ssd/sdb.tier",
                "what is in it; then nbdkit sluice disk=/dev/sdb ssd=/ssd/sdb.tier serves both as one",
            ),
            ("sluice tier detach /ssd/sdb.tier", "all of it goes to the disk"),
        ],
        variables: &[],
        success: "done",
        failure: FAILED,
        interruptible: false,
    },
    Page {
        command: "tier create",
        examples: &[
            ("sluice tier create /ssd/sdb.tier --disk /dev/sdb", "a file, made with all its space"),
            ("sluice tier create /dev/nvme0n1p4 --disk /dev/sdb --queue 64G --area 32G", "a partition"),
        ],
        variables: &[],
        success: "the tier is there, and empty",
        failure: "it could not be made, or there is something that may be needed",
        interruptible: false,
    },
    Page {
        command: "tier check",
        examples: &[
            ("sluice tier check /ssd/sdb.tier", "all data is read and compared with its checksum"),
            ("sluice tier check --json /ssd/sdb.tier", "for programs; docs/tier.md explains the fields"),
        ],
        variables: &[],
        success: "all that was durable is there",
        failure: "there is no tier, it is in use, or something in it is damaged",
        interruptible: false,
    },
    Page {
        command: "tier flush",
        examples: &[
            ("sluice tier flush /ssd/sdb.tier", "to the disk that it was made for"),
            ("sluice tier flush /ssd/sdb.tier --salvage", "what is left of a damaged one"),
        ],
        variables: &[],
        success: "the disk has everything; the SSD is ready for use",
        failure: "something could not be written back, and is still on the SSD",
        interruptible: false,
    },
    Page {
        command: "tier detach",
        examples: &[("sluice tier detach /ssd/sdb.tier", "the disk has everything, the SSD may go")],
        variables: &[],
        success: "the disk has everything; there is no tier on the SSD any more",
        failure: "something could not be written back; the tier is as it was",
        interruptible: false,
    },
    Page {
        command: "tier settings",
        examples: &[("sluice tier settings", "KEY=VALUE of nbdkit's plugin, with defaults")],
        variables: &[],
        success: "they were printed",
        failure: FAILED,
        interruptible: false,
    },
    Page {
        command: "cluster",
        examples: &[
            ("sluice cluster check cluster.toml", "whether it could be started here"),
            ("sluice cluster up cluster.toml", "data servers, I/O nodes and clients, on this machine"),
            ("sluice cluster down cluster.toml", "end them; data stay"),
        ],
        variables: &[DISKS],
        success: "done",
        failure: FAILED,
        interruptible: false,
    },
    Page {
        command: "cluster up",
        examples: &[("sluice cluster up cluster.toml", "also after something was killed: starts what is missing")],
        variables: &[DISKS],
        success: "all processes can be used",
        failure: "one cannot be started; what was started before it still runs",
        interruptible: false,
    },
    Page {
        command: "cluster status",
        examples: &[
            ("sluice cluster status cluster.toml", "what runs, and where"),
            ("sluice cluster status --json cluster.toml", "for programs"),
        ],
        variables: &[],
        success: "all processes can be used",
        failure: "one of them cannot",
        interruptible: false,
    },
    Page {
        command: "cluster down",
        examples: &[
            ("sluice cluster down cluster.toml", "data stay"),
            ("sluice cluster down --remove-disks cluster.toml", "and the emulated devices go, with what is on them"),
        ],
        variables: &[DISKS],
        success: "nothing runs any more",
        failure: "a client is in use, or a process does not end",
        interruptible: false,
    },
    Page {
        command: "cluster check",
        examples: &[("sluice cluster check cluster.toml", "programs, ports, directories: all that is in the way")],
        variables: &[],
        success: "nothing is in the way",
        failure: "something is, or the file is no good",
        interruptible: false,
    },
    Page {
        command: "cluster write",
        examples: &[(
            "sluice cluster write cluster.toml --out units",
            "graphs and systemd units, a directory for each host",
        )],
        variables: &[],
        success: "they are written, and what to do with them was printed",
        failure: FAILED,
        interruptible: false,
    },
    Page {
        command: "coordinate",
        examples: &[
            ("sluice coordinate --state /var/lib/sluice/coordinator", "for nodes on this machine, until Ctrl-C"),
            (
                "sluice coordinate --listen 10.0.0.1:24090 --token-file /etc/sluice/token --state /var/lib/sluice/coordinator",
                "for nodes on others, which have the same file",
            ),
            (
                "sluice coordinate --role council,orchestrator --state /var/lib/sluice/coordinator",
                "also serves one program at a time on all data servers, where that pays",
            ),
        ],
        variables: &[],
        success: "it was ended",
        failure: "it cannot listen there, or its directory cannot be used",
        interruptible: false,
    },
    Page {
        command: "coordinate status",
        examples: &[
            ("sluice coordinate status 127.0.0.1:24090", "nodes, decisions, by how much clocks differ"),
            ("sluice coordinate status --json 127.0.0.1:24090", "for programs; docs/status.md explains the fields"),
        ],
        variables: &[],
        success: "it was printed",
        failure: "the coordinator cannot be reached, or asks for another token",
        interruptible: false,
    },
    Page {
        command: "demo",
        examples: &[
            ("sluice demo", "all algorithms, 210 seconds"),
            ("sluice demo --quick --policy aioli,hbrr --plot demo.svg", "two of them, and a picture"),
        ],
        variables: &[("TMPDIR", "where the volume of emulated disks is made [default: /tmp]")],
        success: "it was shown, and all data was right",
        failure: FAILED,
        interruptible: true,
    },
    Page {
        command: "profile",
        examples: &[
            ("sluice profile /data --out data.toml", "a minute: how much order and size matter there"),
            ("sluice profile --device hdd-7200", "of a device model, in virtual time"),
            ("sluice profile show data.toml --plot data.svg", "look at a profile again"),
        ],
        variables: ASKS,
        success: "it was measured, and written if that was asked for",
        failure: FAILED,
        interruptible: true,
    },
    Page {
        command: "profile show",
        examples: &[("sluice profile show data.toml", "the times and ratios of a profile")],
        variables: &[],
        success: "it was printed",
        failure: FAILED,
        interruptible: false,
    },
    Page {
        command: "calibrate",
        examples: &[
            (
                "sluice calibrate /scratch",
                "ten minutes: what serves each kind of workload best there, for mounts that choose",
            ),
            (
                "sluice calibrate /scratch --budget 2min --out scratch.known",
                "less sure; in a file, too, for other mounts on such devices",
            ),
            ("sluice calibrate /tmp/a --emulate hdd-7200 --budget 1min", "on an emulated hard disk"),
        ],
        variables: MOUNTS,
        success: "it was measured, and what was learned is written",
        failure: "others use the device, the disk is nearly full, or something failed; standard error says what",
        interruptible: true,
    },
    Page {
        command: "simulate",
        examples: &[
            ("sluice simulate scenarios/quick.toml", "eight algorithms, one pattern, four modelled disks"),
            ("sluice simulate scenarios/quick.toml --seeds 10 --out q", "with confidence intervals, kept for report"),
            ("sluice simulate scenarios/quick.toml --only algorithm=noop,sjf --json", "two algorithms, for programs"),
            ("sluice simulate --keys", "everything that a scenario may say"),
        ],
        variables: &[],
        success: "all runs were simulated; with --chaos nothing was found",
        failure: "a scenario cannot be used, a run failed, or --chaos found a mistake",
        interruptible: true,
    },
    Page {
        command: "report",
        examples: &[
            ("sluice report q", "one page of plots, q/report.html, from what simulate --out q wrote"),
            ("sluice report q --out - > page.html", "on standard output"),
        ],
        variables: &[],
        success: "the page is written",
        failure: FAILED,
        interruptible: false,
    },
    Page {
        command: "explain",
        examples: &[
            ("sluice explain decisions.jsonl", "what a mount's selector chose, when, and what that gave"),
            ("sluice explain decisions.jsonl --plot timeline.svg", "the same as a picture"),
            ("sluice explain --plot - - < decisions.jsonl > timeline.svg", "the picture alone, through pipes"),
        ],
        variables: &[],
        success: "it was printed",
        failure: FAILED,
        interruptible: false,
    },
    Page {
        command: "model",
        examples: &[
            ("sluice model show /mnt/scratch", "what a mount's selector has learned"),
            ("sluice model show shipped", "what the trained model is that selectors ask"),
            ("sluice model merge a.json b.json --out site.json", "what several mounts have learned, together"),
        ],
        variables: ASKS,
        success: "done",
        failure: FAILED,
        interruptible: false,
    },
    Page {
        command: "model show",
        examples: &[("sluice model show /mnt/scratch", "of each kind of workload, what each configuration gains")],
        variables: ASKS,
        success: "it was printed",
        failure: FAILED,
        interruptible: false,
    },
    Page {
        command: "model export",
        examples: &[
            ("sluice model export /mnt/scratch --out learned.json", "for other mounts on such devices"),
            ("sluice model export /mnt/scratch --out - | ssh there sluice model show -", "look at it elsewhere"),
        ],
        variables: ASKS,
        success: "the file is written",
        failure: FAILED,
        interruptible: false,
    },
    Page {
        command: "model merge",
        examples: &[("sluice model merge a.json b.json --out site.json", "what both have learned")],
        variables: ASKS,
        success: "the file is written",
        failure: FAILED,
        interruptible: false,
    },
    Page {
        command: "mpirun",
        examples: &[
            ("sluice mpirun mpirun -n 64 ./simulation in.nml", "as without sluice, but for the first two words"),
            (
                "sluice mpirun --report io.json srun -n 64 ./simulation",
                "with what was decided for each file, and what it brought",
            ),
            (
                "sluice mpirun --dualpar auto --memcached auto mpirun -n 64 ./simulation",
                "what processes of a node will read is read once, and shared by a cache",
            ),
            ("sluice mpirun --dry-run mpiexec -n 2 ./simulation", "what would be run"),
        ],
        variables: &[
            ("LD_PRELOAD", "what it names is loaded, too, behind Sluicegate's"),
            ("SLUICE_MPI", "in the programs: off, or one of --mode"),
            ("SLUICE_DUALPAR", "in the programs: auto, always or off, see --dualpar"),
            ("SLUICE_MEMCACHED", "see --memcached"),
            ("SLUICE_MPI_REPORT", "see --report"),
            ("SLUICE_MPI_JOB", "see --job"),
        ],
        success: "the launcher ended with 0; every other status of its is passed on",
        failure: "the launcher could not be run, or it says so itself",
        interruptible: false,
    },
    Page {
        command: "completions",
        examples: &[
            ("sluice completions bash > ~/.local/share/bash-completion/completions/sluice", "for bash, for this user"),
            ("sluice completions zsh > ~/.zfunc/_sluice", "for zsh, if ~/.zfunc is in its fpath"),
        ],
        variables: &[],
        success: "it was printed",
        failure: FAILED,
        interruptible: false,
    },
    Page {
        command: "man",
        examples: &[("sluice man /tmp/man && man /tmp/man/sluice.1", "look at a page without installing it")],
        variables: &[],
        success: "the pages are written",
        failure: FAILED,
        interruptible: false,
    },
];
