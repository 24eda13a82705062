//! The dictionary of paths.

use std::collections::HashMap;
use std::sync::Arc;

use crate::Error;
use crate::format::{PATH_BYTES_MAX, PATH_MAX, PATHS_MAX};

/// Paths by number, and back. Bounded.
#[derive(Clone, Debug, Default)]
pub struct Paths {
    list: Vec<Arc<[u8]>>,
    numbers: HashMap<Arc<[u8]>, u32>,
    bytes: usize,
}

impl Paths {
    /// Number of paths.
    #[must_use]
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// True without paths.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The path with this number; empty if there is none.
    #[must_use]
    pub fn get(&self, number: u32) -> &[u8] {
        self.list.get(number as usize).map_or(&[], |path| path)
    }

    /// The path as text, with a sign in the place of what is no text.
    #[must_use]
    pub fn text(&self, number: u32) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(self.get(number))
    }

    /// The number of a path.
    #[must_use]
    pub fn find(&self, path: &[u8]) -> Option<u32> {
        self.numbers.get(path).copied()
    }

    /// All paths in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.list.iter().map(|path| &**path)
    }

    /// The path's number, a new one if it has none.
    ///
    /// # Errors
    /// If there are too many.
    pub fn insert(&mut self, path: &[u8]) -> Result<u32, Error> {
        match self.find(path) {
            Some(number) => Ok(number),
            None => self.append(path),
        }
    }

    /// Gives the path the next number, also if it has one.
    pub(crate) fn append(&mut self, path: &[u8]) -> Result<u32, Error> {
        if path.len() > PATH_MAX {
            return Err(Error::TooManyPaths("one is longer than 64 KiB"));
        }
        if self.list.len() >= PATHS_MAX || self.bytes + path.len() > PATH_BYTES_MAX {
            return Err(Error::TooManyPaths("16 million paths of 256 MiB together are the most"));
        }
        let number = self.list.len() as u32;
        let path: Arc<[u8]> = path.into();
        self.bytes += path.len();
        self.numbers.entry(path.clone()).or_insert(number);
        self.list.push(path);
        Ok(number)
    }
}
