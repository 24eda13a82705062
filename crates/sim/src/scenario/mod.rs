//! Scenarios: experiments written in TOML, and the runs they stand for.
//!
//! A file describes one simulation, and axes along which it varies; every combination of their values is a run.

mod keys;
mod spec;
mod value;

use std::path::Path;

pub use keys::{Key, keys};
pub use spec::{
    Application, Clients, FaultEvent, FaultKind, Faults, Network, Nodes, Place, Scale, Scenario, Storage, parse_policy,
};
pub use value::ScenarioError;

use value::{Reader, Result};

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
        let mut runs = Vec::new();
        for place in combinations(&axes) {
            let left_out = excluded.iter().any(|rule| rule.iter().all(|(axis, values)| values.contains(&place[*axis])));
            if left_out || !place.iter().zip(&wanted).all(|(value, wanted)| wanted.contains(value)) {
                continue;
            }
            let mut varied = table.clone();
            for (axis, value) in axes.iter().zip(&place) {
                for (key, value) in &axis.settings[*value] {
                    set(&mut varied, key, value)?;
                }
            }
            let scenario = Scenario::read(&varied, base, name)?;
            runs.push(Run { place, scenario });
        }
        let Some(first) = runs.first().map(|run| run.scenario.clone()) else {
            return Err(ScenarioError::new("", "no run is left"));
        };
        let axes: Vec<Axis> = axes.into_iter().map(|axis| Axis { name: axis.name, values: axis.names }).collect();
        let compare = first.compare.as_ref().map(|compare| find_compared(&axes, compare)).transpose()?;
        Ok(Plan { name: first.name, title: first.title, source: first.source, scale: first.scale, axes, compare, runs })
    }
}

/// An axis with what its values change.
struct Varied {
    name: String,
    names: Vec<String>,
    settings: Vec<Vec<(String, toml::Value)>>,
}

fn read_axes(table: &toml::Table) -> Result<Vec<Varied>> {
    let mut axes = Vec::new();
    let root = Reader::new(table);
    for axis in root.tables("axis")? {
        let key = axis.text("key")?;
        let name = axis.text("name")?.or_else(|| key.clone());
        let name = name.ok_or_else(|| axis.error("name", "an axis needs it"))?;
        let mut varied = Varied { name, names: Vec::new(), settings: Vec::new() };
        let values = axis.raw("values").and_then(toml::Value::as_array);
        for value in values.into_iter().flatten() {
            let key = key.clone().ok_or_else(|| axis.error("key", "`values` need the key they are for"))?;
            varied.names.push(value.as_str().map_or_else(|| value.to_string(), str::to_owned));
            varied.settings.push(vec![(key, value.clone())]);
        }
        for value in axis.tables("value")? {
            let name = value.text("name")?.ok_or_else(|| value.error("name", "a value needs it"))?;
            let set = value.raw("set").and_then(toml::Value::as_table);
            let set = set.ok_or_else(|| value.error("set", "must be a table of keys and values"))?;
            value.finish()?;
            varied.names.push(name);
            varied.settings.push(set.iter().map(|(key, value)| (key.clone(), value.clone())).collect());
        }
        if varied.names.is_empty() {
            return Err(axis.error("values", "an axis needs `key` and `values`, or [[axis.value]]"));
        }
        axis.finish()?;
        axes.push(varied);
    }
    Ok(axes)
}

/// For each rule, the axes' numbers and the values' numbers that must all fit.
type Rules = Vec<Vec<(usize, Vec<usize>)>>;

fn read_excluded(table: &toml::Table, axes: &[Varied]) -> Result<Rules> {
    let Some(list) = table.get("exclude") else { return Ok(Vec::new()) };
    let wrong = || ScenarioError::new("exclude", "must be a list of tables, written [[exclude]], of axis = value");
    let mut rules = Vec::new();
    for rule in list.as_array().ok_or_else(wrong)? {
        let mut conditions = Vec::new();
        for (name, value) in rule.as_table().ok_or_else(wrong)? {
            let axis = find(name, axes.iter().map(|axis| axis.name.as_str()), "exclude", "axis")?;
            let one = std::slice::from_ref(value);
            let values = value.as_array().map_or(one, Vec::as_slice).iter().map(|value| {
                let shown = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                find(&shown, axes[axis].names.iter().map(String::as_str), &format!("exclude.{name}"), "value")
            });
            conditions.push((axis, values.collect::<Result<Vec<_>>>()?));
        }
        rules.push(conditions);
    }
    Ok(rules)
}

