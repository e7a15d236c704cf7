//! Opens the layers of the library below its interface, and selects the simulated system.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cfg=inside");
    if std::env::var_os("CARGO_FEATURE_SIMULATION").is_some() {
        println!("cargo::rustc-cfg=simulation");
    }
}
