//! Traces from the logs of other programs.

mod fio;

pub use fio::{ImportError, Imported, fio_iolog};
