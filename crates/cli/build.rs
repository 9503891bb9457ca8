//! Builds `src/nfs/preload.c`, which `braid export` loads into NFS-Ganesha, with the C compiler that links
//! Rust programs, too.

use std::path::PathBuf;
use std::process::Command;

fn main() {
    let source = "src/nfs/preload.c";
    println!("cargo::rerun-if-changed={source}");
    println!("cargo::rerun-if-env-changed=CC");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("set by cargo")).join("preload.so");
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let mut command = Command::new(&compiler);
    command.args(["-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&out);
    let done = command.arg(source).status();
    assert!(
        done.as_ref().is_ok_and(std::process::ExitStatus::success),
        "{}: cannot compile {source}: {done:?} (a C compiler is needed: Debian package gcc)",
        compiler.display()
    );
}