fn find<'a>(given: &str, known: impl Iterator<Item = &'a str> + Clone, key: &str, what: &str) -> Result<usize> {
    known.clone().position(|name| name == given).ok_or_else(|| {
        let hint = sluice_notation::hint(given, known.clone());
        let names: Vec<&str> = known.collect();
        ScenarioError::new(key, format!("no {what} is called {given:?}; there are {}{hint}", names.join(", ")))
    })
}

fn wanted(axes: &[Varied], only: &[Only]) -> Result<Vec<Vec<usize>>> {
    let mut wanted: Vec<Vec<usize>> = axes.iter().map(|axis| (0..axis.names.len()).collect()).collect();
    for (name, values) in only {
        let axis = find(name, axes.iter().map(|axis| axis.name.as_str()), "--only", "axis")?;
        let names = || axes[axis].names.iter().map(String::as_str);
        let numbers = values.iter().map(|value| find(value, names(), &format!("--only {name}"), "value"));
        wanted[axis] = numbers.collect::<Result<_>>()?;
    }
    Ok(wanted)
}

fn find_compared(axes: &[Axis], (axis, value): &(String, String)) -> Result<(usize, usize)> {
    let at = find(axis, axes.iter().map(|axis| axis.name.as_str()), "report.compare", "axis")?;
    Ok((at, find(value, axes[at].values.iter().map(String::as_str), "report.baseline", "value")?))
}

/// The last axis varies fastest.
fn combinations(axes: &[Varied]) -> Vec<Vec<usize>> {
    axes.iter().fold(vec![Vec::new()], |places, axis| {
        let longer = |place: &Vec<usize>| {
            let place = place.clone();
            (0..axis.names.len()).map(move |value| place.iter().copied().chain([value]).collect())
        };
        places.iter().flat_map(longer).collect()
    })
}

/// As on the command line: a TOML value if it is one, else a text.
fn setting_value(text: &str) -> toml::Value {
    let parsed: Option<toml::Table> = format!("value = {text}").parse().ok();
    parsed.and_then(|mut table| table.remove("value")).unwrap_or_else(|| toml::Value::String(text.to_owned()))
}

/// Sets `servers.count`, or `application.NAME.processes`, or (all of a list) `application.processes`.
fn set(table: &mut toml::Table, path: &str, value: &toml::Value) -> Result<()> {
    let Some((first, rest)) = path.split_once('.') else {
        table.insert(path.to_owned(), value.clone());
        return Ok(());
    };
    let lists = ["application", "phase", "event"];
    match table.get_mut(first) {
        Some(toml::Value::Table(below)) => set(below, rest, value),
        Some(toml::Value::Array(list)) => set_in_list(list, path, rest, value),
        Some(_) => Err(ScenarioError::new(path, format!("`{first}` is no table"))),
        None if lists.contains(&first) => Err(ScenarioError::new(path, format!("there is no [[{first}]] to change"))),
        None => {
            let mut below = toml::Table::new();
            set(&mut below, rest, value)?;
            table.insert(first.to_owned(), toml::Value::Table(below));
            Ok(())
        }
    }
}

fn set_in_list(list: &mut [toml::Value], path: &str, rest: &str, value: &toml::Value) -> Result<()> {
    let (selector, below) = rest.split_once('.').unwrap_or((rest, ""));
    let fits = |(number, entry): (usize, &toml::Value)| {
        selector == number.to_string() || entry.get("name").and_then(toml::Value::as_str) == Some(selector)
    };
    let selected: Vec<bool> = list.iter().enumerate().map(fits).collect();
    let (rest, all) = if selected.contains(&true) && !below.is_empty() { (below, false) } else { (rest, true) };
    for (entry, selected) in list.iter_mut().zip(selected) {
        if let (true, Some(table)) = (all || selected, entry.as_table_mut()) {
            set(table, rest, value).map_err(|error| ScenarioError::new(path, error.reason))?;
        }
    }
    Ok(())
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
        let error = reason("", &[("servers.policy", "sfj")]);
        assert!(error.contains("servers.policy") && error.contains("\"sjf\""), "{error}");
        let error = reason("", &[("servers.policy", "aioli wait_tim=1ms")]);
        assert!(error.contains("\"wait_time\""), "{error}");
        assert!(reason("", &[("servers.device", "hdd-9")]).contains("hdd-7200"));
        assert!(reason("", &[("application.benchmark", "btoi")]).contains("volume"));
        assert!(reason("[[application.nothing]]", &[]).contains("nothing"));
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

    proptest! {
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
