//! Scenarios: experiments written in TOML, and the runs they stand for.
//!
//! A file describes one simulation, and axes along which it varies; every combination of their values is a run.

mod axes;
mod bounds;
mod keys;
mod read;
mod spec;
mod value;

use std::path::Path;

pub use bounds::Needs;
pub use keys::{Key, keys};
pub use read::parse_policy;
pub(crate) use spec::COLLECTIVE_BUFFER;
pub use spec::{
    Allocation, Application, Clients, FaultEvent, FaultKind, Faults, Kernel, MpiIo, Network, Nodes, Orchestration,
    PageCache, Place, Scale, Scenario, Storage, Tier,
};
pub use value::ScenarioError;

use axes::{
    Combinations, Tables, apply, check_settings, find_compared, read_axes, read_excluded, set, setting_value, wanted,
};
use value::Result;

/// Something that varies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Axis {
    /// Its name.
    pub name: String,
    /// Names of its values.
    pub values: Vec<String>,
}

/// One combination of the axes' values.
#[derive(Clone, Debug)]
pub struct Run {
    /// Of each axis the value's number.
    pub place: Vec<usize>,
    /// What to simulate.
    pub scenario: Scenario,
}

/// All runs of a scenario file.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The experiment's name.
    pub name: String,
    /// One line.
    pub title: String,
    /// Where it comes from.
    pub source: String,
    /// How the data is scaled.
    pub scale: Scale,
    /// What varies.
    pub axes: Vec<Axis>,
    /// Number of the compared axis, and of its baseline value.
    pub compare: Option<(usize, usize)>,
    /// The runs, in order.
    pub runs: Vec<Run>,
}

/// A key and a value that replaces the file's.
pub type Setting = (String, String);

/// Names of an axis and of the values to which it is restricted.
pub type Only = (String, Vec<String>);

impl Plan {
    /// Reads a scenario file.
    ///
    /// # Errors
    /// If it cannot be read or something in it makes no sense.
    pub fn load(path: &Path, settings: &[Setting], only: &[Only]) -> Result<Plan> {
        let shown = path.display().to_string();
        let text =
            std::fs::read_to_string(path).map_err(|error| ScenarioError::new("", error.to_string()).in_file(&shown))?;
        let name = path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
        let base = path.parent().unwrap_or(Path::new(""));
        Plan::parse(&text, &name, base, settings, only).map_err(|error| error.in_file(shown))
    }

    /// The same from a text; files that it names count from `base`.
    ///
    /// # Errors
    /// If something in it makes no sense.
    pub fn parse(text: &str, name: &str, base: &Path, settings: &[Setting], only: &[Only]) -> Result<Plan> {
        let parsed: std::result::Result<toml::Table, _> = text.parse();
        let mut table = parsed.map_err(|error: toml::de::Error| ScenarioError::new("", error.to_string()))?;
        for (key, value) in settings {
            set(&mut table, key, &setting_value(value))?;
        }
        let axes = read_axes(&table)?;
        let excluded = read_excluded(&table, &axes)?;
        let wanted = wanted(&axes, only)?;
        check_settings(&table, settings, &axes, &wanted)?;
        let (mut runs, mut tables) = (Vec::new(), Tables::default());
        for place in Combinations::of(&axes, &wanted)? {
            if excluded.iter().any(|rule| rule.iter().all(|(axis, values)| values.contains(&place[*axis]))) {
                continue;
            }
            let mut varied = table.clone();
            for (axis, value) in axes.iter().zip(&place) {
                apply(&mut varied, &axis.settings[*value])?;
            }
            tables.add(&place, &varied);
            let scenario = Scenario::read(&varied, base, name)?;
            runs.push(Run { place, scenario });
        }
        tables.check(&axes, &wanted)?;
        let Some(first) = runs.first().map(|run| run.scenario.clone()) else {
            return Err(ScenarioError::new("", "no run is left"));
        };
        let axes: Vec<Axis> = axes.into_iter().map(|axis| Axis { name: axis.name, values: axis.names }).collect();
        let compare = first.compare.as_ref().map(|compare| find_compared(&axes, compare)).transpose()?;
        Ok(Plan { name: first.name, title: first.title, source: first.source, scale: first.scale, axes, compare, runs })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SMALL: &str = r#"
        name = "small"
        [servers]
        count = 2
        policy = "sjf"
        [[application]]
        name = "a"
        processes = 2
        [[application.phase]]
        data = "1M"
        [[application.phase]]
        op = "write"
        [[application]]
        name = "b"
        [[application.phase]]
        pattern = "strided"
    "#;

    fn keys_of() -> &'static [Key] {
        keys()
    }

