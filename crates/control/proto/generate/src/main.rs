//! Writes `src/wire/generated.rs` from the `.proto`, with nothing that would have to be installed: `make proto`.
//!
//! The result is kept with the sources, so that building needs neither a compiler of protocol buffers nor the time that
//! building one takes; a test says when it is out of date.

use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let protos = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let proto = protos.join("sluice/control/v1/control.proto");
    let descriptors = protox::compile([&proto], [&protos])?;
    let out = protos.join("../src/wire");
    tonic_prost_build::configure()
        .client_mod_attribute("sluice.control.v1", "#[cfg(feature = \"node\")]")
        .server_mod_attribute("sluice.control.v1", "#[cfg(feature = \"coordinator\")]")
        .out_dir(&out)
        .compile_fds(descriptors)?;
    let made = out.join("sluice.control.v1.rs");
    let sum = crc32fast::hash(&std::fs::read(&proto)?);
    let text = format!("// crc32 of the .proto: {sum:08x}\n{}", std::fs::read_to_string(&made)?);
    std::fs::write(out.join("generated.rs"), text)?;
    std::fs::remove_file(made)?;
    Ok(())
}
