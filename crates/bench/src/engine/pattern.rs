//! The addresses of requests. They are pure functions of the request's number: a run can be repeated,
//! verified, and split among streams.

/// In what order a range is gone through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// One after the other; from the beginning again at the end.
    Sequential,
    /// Any place, multiples of the request.
    Random,
    /// Forward in steps of so many bytes; from the beginning again at the end.
    Stride(u64),
    /// The first one again and again.
    Same,
}

/// Requests of one size over one range.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Pattern {
    pub order: Order,
    /// First byte of the range.
    pub from: u64,
    /// Bytes of the range.
    pub span: u64,
    /// Bytes of a request.
    pub request: u64,
    pub count: u64,
    /// How many of a hundred are reads.
    pub reads: u8,
    /// Another seed, another random order.
    pub seed: u64,
    /// Between numbers of requests of this stream, if several share the pattern.
    pub step: u64,
    /// Its first.
    pub first: u64,
}

impl Pattern {
    /// `total` bytes from `from` on, one after the other.
    pub fn sequential(from: u64, total: u64, request: u64, reads: bool) -> Self {
        Self {
            order: Order::Sequential,
            from,
            span: total,
            request,
            count: total / request.max(1),
            reads: if reads { 100 } else { 0 },
            seed: 1,
            step: 1,
            first: 0,
        }
    }
    pub fn ordered(self, order: Order) -> Self {
        Self { order, ..self }
    }
    /// Every `parts`-th request from number `n` on, `count` of them.
    pub fn every(self, parts: u64, n: u64, count: u64) -> Self {
        let first = self.first.wrapping_add(self.step.wrapping_mul(n));
        Self { step: self.step.wrapping_mul(parts), first, count, ..self }
    }
    /// The place of request `i`, and whether it is a read. A number too large for one goes on from 0:
    /// whatever is asked for, the place is inside the range, which [`Target::check`] has looked at.
    ///
    /// [`Target::check`]: super::Target::check
    pub fn at(&self, i: u64) -> (u64, bool) {
        let n = self.first.wrapping_add(i.wrapping_mul(self.step));
        let slots = (self.span / self.request.max(1)).max(1);
        let at = match self.order {
            Order::Sequential => n % slots * self.request,
            Order::Random => mix(self.seed, n) % slots * self.request,
            Order::Stride(stride) => {
                let stride = stride.max(1);
                let per_lap = (self.span.saturating_sub(self.request) / stride + 1).max(1);
                n % per_lap * stride
            }
            Order::Same => 0,
        };
        let read = match self.reads {
            0 => false,
            100.. => true,
            part => mix(self.seed ^ 0x5eed, n) % 100 < u64::from(part),
        };
        (self.from.saturating_add(at), read)
    }
}

/// A number that looks random, of two (splitmix64).
pub(crate) fn mix(seed: u64, n: u64) -> u64 {
    let mut z = seed.wrapping_add(n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
