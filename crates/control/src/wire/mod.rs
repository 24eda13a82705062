//! Messages, as `proto/sluice/control/v1/control.proto` explains them.

#![allow(missing_docs, clippy::all, clippy::pedantic)]

// Made by `make proto`.
include!("generated.rs");

#[cfg(test)]
mod tests {
    #[test]
    fn the_generated_sources_are_those_of_the_proto() {
        let proto = include_bytes!("../../proto/sluice/control/v1/control.proto");
        let wanted = format!("// crc32 of the .proto: {:08x}\n", crc32fast::hash(proto));
        assert!(include_str!("generated.rs").starts_with(&wanted), "the .proto has changed: make proto");
    }
}
