//! Selects the simulated system in the sources of the library.

fn main() {
    println!("cargo::rustc-cfg=simulation");
    println!("cargo::rerun-if-changed=build.rs");
}