    fn plan(more: &str, settings: &[(&str, &str)]) -> Result<Plan> {
        let settings: Vec<Setting> =
            settings.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Plan::parse(&format!("{SMALL}\n{more}"), "x", Path::new(""), &settings, &[])
    }

    fn reason(more: &str, settings: &[(&str, &str)]) -> String {
        plan(more, settings).unwrap_err().to_string()
    }

    #[test]
    fn unknown_keys_are_refused_with_the_nearest_name() {
        let error = reason("", &[("servers.polcy", "sjf")]);
        assert!(error.contains("servers.polcy") && error.contains("\"policy\""), "{error}");
        let error = reason("", &[("application.b.phase.patern", "random")]);
        assert!(error.contains("application.b.phase.0.patern") && error.contains("\"pattern\""), "{error}");
        let error = reason("[[application]]\nprocesess = 16\nphase = [{}]", &[]);
        assert!(error.contains("procesess") && error.contains("\"processes\""), "{error}");
        let error = reason("", &[("servers.policy", "sfj")]);
        assert!(error.contains("servers.policy") && error.contains("\"sjf\""), "{error}");
        let error = reason("", &[("servers.policy", "aioli wait_tim=1ms")]);
        assert!(error.contains("\"wait_time\""), "{error}");
        assert!(reason("", &[("servers.device", "hdd-9")]).contains("hdd-7200"));
        assert!(reason("", &[("application.benchmark", "btoi")]).contains("volume"));
        assert!(reason("[[application.nothing]]", &[]).contains("nothing"));
    }

    #[test]
    fn a_scale_needs_no_quotes_that_a_shell_would_take() {
        let data = |scale: &str| plan("", &[("scale", scale)]).unwrap().runs[0].scenario.bytes();
        assert_eq!(data("2"), data("\"2\""));
        assert_eq!(data("2"), 4 * data("1/2"));
        assert!(reason("", &[("scale", "0")]).contains("a fraction like"));
    }

    #[test]
    fn settings_reach_one_or_all_of_a_list() {
        let plan = plan("", &[("application.b.processes", "7"), ("application.a.phase.1.data", "3M")]).unwrap();
        let scenario = &plan.runs[0].scenario;
        assert_eq!(scenario.applications.iter().map(|a| a.processes).collect::<Vec<_>>(), [2, 7]);
        assert_eq!(scenario.applications[0].phases.iter().map(|p| p.data).collect::<Vec<_>>(), [1 << 20, 3 << 20]);
        let plan = super::tests::plan("", &[("application.phase.data", "\"2M\"")]).unwrap();
        assert!(plan.runs[0].scenario.applications.iter().flat_map(|a| &a.phases).all(|p| p.data == 2 << 20));
    }

