//! "Did you mean ...?", and how many of them.

/// With less in common two names are not meant for each other: two of three letters that differ are no slip.
const LIKENESS_MIN: f64 = 0.5;

/// The known name that is most like `given`, if any is like it at all.
#[must_use]
pub fn nearest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let given = given.to_lowercase();
    let likeness = |name: &str| {
        let edits = 1.0 - strsim::damerau_levenshtein(&given, name) as f64 / given.len().max(name.len()).max(1) as f64;
        edits.max(strsim::jaro_winkler(&given, name) - 0.25)
    };
    let scored = known.into_iter().map(|name| (likeness(name), name));
    scored.filter(|(score, _)| *score > LIKENESS_MIN).max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, name)| name)
}

/// `; did you mean "NAME"?`, or nothing.
#[must_use]
pub fn hint<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(given, known).map_or_else(String::new, |name| format!("; did you mean {name:?}?"))
}

/// A number with what it counts: `1 seed`, `2 seeds`, `2 processes`, `2 batches`, by the regular plural.
#[must_use]
pub fn counted(count: u64, noun: &str) -> String {
    let plural = if ["s", "sh", "ch"].iter().any(|end| noun.ends_with(end)) { "es" } else { "s" };
    format!("{count} {noun}{}", if count == 1 { "" } else { plural })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_singular() {
        assert_eq!([0, 1, 2].map(|count| counted(count, "seed")), ["0 seeds", "1 seed", "2 seeds"]);
        assert_eq!([1, 2].map(|count| counted(count, "process")), ["1 process", "2 processes"]);
        assert_eq!([1, 2].map(|count| counted(count, "batch")), ["1 batch", "2 batches"]);
    }

    #[test]
    fn slips_are_recognised_and_strangers_are_not() {
        let known = ["cache", "attr_timeout", "entry_timeout", "in_flight", "to-agg", "sjf"];
        for (given, wanted) in [
            ("chache", "cache"),
            ("in-flight", "in_flight"),
            ("entry_time", "entry_timeout"),
            ("toagg", "to-agg"),
            ("SFJ", "sjf"),
            ("to_ag", "to-agg"),
        ] {
            assert_eq!(nearest(given, known), Some(wanted), "{given}");
        }
        assert_eq!(nearest("quux", known), None);
        assert_eq!(nearest("foo", ["noop", "to", "hbrr"]), None);
        assert_eq!(hint("zzz", known), "");
    }
}
