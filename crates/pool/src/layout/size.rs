//! Sizes in text: `64K`, `256KiB`, `4M`, `1G`, plain bytes. Powers of 1024.

/// Parses a size.
///
/// # Errors
/// A sentence naming what was given and what is expected.
pub fn parse(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, suffix) = text.split_at(digits);
    let bad = || format!("'{text}' is not a size; write bytes, or a number with K, M, G or T");
    let number: u64 = number.parse().map_err(|_| bad())?;
    let shift = match suffix.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(bad()),
    };
    number.checked_shl(shift).filter(|v| v >> shift == number).ok_or_else(bad)
}

/// A size that [`parse`] reads back as it was.
pub fn exact(bytes: u64) -> String {
    let (suffix, shift) = [("T", 40), ("G", 30), ("M", 20), ("K", 10)]
        .into_iter()
        .find(|(_, shift)| bytes != 0 && bytes.trailing_zeros() >= *shift)
        .unwrap_or(("", 0));
    format!("{}{suffix}", bytes >> shift)
}
