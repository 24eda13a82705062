//! "Did you mean ...?"

/// The known name that is most like `given`, if any is like it at all.
#[must_use]
pub fn nearest<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let given = given.to_lowercase();
    let likeness = |name: &str| {
        let edits = 1.0 - strsim::damerau_levenshtein(&given, name) as f64 / given.len().max(name.len()).max(1) as f64;
        edits.max(strsim::jaro_winkler(&given, name) - 0.25)
    };
    let scored = known.into_iter().map(|name| (likeness(name), name));
    scored.filter(|(score, _)| *score > 0.4).max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, name)| name)
}

/// `; did you mean "NAME"?`, or nothing.
#[must_use]
pub fn hint<'a>(given: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(given, known).map_or_else(String::new, |name| format!("; did you mean {name:?}?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_recognised_and_strangers_are_not() {
        let known = ["cache", "attr_timeout", "entry_timeout", "in_flight", "to-agg", "sjf"];
        for (given, wanted) in [
            ("chache", "cache"),
            ("in-flight", "in_flight"),
            ("entry_time", "entry_timeout"),
            ("toagg", "to-agg"),
            ("SFJ", "sjf"),
        ] {
            assert_eq!(nearest(given, known), Some(wanted), "{given}");
        }
        assert_eq!(nearest("quux", known), None);
        assert_eq!(hint("zzz", known), "");
    }
}
