//! Values that shells complete and help lists. Others are not refused here: who takes them says what is wrong, and what may be
//! meant.

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};

/// A text, with suggestions.
#[derive(Clone)]
pub(crate) struct Suggested(Vec<&'static str>);

impl Suggested {
    /// And this one.
    pub(crate) fn and(mut self, value: &'static str) -> Suggested {
        self.0.push(value);
        self
    }
}

/// One of these.
pub(crate) fn choice(values: &[&'static str]) -> Suggested {
    Suggested(values.to_vec())
}

/// The algorithms.
pub(crate) fn policies() -> Suggested {
    Suggested(sluice_core::policy::table().iter().map(|info| info.name).collect())
}

/// The shipped device models.
pub(crate) fn models() -> Suggested {
    Suggested(sluice_device::models().iter().map(|model| model.name).collect())
}

impl TypedValueParser for Suggested {
    type Value = String;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &std::ffi::OsStr,
    ) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.0.iter().map(PossibleValue::new)))
    }
}
