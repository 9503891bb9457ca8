//! Sizes on the command line: `64K`, `256KiB`, `4M`, `1G`, plain bytes. Powers of 1024.

pub use braid_pool::layout::size::parse;

/// For people: `1.5 GiB`.
pub fn show(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut unit = 0;
    let mut rest = bytes;
    while unit + 1 < UNITS.len()
        && (rest >= 10 << 10 || (rest >= 1 << 10 && rest.is_multiple_of(1 << 10)))
    {
        rest >>= 10;
        unit += 1;
    }
    let whole = (u128::from(bytes) * 10) >> (10 * unit);
    if whole % 10 == 0 {
        format!("{} {}", whole / 10, UNITS[unit])
    } else {
        format!("{}.{} {}", whole / 10, whole % 10, UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_and_shown() {
        assert_eq!(parse("64K"), Ok(65536));
        assert_eq!(parse("1GiB"), Ok(1 << 30));
        assert_eq!(parse("4096"), Ok(4096));
        assert!(parse("").is_err() && parse("12x").is_err() && parse("-4K").is_err());
        assert!(parse("99999999999T").is_err());
        assert_eq!(show(256 << 10), "256 KiB");
        assert_eq!(show(1 << 30), "1 GiB");
        assert_eq!(show(15 << 29), "7680 MiB");
        assert_eq!(show(100), "100 B");
    }
}
