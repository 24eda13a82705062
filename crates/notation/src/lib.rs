//! Sizes, times, rates and names as people write them: on the command line, in configurations and in scenarios.

#![forbid(unsafe_code)]

mod names;
mod units;

pub use names::{counted, hint, nearest};
pub use units::{parse_bytes, parse_duration, parse_rate, show_bytes};
