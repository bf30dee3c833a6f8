//! How a static binary is linked.

#[expect(clippy::disallowed_methods, reason = "cargo tells build scripts by the environment")]
fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let features = std::env::var("CARGO_CFG_TARGET_FEATURE").unwrap_or_default();
    let linux = std::env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux");
    // A static binary relocates itself: 400 KB of relocations become 10 in the packed form (DT_RELR). A dynamic one
    // would then ask for glibc 2.36, so it is left alone.
    if linux && features.split(',').any(|feature| feature == "crt-static") {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}
