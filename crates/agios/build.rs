//! Names the interface in the library, so that programs find the one they were linked with: see `SOVERSION` in the Makefile.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libagios.so.0");
}
