//! Sets `cfg(local)`, which builds the collectors for this host. They require Linux.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(local)");
    let is_linux = env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux");
    if is_linux && env::var_os("CARGO_FEATURE_LOCAL").is_some() {
        println!("cargo::rustc-cfg=local");
    }
}
