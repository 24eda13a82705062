//! What many runs come to.

/// The median, and the smallest and largest. `values` is not empty.
pub(crate) fn median(values: &mut [f64]) -> (f64, [f64; 2]) {
    values.sort_by(f64::total_cmp);
    let middle = (values[(values.len() - 1) / 2] + values[values.len() / 2]) / 2.0;
    (middle, [values[0], values[values.len() - 1]])
}

/// Smallest, quarter, middle, three quarters, largest. `values` is not empty.
pub(crate) fn quartiles(mut values: Vec<f64>) -> [f64; 5] {
    values.sort_by(f64::total_cmp);
    [0, 1, 2, 3, 4].map(|quarter| values[(values.len() - 1) * quarter / 4])
}
