//! What pool a seed makes.

use std::collections::BTreeMap;

use braid_format::label::Label;
use braid_format::redundancy::LogPlace;
use braid_format::{Bytes, StripeUnit};
use braid_pool::CreateOptions;
use braid_pool::layout::parse;

use crate::random::Random;

const MIB: u64 = 1 << 20;
/// Node slots with a log; also in members that join later.
pub(super) const SLOTS: usize = 3;

/// A pool to be, and who uses it.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent of each other")]
pub(super) struct Shape {
    pub text: String,
    pub unit: u64,
    /// Bytes of each device.
    pub sizes: Vec<u64>,
    pub nodes: usize,
    /// Spares from the start.
    pub spares: usize,
    pub eras: u64,
    /// Steps of each era.
    pub steps: u64,
    /// More fails at last than can be spared.
    pub overload: bool,
    /// Little is done but to change locks while members are filled and moved.
    pub contended: bool,
    /// Little is done but to write the same few blocks of mirrors at once.
    pub concurrent: bool,
    /// Members go offline for a while.
    pub offline: bool,
    /// Those writes do not look at the copies afterwards: as it was once.
    pub split: bool,
}

/// Bytes of a device with so many MiB of data.
pub(super) fn size_of(data: u64) -> u64 {
    Label::DATA_AT.0 + SLOTS as u64 * LogPlace::LEN.0 + data * MIB + Label::TAIL.0
}

impl Shape {
    pub fn from_seed(seed: u64) -> Self {
        let mut r = Random::new(seed ^ 0x0073_6861_7065);
        let (text, count) = layout(&mut r);
        let unequal = r.below(2) == 0;
        let data = r.below(2) + 2;
        let sizes: Vec<u64> =
            (0..count).map(|_| size_of(data + if unequal { r.below(3) } else { 0 })).collect();
        Self {
            text,
            unit: *r.pick(&[4, 16, 64, 256]) << 10,
            sizes,
            nodes: *r.pick(&[1, 1, 2, 3]),
            spares: usize::from(r.below(3) == 0),
            eras: r.below(3) + 1,
            steps: r.below(50) + 20,
            overload: r.below(12) == 0,
            contended: false,
            concurrent: false,
            offline: false,
            split: false,
        }
    }

    /// Of nodes that change locks while members are filled and moved.
    pub fn contended(seed: u64) -> Self {
        let mut r = Random::new(seed ^ 0x6c6f_636b_7368);
        let layouts = [("mirror(0,1)", 2), ("mirror(0,1,2)", 3), ("mirror+1(0-2)", 3)];
        let striped = ("stripe(mirror(0,1),mirror(2,3))", 4);
        let parity = ("metadata = mirror(0[1M],1[1M]); data = parity+1/64K(0-2)", 3);
        let (text, count) = *r.pick(&[layouts[0], layouts[1], layouts[2], striped, parity]);
        Self {
            text: text.to_owned(),
            unit: *r.pick(&[16, 64, 256]) << 10,
            sizes: vec![size_of(2); count],
            nodes: *r.pick(&[2, 2, 3]),
            spares: 0,
            eras: 1,
            steps: 150,
            overload: false,
            contended: true,
            concurrent: false,
            offline: false,
            split: false,
        }
    }

    /// Of nodes that write the same few blocks of mirrors at once.
    pub fn concurrent(seed: u64) -> Self {
        let mut r = Random::new(seed ^ 0x6265_7369_6465);
        let layouts = [("mirror(0,1)", 2), ("mirror(0,1,2)", 3), ("mirror+1(0-2)", 3)];
        let striped = ("stripe(mirror(0,1),mirror(2,3))", 4);
        let (text, count) = *r.pick(&[layouts[0], layouts[0], layouts[1], layouts[2], striped]);
        Self {
            text: text.to_owned(),
            unit: *r.pick(&[16, 64, 256]) << 10,
            sizes: vec![size_of(2); count],
            nodes: *r.pick(&[2, 2, 3]),
            spares: 0,
            eras: r.below(2) + 1,
            steps: r.below(60) + 40,
            overload: false,
            contended: false,
            concurrent: true,
            offline: false,
            split: false,
        }
    }

    /// Of members that go offline for a while.
    pub fn offline(seed: u64) -> Self {
        let mut r = Random::new(seed ^ 0x6f66_666c_696e);
        let usual = Self::from_seed(seed);
        let bare = usual.text.starts_with("stripe(0");
        let (text, count) =
            if bare { ("mirror(0,1,2)".to_owned(), 3) } else { (usual.text, usual.sizes.len()) };
        Self {
            text,
            sizes: vec![size_of(r.below(3) + 4); count],
            steps: r.below(60) + 60,
            overload: false,
            offline: true,
            ..usual
        }
    }

    pub fn options(&self) -> CreateOptions {
        let mut options = CreateOptions::new("simulated");
        options.layout = parse::layout(&self.text, &BTreeMap::new()).ok();
        assert!(options.layout.is_some(), "no layout: {}", self.text);
        options.stripe_unit = StripeUnit::new(Bytes(self.unit)).unwrap_or(StripeUnit::DEFAULT);
        options.lock_sector = Some(Bytes(super::acts::LOCK));
        options.log_slots = u16::try_from(SLOTS).unwrap_or(1);
        options
    }
}

/// A layout, and how many devices it wants.
fn layout(r: &mut Random) -> (String, u64) {
    let weight = |r: &mut Random| if r.below(3) == 0 { "*2" } else { "" };
    match r.below(12) {
        0 => (format!("stripe(0{},1{})", weight(r), weight(r)), 2),
        1 => (format!("stripe(0,1{},2)", weight(r)), 3),
        2 => ("mirror(0,1)".to_owned(), 2),
        3 => ("mirror(0,1,2)".to_owned(), 3),
        4 => (format!("stripe(mirror(0,1){},mirror(2,3))", weight(r)), 4),
        5 => ("mirror+1(0-2)".to_owned(), 3),
        6 => ("mirror+2(0-3)".to_owned(), 4),
        7 | 8 => {
            let n = r.below(3) + 3;
            let last = n - 1;
            let unit = r.pick(&["4K", "16K", "64K"]);
            (format!("metadata = mirror(0[1M],1[1M]); data = parity+1/{unit}(0-{last})"), n)
        }
        9 | 10 => {
            let n = r.below(3) + 4;
            let last = n - 1;
            let unit = r.pick(&["4K", "16K", "64K"]);
            let metadata = "mirror(0[1M],1[1M],2[1M])";
            (format!("metadata = {metadata}; data = parity+2/{unit}(0-{last})"), n)
        }
        _ => {
            let metadata = "mirror(0[1M],3[1M])";
            let data = "stripe(parity+1/16K(0-2),parity+1/16K(3-5))";
            (format!("metadata = {metadata}; data = {data}"), 6)
        }
    }
}
