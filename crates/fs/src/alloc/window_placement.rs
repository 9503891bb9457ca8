//! Which part of a group becomes a window. Pure.

use braid_format::rgrp::BlockState;

use super::bits;

/// What is looked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct WindowRequest<'a> {
    /// Blocks in the group.
    pub count: u64,
    /// Ranges (start, length) that are windows of this node already.
    pub taken: &'a [(u64, u64)],
    /// Where the last window in this group ended.
    pub near: Option<u64>,
    /// Most blocks in the window.
    pub len: u64,
    /// Grain of start and end.
    pub grain: u64,
    /// `Free`, or `MetaFree` when only slots are wanted.
    pub state: BlockState,
}

/// Parts of the group outside `taken`.
fn allowed(request: &WindowRequest<'_>) -> Vec<(u64, u64)> {
    let mut taken: Vec<(u64, u64)> = request.taken.to_vec();
    taken.sort_unstable();
    let mut out = Vec::new();
    let mut at = 0;
    for (start, len) in taken {
        if start > at {
            out.push((at, start));
        }
        at = at.max(start + len);
    }
    if at < request.count {
        out.push((at, request.count));
    }
    out
}

/// The best range for a window, as (start, length): right after the last one if there is room; else
/// the longest run; else, in a group without long runs, the range that holds most.
pub(super) fn choose(bits: &[u8], request: &WindowRequest<'_>) -> Option<(u64, u64)> {
    let enough = (request.len / 4).max(1);
    let mut longest: Option<(u64, u64, u64)> = None;
    let mut densest: Option<(u64, u64, u64)> = None;
    for (from, to) in allowed(request) {
        let runs: Vec<(u64, u64)> = bits::runs(bits, from, to, request.state).collect();
        for &(start, n) in &runs {
            if let Some(near) = request.near
                && near >= start
                && near < start + n
                && start + n - near >= enough
            {
                return Some(cut(request, near, to, near + request.len));
            }
            if longest.is_none_or(|(_, best, _)| n > best) {
                longest = Some((start, n, to));
            }
        }
        if let Some((start, sum)) = densest_range(&runs, request.len)
            && densest.is_none_or(|(_, best, _)| sum > best)
        {
            densest = Some((start, sum, to));
        }
    }
    let (start, n, to) = longest?;
    if n >= enough {
        return Some(cut(request, start, to, start + request.len));
    }
    let (start, _, to) = densest?;
    Some(cut(request, start, to, start + request.len))
}

/// Range from `start` to `end`, at most to `to`, on the grain (`to` is on the grain, except at a
/// group's end).
fn cut(request: &WindowRequest<'_>, start: u64, to: u64, end: u64) -> (u64, u64) {
    let start = start / request.grain * request.grain;
    let end = (end / request.grain * request.grain).max(start + request.grain).min(to);
    (start, end - start)
}

