//! What Sluicegate's processes tell Prometheus (OpenMetrics): one list of [names](METRICS), and an endpoint that has them.
//!
//! Whoever has something to tell fills [`Samples`] when it is asked; nothing is counted for this alone, and nobody waits for it.

#![forbid(unsafe_code)]

mod endpoint;
mod names;
mod samples;
mod tell;

pub use endpoint::Endpoint;
pub use names::{Kind, METRICS, Metric, name};
pub use samples::Samples;
pub use tell::{agent, coordinator, scheduler};
