//! Directories with entries that are not as they should be are listed all the same.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;

use common::Mount;
use common::wrap::{Hooks, wrap};
use sluice_fuse::CacheMode;

/// As `ls -l` and `rsync` do it: who looks at each entry gets attributes with the following ones.
#[test]
fn what_cannot_be_looked_at_hides_nothing_else() {
    let hooks = Arc::new(Hooks { closed: Some("f150"), ..Hooks::default() });
    let Some(m) = Mount::wrapped(CacheMode::Auto, |_| (), |storage| wrap(storage, &hooks)) else { return };
    let names: BTreeSet<String> = (0..300).map(|i| format!("f{i:03}")).collect();
    names.iter().for_each(|name| fs::write(m.source(name), b"x").unwrap());
    for _ in 0..3 {
        let mut seen = BTreeSet::new();
        for entry in fs::read_dir(m.path("")).unwrap() {
            let entry = entry.expect("one entry's error is not the directory's");
            let (name, found) = (entry.file_name().into_string().unwrap(), entry.metadata());
            match name == "f150" {
                true => assert_eq!(found.unwrap_err().raw_os_error(), Some(libc::EACCES)),
                false => assert_eq!(found.unwrap().len(), 1),
            }
            assert!(seen.insert(name), "once");
        }
        assert_eq!(seen, names);
    }
    assert!(m.handle().known_objects() <= 300);
    m.finish();
}

#[test]
fn kinds_that_the_storage_does_not_list_are_not_invented() {
    let hooks = Arc::new(Hooks { untyped: true, ..Hooks::default() });
    let Some(m) = Mount::wrapped(CacheMode::Auto, |_| (), |storage| wrap(storage, &hooks)) else { return };
    (0..2000).for_each(|i| fs::create_dir(m.source(&format!("{i}"))).unwrap());
    let listed = fs::read_dir(m.path("")).unwrap().map(|entry| entry.unwrap().file_type().unwrap().is_dir());
    assert_eq!(listed.filter(|is_dir| *is_dir).count(), 2000);
    m.finish();
}
