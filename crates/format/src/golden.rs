//! Golden bytes: what a structure looks like on disk, kept as text beside the tests, so that a
//! change of the format cannot go unseen. `BRAID_GOLDEN=write cargo test -p braid-format` writes
//! them anew; the difference is then there to be read.

use std::fmt::Write as _;
use std::path::Path;

/// Rows of 16 bytes, `offset: hex  text`; rows of zeros are left out.
fn dump(bytes: &[u8]) -> String {
    let mut out = format!("length {}\n", bytes.len());
    for (i, row) in bytes.chunks(16).enumerate() {
        if row.iter().all(|b| *b == 0) {
            continue;
        }
        write!(out, "{:06x}:", i * 16).unwrap();
        for b in row {
            write!(out, " {b:02x}").unwrap();
        }
        let text = row.iter().map(|b| if (32..127).contains(b) { char::from(*b) } else { '.' });
        writeln!(out, "  {}", text.collect::<String>()).unwrap();
    }
    out
}

/// Compares `bytes` with the golden file `name`.
pub fn check(name: &str, bytes: &[u8]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(format!("{name}.txt"));
    let now = dump(bytes);
    if std::env::var_os("BRAID_GOLDEN").is_some_and(|v| v == "write") {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, &now).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_else(|e| {
        panic!("{}: {e} (a new structure needs its golden file)", path.display())
    });
    assert_eq!(now, golden, "the bytes of {name} are not the golden ones");
}

mod structures;
