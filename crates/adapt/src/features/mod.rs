//! What the requests of a window were like: for each file, application and data server.
//!
//! A [`Watcher`] is told of every arrival, and of dispatches and completions where those are known; at the end of a window it
//! gives a [`Window`] of [`Features`]. It is a state machine without a clock, so the same code runs beside an engine, in the
//! simulator, and over recorded requests (`Answers::After`: traces have arrivals only).
//!
//! The published measures are [`Features::distance`] (D, Boito 2015, 4.3.1, equation 4.6) and [`Features::stripe_span_ns`]
//! (mean ΔT of the stripes, 4.3.2, equation 4.8). Differences: both are of a window rather than of a whole trace, and of the
//! requests of one application to a file.
//!
//! # Cost and memory
//! A call is O(1) and allocates nothing; closing a window is O(files seen in it). Everything is in tables whose sizes
//! [`Settings`] gives, and which make room like this:
//!
//! * *Files* (of an application, a target and an operation) are in sets of 4 places. A new one takes the place of the one in
//!   its set that was silent for longest; what was counted of that in this window is lost, and [`Window::evicted`] says how
//!   many requests that were.
//! * *Streams*, named by the byte that would continue them, are in pairs of places; the older of a pair gives way, and the
//!   request that would have continued it counts as the beginning of another. So are *beginnings*, where they are remembered.
//! * *Stripes* have one place each; the newer takes it, and the span of the other is counted as far as it was seen.
//! * 64 applications and 64 targets have numbers of their own; requests of further ones count with the last. So do, of files with
//!   few requests, those beyond 128 groups of an application, a target and an operation.

mod places;
mod tally;
mod watcher;
mod window;

pub use watcher::{Answers, Settings, Watcher};
pub use window::{APPS_MAX, DISTANCES, Features, FileWindow, GroupWindow, SIZES, TARGETS_MAX, Window};

/// Grows when a feature changes its meaning; models are made for one version.
pub const VERSION: u32 = 1;
