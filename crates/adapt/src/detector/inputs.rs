//! What models are asked with: features without units, so that platforms look alike.

use crate::features::Features;

/// Names of the inputs, in order. `log2` ones are of a ratio plus a small number, so that 0 has a logarithm.
pub const INPUTS: [&str; 26] = [
    "size_mean_stripes_log2",
    "size_max_stripes_log2",
    "whole_stripes",
    "distance_log2",
    "stripe_span_us_log2",
    "stripe_span_gaps_log2",
    "distances_none",
    "distances_near_forward",
    "distances_near_backward",
    "distances_middle",
    "distances_far",
    "continued",
    "streams_log2",
    "streams_per_request",
    "reach_log2",
    "burst_stripes_log2",
    "burst_aligned",
    "answered",
    "depth_log2",
    "app_files_log2",
    "stride_share",
    "extent_log2",
    "stream_gap_spread",
    "boundary_gap_log2",
    "think_spread",
    "fresh_bursts",
];

/// Names of the published measures: D and ΔT_S in microseconds.
pub const THESIS_INPUTS: [&str; 2] = ["distance", "stripe_span_us"];

fn log2(value: f64) -> f32 {
    (value + 1e-3).log2() as f32
}

/// The inputs of the shipped model.
#[must_use]
pub fn inputs(features: &Features) -> [f32; INPUTS.len()] {
    let f = features;
    let stripe = f.stripe.max(1) as f64;
    let distances: u32 = f.distances.iter().sum();
    let share = |classes: &[usize]| {
        let sum: u32 = classes.iter().map(|&class| f.distances[class]).sum();
        sum as f32 / distances.max(1) as f32
    };
    let gaps = if f.gap_ns > 0.0 { f.stripe_span_ns / f.gap_ns } else { 0.0 };
    [
        log2(f.size_mean / stripe),
        log2(f64::from(f.size_max) / stripe),
        f.whole_stripes as f32,
        log2(f.distance),
        log2(f.stripe_span_ns / 1e3),
        log2(gaps),
        share(&[0]),
        share(&[1, 2]),
        share(&[5, 6]),
        share(&[3, 7]),
        share(&[4, 8]),
        f.continued as f32,
        log2(f64::from(f.streams) / f64::from(f.files.max(1))),
        (f64::from(f.streams) / f.requests.max(1) as f64) as f32,
        log2(f.reach),
        log2(f.burst_bytes / stripe),
        f.burst_aligned as f32,
        f.answered as f32,
        f.depth.map_or(-20.0, log2),
        log2(f64::from(f.app_files)),
        f.stride_share as f32,
        log2(f.extent),
        f.stream_gap_spread as f32,
        log2(f.boundary_gap),
        f.think_spread.map_or(-20.0, |spread| spread as f32),
        // Bursts that continue nothing: processes that take turns begin somewhere else each time.
        ((1.0 - f.continued) * f.burst_bytes / f.size_mean.max(1.0)).min(1.0) as f32,
    ]
}

/// The inputs of the thesis's tree.
#[must_use]
pub fn thesis_inputs(features: &Features) -> [f32; THESIS_INPUTS.len()] {
    [features.distance as f32, (features.stripe_span_ns / 1e3) as f32]
}