    #[test]
    fn axes_make_all_combinations_but_the_excluded() {
        let axes = r#"
            [report]
            compare = "algorithm"
            baseline = "noop"
            [[axis]]
            name = "algorithm"
            key = "servers.policy"
            values = ["noop", "sjf"]
            [[axis]]
            name = "size"
            [[axis.value]]
            name = "small"
            set = { "application.phase.request" = "16K", "application.a.processes" = 3 }
            [[axis.value]]
            name = "large"
            set = { "application.phase.request" = "256K" }
            [[exclude]]
            algorithm = "noop"
            size = ["large"]
        "#;
        let plan = super::tests::plan(axes, &[]).unwrap();
        assert_eq!(
            plan.runs.iter().map(|run| run.place.clone()).collect::<Vec<_>>(),
            [vec![0, 0], vec![1, 0], vec![1, 1]]
        );
        assert_eq!(plan.compare, Some((0, 0)));
        assert_eq!(plan.runs[0].scenario.applications[0].processes, 3);
        let only = [("size".to_owned(), vec!["large".to_owned()])];
        let plan = Plan::parse(&format!("{SMALL}\n{axes}"), "x", Path::new(""), &[], &only).unwrap();
        assert_eq!(plan.runs.len(), 1);
        let error = Plan::parse(&format!("{SMALL}\n{axes}"), "x", Path::new(""), &[], &[("sise".to_owned(), vec![])]);
        assert!(error.unwrap_err().to_string().contains("\"size\""));
    }

    #[test]
    fn data_is_scaled_to_whole_requests() {
        let plan =
            plan("", &[("scale", "1/3"), ("application.phase.data", "1M"), ("application.phase.request", "64K")])
                .unwrap();
        assert_eq!(plan.runs[0].scenario.applications[0].phases[0].data, 5 << 16);
        assert_eq!(plan.scale.to_string(), "1/3");
    }

    #[test]
    fn faults_name_their_node() {
        let crash = "[[faults.event]]\nkind = \"crash\"\nnode = \"server 1\"\nat = \"1s\"";
        let plan = super::tests::plan(&format!("[faults]\nloss = 0.01\n{crash}"), &[]).unwrap();
        let faults = plan.runs[0].scenario.faults.clone().unwrap();
        assert_eq!((faults.loss, faults.events[0].place), (10_000, Place::Server(1)));
        assert!(reason(&crash.replace("server 1", "server 2"), &[]).contains("below 2"));
    }

