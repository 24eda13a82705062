//! Which Sluicegate this is.

/// Version, and where it is known the commit with its date: `0.1.0 (1a2b3c4d5e6f 2026-01-31)`.
pub const VERSION: &str = env!("SLUICE_VERSION");
/// The commit's date, where it is known.
pub(crate) const DATE: Option<&str> = option_env!("SLUICE_DATE");
