//! The arithmetic of parity: P is the exclusive or of the data, Q = sum of g^i d_i over GF(2^8)
//! with polynomial 0x11d and generator g = 2. Source: H. P. Anvin, "The mathematics of RAID-6".
//!
//! Written so that the compiler makes vector code of every inner loop (measured: `cargo bench` of
//! this crate; docs/results). A library was not taken because a partial write needs the
//! *change* of a parity from the change of one column, which a code for whole sets of shards
//! (Reed-Solomon by FFT) does not give.

/// Bytes worked on at a time: a block of each parity stays in the first-level cache.
const BLOCK: usize = 8 << 10;

/// `to ^= from`. The lengths are equal.
pub fn xor(to: &mut [u8], from: &[u8]) {
    debug_assert_eq!(to.len(), from.len());
    for (t, f) in to.iter_mut().zip(from) {
        *t ^= *f;
    }
}

/// 2 x over the field, without a branch.
const fn double(x: u8) -> u8 {
    (x << 1) ^ (0x1d & (x >> 7).wrapping_neg())
}

/// `q = 2 q + d`: one step of Horner's rule.
fn double_add(q: &mut [u8], d: &[u8]) {
    for (q, d) in q.iter_mut().zip(d) {
        *q = double(*q) ^ *d;
    }
}

/// `to += factor * from`.
pub fn add_product(to: &mut [u8], from: &[u8], factor: u8) {
    debug_assert_eq!(to.len(), from.len());
    match factor {
        0 => {}
        1 => xor(to, from),
        _ => {
            let bit = |n: u32| (factor >> n & 1).wrapping_neg();
            let bits = [bit(0), bit(1), bit(2), bit(3), bit(4), bit(5), bit(6), bit(7)];
            for (t, f) in to.iter_mut().zip(from) {
                let (mut x, mut sum) = (*f, 0);
                for mask in bits {
                    sum ^= x & mask;
                    x = double(x);
                }
                *t ^= sum;
            }
        }
    }
}

/// Product of two elements.
pub const fn mul(mut a: u8, mut b: u8) -> u8 {
    let mut product = 0;
    while b != 0 {
        product ^= a & (b & 1).wrapping_neg();
        a = double(a);
        b >>= 1;
    }
    product
}

/// g^n.
pub const fn power(n: usize) -> u8 {
    let (mut x, mut i) = (1, 0);
    // The group has order 255.
    while i < n % 255 {
        x = double(x);
        i += 1;
    }
    x
}

/// 1 / x; 0 for 0.
pub const fn inverse(x: u8) -> u8 {
    // x^254, by squaring: 254 = 0b1111_1110.
    let (mut result, mut square, mut bit) = (1, x, 0);
    while bit < 7 {
        square = mul(square, square);
        result = mul(result, square);
        bit += 1;
    }
    result
}

/// Fills `p`, and `q` if there is one, from the data columns. All lengths are equal.
pub fn encode(data: &[&[u8]], p: &mut [u8], mut q: Option<&mut [u8]>) {
    let len = p.len();
    let mut from = 0;
    while from < len {
        let to = (from + BLOCK).min(len);
        let Some(p) = p.get_mut(from..to) else { return };
        let columns = || data.iter().rev().filter_map(|d| d.get(from..to));
        let mut rest = columns();
        if let Some(last) = rest.next() {
            p.copy_from_slice(last);
        }
        rest.for_each(|d| xor(p, d));
        if let Some(q) = q.as_deref_mut().and_then(|q| q.get_mut(from..to)) {
            let mut rest = columns();
            if let Some(last) = rest.next() {
                q.copy_from_slice(last);
            }
            rest.for_each(|d| double_add(q, d));
        }
        from = to;
    }
}

/// Brings P up to date when a data column changes by `change` (old exclusive-or new).
pub fn update_p(p: &mut [u8], change: &[u8]) {
    xor(p, change);
}

/// Brings Q up to date when data column `i` changes by `change` (old exclusive-or new).
pub fn update_q(q: &mut [u8], change: &[u8], i: usize) {
    add_product(q, change, power(i));
}

