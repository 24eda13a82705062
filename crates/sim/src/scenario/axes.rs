//! Axes of a scenario: what varies, which combinations are left out, and how a value is put into its place.

use std::collections::{HashMap, HashSet};

use super::bounds::RUNS_MAX;
use super::value::{Reader, Result, ScenarioError};
use super::{Axis, Only, Setting};

/// An axis with what its values change.
pub(super) struct Varied {
    pub(super) name: String,
    pub(super) names: Vec<String>,
    pub(super) settings: Vec<Vec<(String, toml::Value)>>,
}

pub(super) fn read_axes(table: &toml::Table) -> Result<Vec<Varied>> {
    let (mut axes, mut keys) = (Vec::new(), Vec::new());
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
        if let Some(twice) = duplicate(&varied.names) {
            return Err(axis.error("values", format!("axis {:?} has the value {twice:?} twice", varied.name)));
        }
        if key.is_some() && keys.contains(&key) {
            return Err(axis.error("key", format!("two axes vary {:?}; one of them would have no effect", varied.name)));
        }
        axis.finish()?;
        keys.push(key);
        axes.push(varied);
    }
    let names: Vec<String> = axes.iter().map(|axis| axis.name.clone()).collect();
    if let Some(twice) = duplicate(&names) {
        return Err(ScenarioError::new("axis", format!("two axes are called {twice:?}")));
    }
    Ok(axes)
}

fn duplicate(names: &[String]) -> Option<&String> {
    let mut seen = HashSet::new();
    names.iter().find(|name| !seen.insert(name.as_str()))
}

/// For each rule, the axes' numbers and the values' numbers that must all fit.
pub(super) type Rules = Vec<Vec<(usize, Vec<usize>)>>;

pub(super) fn read_excluded(table: &toml::Table, axes: &[Varied]) -> Result<Rules> {
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

pub(super) fn wanted(axes: &[Varied], only: &[Only]) -> Result<Vec<Vec<usize>>> {
    let mut wanted: Vec<Vec<usize>> = axes.iter().map(|axis| (0..axis.names.len()).collect()).collect();
    let names: Vec<String> = only.iter().map(|(name, _)| name.clone()).collect();
    if let Some(twice) = duplicate(&names) {
        return Err(ScenarioError::new(
            "--only",
            format!("axis {twice:?} is restricted twice; name all values at once"),
        ));
    }
    for (name, values) in only {
        let axis = find(name, axes.iter().map(|axis| axis.name.as_str()), "--only", "axis")?;
        let names = || axes[axis].names.iter().map(String::as_str);
        let numbers = values.iter().map(|value| find(value, names(), &format!("--only {name}"), "value"));
        wanted[axis] = numbers.collect::<Result<_>>()?;
        wanted[axis].sort_unstable();
        wanted[axis].dedup();
    }
    Ok(wanted)
}

pub(super) fn find_compared(axes: &[Axis], (axis, value): &(String, String)) -> Result<(usize, usize)> {
    let at = find(axis, axes.iter().map(|axis| axis.name.as_str()), "report.compare", "axis")?;
    Ok((at, find(value, axes[at].values.iter().map(String::as_str), "report.baseline", "value")?))
}

/// Every combination of the wanted values, the last axis varying fastest.
pub(super) struct Combinations<'a> {
    wanted: &'a [Vec<usize>],
    /// Places in `wanted` of the next one; none after the last.
    next: Option<Vec<usize>>,
}