    #[test]
    fn what_cannot_be_simulated_is_refused_with_numbers() {
        let axes: String = (0..10)
            .map(|axis| format!("[[axis]]\nname = \"a{axis}\"\nkey = \"k{axis}\"\nvalues = [0,1,2,3,4,5,6,7,8,9]\n"))
            .collect();
        let error = reason(&axes, &[]);
        assert!(error.contains("10000000000 combinations") && error.contains("--only"), "{error}");
        for (settings, words) in [
            (&[("application.processes", "10000000"), ("application.copies", "10000")][..], "100000000000 in all"),
            (
                &[
                    ("application.phase.pattern", "vector"),
                    ("application.phase.region", "1"),
                    ("application.phase.request", "\"64G\""),
                ],
                "GiB of memory",
            ),
            (&[("application.a.processes", "10000000"), ("application.phase.data", "\"1024T\"")], "bytes"),
            (&[("application.phase.data", "\"1024T\""), ("application.repeat", "1000000")], "bytes"),
            (&[("application.phase.data", "\"1T\""), ("application.phase.request", "1")], "requests, some"),
            (
                &[("application.mpi_io", "agents"), ("application.processes", "1000000"), ("servers.count", "60000")],
                "GiB of memory",
            ),
            (&[("application.phase.data", "\"1024T\""), ("scale", "\"1073741824\"")], "scaled"),
        ] {
            let error = reason("", settings);
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn settings_that_an_axis_would_replace_are_refused() {
        let axis = "[[axis]]\nname = \"p\"\nkey = \"servers.policy\"\nvalues = [\"noop\", \"sjf\"]\n";
        let error = reason(axis, &[("servers.policy", "aioli")]);
        assert!(error.contains("no effect") && error.contains("--only p="), "{error}");
        assert!(plan(axis, &[("servers.count", "3")]).is_ok());
        assert!(reason(&format!("{axis}{axis}"), &[]).contains("two axes"));
        let other = axis.replace("\"p\"", "\"q\"");
        assert!(reason(&format!("{axis}{other}"), &[]).contains("two axes"));
        assert!(reason(&axis.replace("\"sjf\"", "\"noop\""), &[]).contains("twice"));
        let by_key = |name, key| format!("[[axis]]\nname = \"{name}\"\nkey = \"{key}\"\nvalues = [1, 2]\n");
        let set = "[[axis]]\nname = \"q\"\n[[axis.value]]\nname = \"few\"\nset = { \"application.a.processes\" = 3 }\n";
        for other in [by_key("q", "application.0.processes"), set.to_owned()] {
            let error = reason(&(by_key("p", "application.a.processes") + &other), &[]);
            assert!(error.contains("axis \"p\" would have no effect"), "{error}");
            // The other application has what the first says.
            assert!(plan(&(by_key("p", "application.processes") + &other), &[]).is_ok());
        }
        let all = vec!["noop".to_owned()];
        let only = [("p".to_owned(), all.clone()), ("p".to_owned(), all)];
        let error = Plan::parse(&format!("{SMALL}\n{axis}"), "x", Path::new(""), &[], &only).unwrap_err();
        assert!(error.to_string().contains("twice"), "{error}");
    }

    #[test]
    fn every_seed_of_64_bits_can_be_given() {
        for seed in [0, 7, i64::MAX as u64, u64::MAX] {
            let plan = plan("", &[("seed", &seed.to_string())]).unwrap();
            assert_eq!(plan.runs[0].scenario.seed, seed);
        }
        assert!(reason("", &[("seed", "18446744073709551616")]).contains("18446744073709551615"));
        assert!(reason("", &[("seed", "-1")]).contains("18446744073709551615"));
    }

    const WAYS: [&str; 7] = ["collective", "resonant", "agents", "early", "timed", "dualpar", "dualpar-auto"];

    proptest! {
        /// Whatever numbers a scenario has, it is refused, or it can be simulated for a while without a panic.
        #[test]
        fn any_numbers_are_refused_or_simulated(
            keys in proptest::collection::vec((0..keys().len(), 0..40u32, 0..3u64), 1..6),
            way in 0..2 * WAYS.len(),
        ) {
            let texts: Vec<(&str, String)> = keys
                .iter()
                .map(|&(key, shift, less)| {
                    let (key, number) = (keys_of()[key].path, (1u64 << shift.min(62)).saturating_sub(less));
                    let kind = keys_of()[keys_of().iter().position(|k| k.path == key).unwrap()].value;
                    let text = match kind {
                        _ if kind.starts_with("duration") => format!("\"{number}ns\""),
                        _ if kind.starts_with("rate") => format!("\"{number}KB/s\""),
                        _ => number.to_string(),
                    };
                    (key, text)
                })
                .collect();
            let mut settings: Vec<(&str, &str)> = texts.iter().map(|(key, text)| (*key, text.as_str())).collect();
            settings.extend(WAYS.get(way).map(|way| ("application.mpi_io", *way)));
            if let Ok(plan) = plan("", &settings) {
                let scenario = &plan.runs[0].scenario;
                let needs = scenario.needs();
                if needs.memory < 64 << 20 && needs.requests < 20_000 && scenario.storage.predict == 0 {
                    let options = crate::Options { events_max: 50_000, ..crate::Options::default() };
                    let _ = crate::simulate(scenario, options, &std::sync::atomic::AtomicBool::new(false));
                }
            }
        }

        #[test]
        fn any_setting_is_taken_or_refused(key in 0..keys().len(), value in "[a-z0-9.\"{}\\[\\]/ ]{0,12}") {
            let _ = plan("", &[(keys()[key].path, &value)]);
        }

        #[test]
        fn any_text_is_taken_or_refused(text in "\\PC{0,60}") {
            let _ = Plan::parse(&text, "x", Path::new(""), &[], &[]);
        }
    }
}
