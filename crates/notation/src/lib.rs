//! Sizes, times, rates and names as people write them (on the command line, in configurations and in scenarios) and as they
//! read them (in what commands print).

#![forbid(unsafe_code)]

mod names;
mod people;
mod units;

pub use names::{counted, hint, nearest};
pub use people::{show_number, show_rate, show_size, show_time, show_time_roughly};
pub use units::{parse_bytes, parse_duration, parse_rate, show_bytes};