/// Start of the range of `len` blocks that holds most of `runs`, and how much.
fn densest_range(runs: &[(u64, u64)], len: u64) -> Option<(u64, u64)> {
    let mut best: Option<(u64, u64)> = None;
    let mut sum = 0;
    let mut end = 0;
    for (i, &(start, n)) in runs.iter().enumerate() {
        while let Some(&(s, m)) = runs.get(end) {
            if s + m > start + len {
                break;
            }
            sum += m;
            end += 1;
        }
        // A run that sticks out counts with its inner part.
        let tail = runs.get(end).map_or(0, |&(s, _)| (start + len).saturating_sub(s));
        if best.is_none_or(|(_, b)| sum + tail > b) {
            best = Some((start, sum + tail));
        }
        if end > i {
            sum -= n;
        } else {
            end = i + 1;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(len: u64, taken: &[(u64, u64)], near: Option<u64>) -> WindowRequest<'_> {
        WindowRequest { count: 1000, taken, near, len, grain: 1, state: BlockState::Free }
    }
    fn group(free: &[(u64, u64)]) -> Vec<u8> {
        let mut b = vec![0x55; 250];
        for &(start, n) in free {
            bits::fill(&mut b, start, n, BlockState::Free);
        }
        b
    }

    #[test]
    fn goes_on_where_the_last_one_ended() {
        let b = group(&[(0, 900)]);
        assert_eq!(choose(&b, &request(100, &[], None)), Some((0, 100)));
        assert_eq!(choose(&b, &request(100, &[(0, 100)], Some(100))), Some((100, 100)));
        assert_eq!(choose(&b, &request(100, &[(0, 100)], Some(950))), Some((100, 100)));
    }
    #[test]
    fn prefers_the_longest_run_then_the_densest_range() {
        let b = group(&[(10, 5), (100, 60), (300, 40)]);
        assert_eq!(choose(&b, &request(100, &[], None)), Some((100, 100)));
        assert_eq!(choose(&b, &request(100, &[(100, 50)], None)), Some((300, 100)));
        let scattered: Vec<(u64, u64)> =
            [3, 20, 500, 504, 508, 512, 516, 700].iter().map(|&s| (s, 2)).collect();
        assert_eq!(choose(&group(&scattered), &request(40, &[], None)), Some((500, 40)));
    }
    #[test]
    fn nothing_free_is_none_and_the_last_block_is_found() {
        assert_eq!(choose(&group(&[]), &request(40, &[], None)), None);
        assert_eq!(choose(&group(&[(999, 1)]), &request(40, &[], None)), Some((999, 1)));
        assert_eq!(choose(&group(&[(5, 3)]), &request(40, &[(0, 100)], None)), None);
    }
    #[test]
    fn what_is_left_of_a_run_must_be_worth_going_on() {
        let b = group(&[(100, 800)]);
        // A quarter of a window is worth it.
        assert_eq!(choose(&b, &request(100, &[], Some(870))), Some((870, 100)));
        assert_eq!(choose(&b, &request(100, &[], Some(875))), Some((875, 100)));
        assert_eq!(choose(&b, &request(100, &[], Some(876))), Some((100, 100)));
        assert_eq!(choose(&b, &request(100, &[], Some(99))), Some((100, 100)));
    }
    #[test]
    fn of_runs_and_ranges_the_best_wins_and_the_first_of_equals() {
        assert_eq!(
            choose(&group(&[(10, 40), (200, 60)]), &request(100, &[], None)),
            Some((200, 100))
        );
        assert_eq!(
            choose(&group(&[(10, 60), (200, 60)]), &request(100, &[], None)),
            Some((10, 100))
        );
        // Short runs on both sides of a window.
        let b = group(&[(3, 2), (500, 2), (504, 2)]);
        assert_eq!(choose(&b, &request(40, &[(200, 100)], None)), Some((500, 40)));
        let b = group(&[(3, 2), (7, 2), (500, 2)]);
        assert_eq!(choose(&b, &request(40, &[(200, 100)], None)), Some((3, 40)));
        let b = group(&[(3, 2), (500, 2)]);
        assert_eq!(choose(&b, &request(40, &[(200, 100)], None)), Some((3, 40)));
    }
    #[test]
    fn a_window_ends_where_another_begins() {
        let b = group(&[(0, 1000)]);
        assert_eq!(choose(&b, &request(1000, &[(600, 10), (0, 20)], None)), Some((20, 580)));
    }
    #[test]
    fn windows_begin_and_end_on_the_grain() {
        let b = group(&[(13, 60)]);
        let on_8 = |len| choose(&b, &WindowRequest { grain: 8, ..request(len, &[], None) });
        assert_eq!(on_8(100), Some((8, 104)));
        assert_eq!(on_8(2), Some((8, 8)), "at least one");
    }
    #[test]
    fn the_densest_range_counts_what_sticks_out_with_its_inner_part() {
        assert_eq!(densest_range(&[(0, 10), (35, 10), (100, 14)], 40), Some((0, 15)));
        assert_eq!(densest_range(&[(0, 4), (12, 10), (24, 10), (36, 10)], 34), Some((12, 30)));
        assert_eq!(densest_range(&[(0, 50), (60, 5)], 10), Some((0, 10)));
        assert_eq!(densest_range(&[(0, 4), (60, 4)], 10), Some((0, 4)), "the first of equals");
    }
}
