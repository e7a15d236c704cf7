//! Builds the preloaded library, by which `readpath record` records a program without root. The
//! compiler of the crate builds it, without dependencies, and its bytes become part of the crate.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let source = Path::new(&variable("CARGO_MANIFEST_DIR")).join("preload/lib.rs");
    let output = PathBuf::from(variable("OUT_DIR")).join("preload.so");
    println!("cargo::rerun-if-changed={}", source.with_file_name("").display());
    if variable("CARGO_CFG_TARGET_OS") != "linux" || variable("CARGO_CFG_TARGET_ENV") != "gnu" {
        // The library needs the GNU C library. Empty bytes stand for its absence.
        std::fs::write(output, "").expect("the build folder must be writable");
        return;
    }
    let mut compiler = Command::new(variable("RUSTC"));
    compiler
        .args(["--crate-name", "readpath_preload", "--crate-type", "cdylib", "--edition", "2024"])
        .args(["--target", &variable("TARGET"), "-o"])
        .arg(&output)
        .args(
            ["opt-level=2", "panic=abort", "lto=fat", "strip=symbols"].map(|it| format!("-C{it}")),
        )
        // A thread cancelled in a read unwinds through the library.
        .args(["-Cforce-unwind-tables=yes", "-Crelro-level=full"]);
    if let Ok(linker) = std::env::var("RUSTC_LINKER") {
        compiler.arg(format!("-Clinker={linker}"));
    }
    let built = compiler.arg(source).status().expect("the compiler must start");
    assert!(built.success(), "the preloaded library must compile");
}