/// Computes the columns named in `lost` from the others. `columns` holds `data` data columns, then
/// P, then Q if the code has one; all of equal length. What stood in the lost ones is overwritten.
/// Returns `false`, with nothing done, when more are lost than the code can give back.
#[must_use]
pub fn recover(data: usize, columns: &mut [&mut [u8]], lost: &[usize]) -> bool {
    let parity = columns.len().saturating_sub(data);
    if lost.len() > parity || lost.iter().any(|l| *l >= columns.len()) {
        return false;
    }
    let lost_data: Vec<usize> = lost.iter().copied().filter(|l| *l < data).collect();
    match *lost_data {
        [] => {}
        [x] if !lost.contains(&data) => recover_by_p(data, columns, x),
        [x] => recover_by_q(data, columns, x),
        [x, y, ..] => recover_two(data, columns, x.min(y), x.max(y)),
    }
    for parity in lost.iter().copied().filter(|l| *l >= data) {
        let mut sum = vec![0; columns.first().map_or(0, |c| c.len())];
        for (i, d) in columns.iter().take(data).enumerate() {
            add_product(&mut sum, d, if parity == data { 1 } else { power(i) });
        }
        put(columns, parity, &sum);
    }
    true
}

/// Data column `x` = P + all others.
fn recover_by_p(data: usize, columns: &mut [&mut [u8]], x: usize) {
    let mut sum = copy(columns, data);
    for (_, d) in columns.iter().take(data).enumerate().filter(|(i, _)| *i != x) {
        xor(&mut sum, d);
    }
    put(columns, x, &sum);
}

/// Data column `x` = (Q + all others times their powers) / g^x.
fn recover_by_q(data: usize, columns: &mut [&mut [u8]], x: usize) {
    let mut sum = copy(columns, data + 1);
    for (i, d) in columns.iter().take(data).enumerate().filter(|(i, _)| *i != x) {
        add_product(&mut sum, d, power(i));
    }
    let mut found = vec![0; sum.len()];
    add_product(&mut found, &sum, inverse(power(x)));
    put(columns, x, &found);
}

/// Two data columns from P and Q: with Pxy, Qxy the parities of the others,
/// Dx = (g^(y-x) (P + Pxy) + g^-x (Q + Qxy)) / (g^(y-x) + 1) and Dy = P + Pxy + Dx.
fn recover_two(data: usize, columns: &mut [&mut [u8]], x: usize, y: usize) {
    let (mut p, mut q) = (copy(columns, data), copy(columns, data + 1));
    for (i, d) in columns.iter().take(data).enumerate().filter(|(i, _)| *i != x && *i != y) {
        xor(&mut p, d);
        add_product(&mut q, d, power(i));
    }
    let step = power(y - x);
    let scale = inverse(step ^ 1);
    let mut dx = vec![0; p.len()];
    add_product(&mut dx, &p, mul(step, scale));
    add_product(&mut dx, &q, mul(inverse(power(x)), scale));
    xor(&mut p, &dx);
    put(columns, x, &dx);
    put(columns, y, &p);
}

fn copy(columns: &[&mut [u8]], i: usize) -> Vec<u8> {
    columns.get(i).map_or_else(Vec::new, |c| c.to_vec())
}

fn put(columns: &mut [&mut [u8]], i: usize, bytes: &[u8]) {
    if let Some(column) = columns.get_mut(i) {
        column.copy_from_slice(bytes);
    }
}

/// Whether what stands in the parity columns is that of the data.
pub fn agrees(data: usize, columns: &[&mut [u8]]) -> bool {
    let Some((data, parities)) = columns.split_at_checked(data) else { return false };
    let data: Vec<&[u8]> = data.iter().map(|c| &**c).collect();
    let len = data.first().map_or(0, |c| c.len());
    let (mut p, mut q) = (vec![0; len], vec![0; len]);
    encode(&data, &mut p, (parities.len() > 1).then_some(&mut q));
    parities.iter().zip([p, q]).all(|(stored, computed)| **stored == *computed)
}

/// Which one column of a row of two parities is wrong, if exactly one is: its place (data, then P,
/// then Q). `Err` when the row is wrong in a way that no single column explains, `Ok(None)` when it
/// is whole.
///
/// # Errors
/// The row is damaged in more than one column.
pub fn locate(data: usize, columns: &[&[u8]]) -> Result<Option<usize>, Damaged> {
    let len = columns.first().map_or(0, |c| c.len());
    let (mut p, mut q) = (vec![0; len], vec![0; len]);
    encode(columns.get(..data).unwrap_or(columns), &mut p, Some(&mut q));
    if let Some(stored) = columns.get(data) {
        xor(&mut p, stored);
    }
    if let Some(stored) = columns.get(data + 1) {
        xor(&mut q, stored);
    }
    // An error e in data column z shows as p = e, q = g^z e at every byte.
    let mut suspect: Option<usize> = None;
    for (p, q) in p.iter().zip(&q).filter(|(p, q)| **p != 0 || **q != 0) {
        let place = match (p, q) {
            (_, 0) => data,
            (0, _) => data + 1,
            (p, q) => {
                let ratio = mul(*q, inverse(*p));
                (0..data).find(|z| power(*z) == ratio).ok_or(Damaged)?
            }
        };
        if *suspect.get_or_insert(place) != place {
            return Err(Damaged);
        }
    }
    Ok(suspect)
}

