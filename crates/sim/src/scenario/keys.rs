//! Every key a scenario may have. The reader refuses others; `sluice simulate --keys` and the guide show this list.

/// A key of a scenario.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Where it stands.
    pub path: &'static str,
    /// What it may be, and what it is if not given.
    pub value: &'static str,
    /// What it means.
    pub help: &'static str,
}

const fn key(path: &'static str, value: &'static str, help: &'static str) -> Key {
    Key { path, value, help }
}

static KEYS: &[Key] = &[
    key("name", "text; the file's name", "short name of the experiment"),
    key("title", "text", "one line for the report"),
    key("source", "text", "where the experiment comes from"),
    key("scale", "text like \"1/16\"; \"1\"", "every phase's data is multiplied by this; stated with the results"),
    key("seed", "number; 1", "base of all random numbers; `--seeds N` runs this one and the N-1 that follow"),
    key("clients", "table", "the machines on which the processes run"),
    key("clients.nodes", "number; 1", "how many; processes are spread over them in contiguous groups"),
    key("clients.transfer", "bytes; 1M", "largest request on the network; larger ones are split and sent at once"),
    key(
        "clients.jitter",
        "duration; \"20us\"",
        "a request of a process leaves up to this much later, at random: operating systems are not punctual",
    ),
    key("network", "table", "every machine has one link, full duplex, to a switch that is never the bottleneck"),
    key("network.bandwidth", "rate; \"1Gbit/s\"", "of each link and direction; 0: no limit"),
    key("network.latency", "duration; \"50us\"", "from the end of sending to the beginning of receiving"),
    key("network.message_cost", "duration; \"2us\"", "a message occupies a link for this long beside its bytes"),
    key("network.header", "bytes; 160", "bytes of a message beside its data"),
    key(
        "network.sharing",
        "fair or arrival; fair",
        "flows (pairs of machines and an application) share a link by 64 KB in turn; arrival: messages pass in order of arrival",
    ),
    key("network.burst", "bytes; 0", "so many pass a link at once after a pause, as through a token bucket (tc tbf)"),
    key(
        "network.port_buffer",
        "bytes; 0",
        "what the switch can hold for each machine; a message that finds no room is lost and sent again (incast); 0: no limit",
    ),
    key(
        "network.retransmit",
        "duration; \"200ms\"",
        "after this time a lost message is sent again, after twice the time if it is lost again",
    ),
    key("servers", "table", "the data servers"),
    key("servers.count", "number; 1", "how many; files are striped over all of them"),
    key("servers.stripe", "bytes; 64K", "stripe size"),
    key(
        "servers.first",
        "hash or zero; hash",
        "which server has a file's first stripe: its number decides, or always server 0",
    ),
    key("servers.device", "text; \"hdd-7200\"", "device model of each server: a shipped one's name, or a file"),
    key("servers.policy", "text; \"noop\"", "the algorithm, with parameters after it: \"aioli wait_time=500us\""),
    key(
        "servers.selector",
        "fixed, bandit, tree or tree+bandit; fixed",
        "bandit: each server tries algorithms and anticipation while it runs, and keeps to what is best; tree: it uses what the shipped model says; tree+bandit: it tries what that says first (`window` is then 250ms if not given)",
    ),
    key(
        "servers.in_flight",
        "number; 0",
        "most batches that the engine lets out at a time; 0: no limit. Not for `noop`",
    ),
    key("servers.threads", "number; 0", "threads that execute batches; others wait in order of dispatch; 0: no limit"),
    key("servers.max_wait", "duration; \"500ms\"", "a request that waited longer goes next; 0: never"),
    key(
        "servers.anticipation",
        "duration; 0",
        "the device may idle for the stream it serves, as if moving cost it so long; a hard disk's 8ms; 0: no",
    ),
    key("servers.batch_bytes", "bytes; 1M", "most bytes in a batch"),
    key("servers.batch_requests", "number; 256", "most requests in a batch"),
    key("servers.capacity", "number; 32768", "most requests in the engine; more wait in front of it"),
    key("servers.ordering", "strict or none; strict", "whether overlapping requests keep their order"),
    key("servers.vectored", "true or false; true", "a batch is one command to the device; false: one for each request"),
    key(
        "servers.kernel",
        "none, deadline or cfq; none",
        "the operating system's scheduler between server and device; see the guide",
    ),
    key(
        "servers.device_queue",
        "number; 0",
        "commands that the device may choose from; 0: 1024 with `kernel` none, 31 with others",
    ),
    key("servers.page_cache", "off or on; off", "requests are served from the server's memory; off: they go past it"),
    key("servers.memory", "bytes; 4G", "of the page cache; multiplied by `scale` like the data"),
    key("servers.read_ahead", "bytes; 128K", "largest read-ahead window (`read_ahead_kb` of the device's queue)"),
    key("servers.dirty_background", "0 to 0.5; 0.1", "share of the memory that is dirty when write-back begins"),
    key("servers.dirty_limit", "0 to 0.5; 0.2", "share of the memory that is dirty when writers have to wait"),
    key("servers.request_cost", "duration; \"10us\"", "processor time to receive a request and answer it"),
    key(
        "servers.engine_cost",
        "duration; \"300ns\"",
        "processor time of the engine for a request, as `sluice-bench engine` measures",
    ),
    key(
        "servers.engine_cost_per_file",
        "duration; 0",
        "the same, more for each file with requests (for slower schedulers than this one)",
    ),
    key(
        "servers.active",
        "threads or peers; threads",
        "what the next two keys count: threads at work, or machines that have requests inside",
    ),
    key(
        "servers.contention",
        "number; 0",
        "`request_cost` and `engine_cost` grow by this share for each other thread at work",
    ),
    key(
        "servers.coherence",
        "number; 0",
        "and by this share for each ordered pair of threads at work (universal scalability law, Gunther 2007)",
    ),
    key("servers.cores", "number; 4", "cores that share this work"),
    key(
        "servers.predict",
        "number; 0",
        "the scenario is first simulated so many times, with other seeds, and recorded; then engines predict from that",
    ),
    key(
        "servers.allocation",
        "groups, present or extents; groups",
        "files that are read first lie in one piece, new ones get extents; present: all lie in one piece; extents: all get extents when first touched",
    ),
    key("servers.extent", "bytes; 64M", "size of these extents"),
    key("servers.file_distance", "bytes; 0", "left free on each device behind a file that lies in one piece"),
    key(
        "servers.orchestrator",
        "off, even, paper or on; off",
        "programs that are worth it are served one at a time on all servers; even: all programs have equal slices; paper: those that meet its conditions; on: only where that brings something",
    ),
    key("servers.orchestrator_window", "duration; \"500ms\"", "length of the windows that are divided among programs"),
    key(
        "servers.orchestrator_idle",
        "duration; 0",
        "a slice whose program has had no requests for so long is cut short; 0: never",
    ),
    key("servers.orchestrator_ends", "duration; 0", "from then on there is no orchestrator any more; 0: it stays"),
    key("servers.window", "duration; \"1s\"", "length of the windows of the engine's statistics"),
    key(
        "servers.parameters",
        "table",
        "parameters of the device model: { queue_age_max_ms = 50 }, or least and largest, drawn from the seed: [20, 2000]",
    ),
    key("io_nodes", "table", "machines between clients and data servers; without it clients send to the servers"),
    key("io_nodes.count", "number; 0", "how many; clients are spread over them in contiguous groups; 0: none"),
    key("io_nodes.policy", "text; \"noop\"", "the algorithm; `twins` gets its `servers` and `node` by itself"),
    key("io_nodes.in_flight", "number; 0", "most batches on their way to the servers at a time; 0: no limit"),
    key("io_nodes.max_wait", "duration; \"500ms\"", "as for servers"),
    key("io_nodes.anticipation", "duration; 0", "as for servers"),
    key("io_nodes.batch_bytes", "bytes; 1M", "as for servers"),
    key("io_nodes.batch_requests", "number; 256", "as for servers"),
    key("io_nodes.capacity", "number; 32768", "as for servers"),
    key("io_nodes.ordering", "strict or none; strict", "as for servers"),
    key("io_nodes.request_cost", "duration; \"10us\"", "as for servers"),
    key("io_nodes.engine_cost", "duration; \"300ns\"", "as for servers"),
    key("io_nodes.engine_cost_per_file", "duration; 0", "as for servers"),
    key("io_nodes.active", "threads or peers; threads", "as for servers"),
    key("io_nodes.contention", "number; 0", "as for servers; at most `in_flight` threads are at work"),
    key("io_nodes.coherence", "number; 0", "as for servers"),
    key("io_nodes.cores", "number; 4", "as for servers"),
    key("io_nodes.window", "duration; \"1s\"", "as for servers"),
    key("noise", "table", "times vary by factors with a log-normal distribution and a mean of 1"),
    key("noise.request", "0 to 2; 0", "standard deviation of the factor's logarithm, for each command of a device"),
    key("noise.run", "0 to 1; 0", "the same for each server, device and processor, during a whole run"),
    key("application", "list of tables", "the programs"),
    key("application.name", "text; \"app\"", "for the results"),
    key("application.copies", "number; 1", "runs the program that many times at once, each with files of its own"),
    key("application.processes", "number; 1, or those of its trace", "processes"),
    key("application.start", "duration; 0", "when it starts"),
    key("application.start_spread", "duration; \"1ms\"", "each process starts up to this much later, at random"),
    key("application.repeat", "number; 1", "goes through its phases that many times"),
    key("application.benchmark", "text", "phases of a known benchmark; see the list of benchmarks"),
    key("application.volume", "bytes", "for `benchmark`: bytes of all processes together"),
    key("application.request", "bytes", "for `benchmark`: bytes of a request, where the benchmark leaves them open"),
    key("application.op", "read or write", "for `benchmark`: the operation, where the benchmark leaves it open"),
    key("application.phase", "list of tables", "what each process does, one after the other"),
    key("application.phase.op", "read, write or mixed; read", "the operation"),
    key("application.phase.read_share", "0 to 1; 0.5", "for `mixed`: share of reads"),
    key(
        "application.phase.pattern",
        "contiguous, strided, random, vector, append or trace; contiguous",
        "where the requests go; see the guide",
    ),
    key("application.phase.files", "shared or per-process; shared", "one file for all processes, or one for each"),
    key(
        "application.phase.file",
        "text; \"data\"",
        "name of the file (of the application's own, unless it begins with /)",
    ),
    key("application.phase.data", "bytes; 1M", "bytes of each process"),
    key("application.phase.request", "bytes, or least and largest; 64K", "bytes of a request"),
    key("application.phase.region", "bytes; request", "for `vector`: bytes of a contiguous piece"),
    key("application.phase.spacing", "bytes; 0", "for `vector`: bytes between pieces that nobody touches"),
    key("application.phase.depth", "number; 1", "requests that a process has under way at a time; 1: synchronous"),
    key("application.phase.think", "duration; 0", "time a process computes before each request"),
    key(
        "application.phase.think_spread",
        "0 to 1; 0",
        "each of these times is longer or shorter by up to this share, at random",
    ),
    key("application.phase.compute", "duration; 0", "time a process computes before the phase"),
    key(
        "application.phase.compute_spread",
        "0 to 1; 0",
        "this time is longer or shorter by up to this share, at random, for each process and phase",
    ),
    key(
        "application.phase.barrier",
        "none, phase or request; none",
        "processes wait for each other after the phase, or before each request",
    ),
    key(
        "application.phase.trace",
        "text",
        "for `trace`: a CSV file of process, seconds, op, file, offset, bytes, or a recording (*.slt)",
    ),
    key(
        "application.phase.timing",
        "think or recorded; think",
        "for `trace`: keep the pauses between requests, or the recorded times",
    ),
    key("faults", "table", "what goes wrong; with it, clients repeat requests that are not answered"),
    key(
        "faults.timeout",
        "duration; \"2s\"",
        "a request not answered for this long is sent again (each time twice as long)",
    ),
    key("faults.loss", "0 to 1; 0", "share of messages lost"),
    key("faults.duplicate", "0 to 1; 0", "share of messages that arrive twice"),
    key("faults.delay", "duration; 0", "messages are late by up to this much, at random, and so overtake each other"),
    key("faults.event", "list of tables", "what happens at a certain time"),
    key(
        "faults.event.kind",
        "crash, slow, device-errors or skew",
        "crash: the node loses all it has in memory. skew: its clock is wrong",
    ),
    key("faults.event.node", "text", "like \"server 0\" or \"io_node 2\""),
    key("faults.event.at", "duration; 0", "when"),
    key("faults.event.lasts", "duration; \"1s\"", "for how long"),
    key("faults.event.factor", "number; 10", "for `slow`: how many times longer the device takes"),
    key("faults.event.share", "0 to 1; 0.1", "for `device-errors`: share of commands that fail"),
    key("faults.event.by", "duration; \"1ms\"", "for `skew`: how far the clock is ahead"),
    key("report", "table", "how results are compared"),
    key("report.compare", "text", "the axis whose values are compared"),
    key("report.baseline", "text", "the value on that axis with which the others are compared"),
    key("axis", "list of tables", "what varies: every combination of values is one run"),
    key("axis.name", "text", "name of the axis"),
    key("axis.key", "text", "the key that `values` are for"),
    key("axis.values", "list", "values of `key`"),
    key("axis.value", "list of tables", "instead of `key` and `values`: named values that each set several keys"),
    key("axis.value.name", "text", "name of the value"),
    key("axis.value.set", "table", "keys and values: { \"servers.count\" = 4 }"),
    key("exclude", "list of tables", "combinations left out: axis = value or list of values, all of which must fit"),
];

/// All keys, in the order of the guide.
#[must_use]
pub fn keys() -> &'static [Key] {
    KEYS
}

pub(super) fn find(path: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.path == path)
}