impl<'a> Combinations<'a> {
    /// # Errors
    /// If there are more than can be simulated.
    pub(super) fn of(axes: &[Varied], wanted: &'a [Vec<usize>]) -> Result<Combinations<'a>> {
        let total = wanted.iter().try_fold(1u128, |all, values| all.checked_mul(values.len() as u128));
        if total.is_none_or(|total| total > RUNS_MAX) {
            let total = total.map_or_else(|| "more than 10^38".to_owned(), |total| total.to_string());
            let each: Vec<String> =
                axes.iter().zip(wanted).map(|(axis, values)| format!("{} {}", axis.name, values.len())).collect();
            let reason = format!(
                "{total} combinations ({}); at most {RUNS_MAX} are simulated at a time. Restrict axes with --only",
                each.join(", ")
            );
            return Err(ScenarioError::new("axis", reason));
        }
        let next = wanted.iter().all(|values| !values.is_empty()).then(|| vec![0; wanted.len()]);
        Ok(Combinations { wanted, next })
    }
}

impl Iterator for Combinations<'_> {
    type Item = Vec<usize>;

    fn next(&mut self) -> Option<Vec<usize>> {
        let places = self.next.take()?;
        let mut following = places.clone();
        for axis in (0..following.len()).rev() {
            following[axis] += 1;
            if following[axis] < self.wanted[axis].len() {
                self.next = Some(following);
                break;
            }
            following[axis] = 0;
        }
        Some(places.iter().zip(self.wanted).map(|(&place, values)| values[place]).collect())
    }
}

/// Refuses settings that an axis would replace: whoever gives one would look at results without it.
pub(super) fn check_settings(
    table: &toml::Table,
    settings: &[Setting],
    axes: &[Varied],
    wanted: &[Vec<usize>],
) -> Result<()> {
    for (axis, values) in axes.iter().zip(wanted) {
        for &value in values {
            let mut varied = table.clone();
            apply(&mut varied, &axis.settings[value])?;
            for (key, given) in settings {
                let mut again = varied.clone();
                set(&mut again, key, &setting_value(given))?;
                if again != varied {
                    let (name, value) = (&axis.name, &axis.names[value]);
                    let reason = format!(
                        "--set would have no effect: axis {name:?} sets it, to begin with for {value:?}. Choose values of the \
                         axis with --only {name}=..., or change the file"
                    );
                    return Err(ScenarioError::new(key.clone(), reason));
                }
            }
        }
    }
    Ok(())
}

/// What the runs are made of, by their values on the axes.
#[derive(Default)]
pub(super) struct Tables(HashMap<Vec<usize>, String>);

impl Tables {
    pub(super) fn add(&mut self, place: &[usize], varied: &toml::Table) {
        self.0.insert(place.to_vec(), varied.to_string());
    }

    /// Refuses an axis that never changes anything, as another one sets the same by another path: it would seem to make no
    /// difference. O(runs * axes).
    ///
    /// # Errors
    /// If there is one.
    pub(super) fn check(&self, axes: &[Varied], wanted: &[Vec<usize>]) -> Result<()> {
        for (number, (axis, values)) in axes.iter().zip(wanted).enumerate() {
            let others = self.0.iter().filter_map(|(place, table)| {
                let mut first = place.clone();
                first[number] = *values.first()?;
                let first = self.0.get(&first).filter(|_| first != *place)?;
                Some(first != table)
            });
            // What could not be compared says nothing.
            if others.reduce(|one, other| one || other) == Some(false) {
                let reason = format!("axis {:?} would have no effect: another one sets all that it varies", axis.name);
                return Err(ScenarioError::new("axis", reason));
            }
        }
        Ok(())
    }
}

/// Makes the changes that a value of an axis stands for.
pub(super) fn apply(table: &mut toml::Table, settings: &[(String, toml::Value)]) -> Result<()> {
    settings.iter().try_for_each(|(key, value)| set(table, key, value))
}

/// As on the command line: a TOML value if it is one, else a text.
pub(super) fn setting_value(text: &str) -> toml::Value {
    let parsed: Option<toml::Table> = format!("value = {text}").parse().ok();
    parsed.and_then(|mut table| table.remove("value")).unwrap_or_else(|| toml::Value::String(text.to_owned()))
}

/// Sets `servers.count`, or `application.NAME.processes`, or (all of a list) `application.processes`.
pub(super) fn set(table: &mut toml::Table, path: &str, value: &toml::Value) -> Result<()> {
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