/// A row is damaged in more than one column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Damaged;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn full(data: &[Vec<u8>], parity: usize) -> Vec<Vec<u8>> {
        let len = data[0].len();
        let (mut p, mut q) = (vec![0xAA; len], vec![0x55; len]);
        let refs: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
        encode(&refs, &mut p, (parity == 2).then_some(&mut q[..]));
        let mut all = data.to_vec();
        all.push(p);
        if parity == 2 {
            all.push(q);
        }
        all
    }

    #[test]
    fn field_laws_hold() {
        for a in 1..=255_u8 {
            assert_eq!(mul(a, inverse(a)), 1, "{a}");
            assert_eq!(mul(a, 2), double(a));
        }
        let mut seen = std::collections::HashSet::new();
        assert!((0..255).all(|n| seen.insert(power(n))), "2 generates the group");
    }

    /// Known values, computed by hand from the definition.
    #[test]
    fn parity_of_known_bytes() {
        let all = full(&[vec![0x01], vec![0x80], vec![0xFF]], 2);
        assert_eq!(all[3], [0x7E]);
        // 1 + 2*0x80 + 4*0xFF = 0x01 ^ 0x1d ^ 0xdb
        assert_eq!(all[4], [0x01 ^ 0x1d ^ mul(4, 0xFF)]);
        assert_eq!(mul(2, 0x80), 0x1d);
    }

    proptest! {
        #[test]
        fn any_lost_columns_come_back(
            (data, parity) in (2_usize..12, 1_usize..=2),
            len in 1_usize..300,
            seed in any::<u64>(),
        ) {
            let mut x = seed | 1;
            let mut next = || { x ^= x << 13; x ^= x >> 7; x ^= x << 17; x.to_le_bytes()[3] };
            let bytes: Vec<Vec<u8>> = (0..data).map(|_| (0..len).map(|_| next()).collect()).collect();
            let whole = full(&bytes, parity);
            for a in 0..whole.len() {
                for b in a..whole.len() {
                    let lost = if a == b { vec![a] } else { vec![a, b] };
                    let mut hurt = whole.clone();
                    lost.iter().for_each(|l| hurt[*l].fill(0xEE));
                    let mut refs: Vec<&mut [u8]> = hurt.iter_mut().map(|c| &mut c[..]).collect();
                    let can = recover(data, &mut refs, &lost);
                    prop_assert_eq!(can, lost.len() <= parity);
                    prop_assert!(!can || hurt == whole, "lost {:?}", lost);
                }
            }
        }

        #[test]
        fn a_change_of_one_column_changes_parity_alike(
            data in 2_usize..10, which in any::<prop::sample::Index>(), old in any::<[u8; 32]>(), new in any::<[u8; 32]>(),
        ) {
            let which = which.index(data);
            let mut bytes: Vec<Vec<u8>> = (0..data).map(|i| vec![u8::try_from(i).unwrap() ^ 0x5A; 32]).collect();
            bytes[which] = old.to_vec();
            let before = full(&bytes, 2);
            bytes[which] = new.to_vec();
            let after = full(&bytes, 2);
            let mut change = old.to_vec();
            xor(&mut change, &new);
            let (mut p, mut q) = (before[data].clone(), before[data + 1].clone());
            update_p(&mut p, &change);
            update_q(&mut q, &change, which);
            prop_assert_eq!(&p, &after[data]);
            prop_assert_eq!(&q, &after[data + 1]);
        }

        #[test]
        fn one_rotten_column_is_found(
            data in 2_usize..10, which in any::<prop::sample::Index>(), at in 0_usize..64, flip in 1_u8..,
        ) {
            let bytes: Vec<Vec<u8>> = (0..data).map(|i| vec![u8::try_from(i * 37 % 251).unwrap(); 64]).collect();
            let mut all = full(&bytes, 2);
            let find = |all: &[Vec<u8>]| {
                let refs: Vec<&[u8]> = all.iter().map(Vec::as_slice).collect();
                locate(data, &refs)
            };
            prop_assert_eq!(find(&all), Ok(None));
            let which = which.index(data + 2);
            all[which][at] ^= flip;
            prop_assert_eq!(find(&all), Ok(Some(which)));
        }
    }
}
