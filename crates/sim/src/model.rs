//! What the metadata ought to be: for checking only.
//!
//! A life's transactions become durable in the order in which they were closed. Those that were
//! acknowledged (a commit begun after them has returned, or a lock that they changed something
//! under was demoted) must survive; of the others, any number from the oldest on may. Which of them
//! did is seen when the life has been recovered: what then stands must be what some such number of
//! transactions leaves, every one of them whole.

use std::collections::{HashMap, HashSet};

use braid_format::Generation;
use braid_lock::Life;

use crate::image::{BLOCKS, BlockIndex, LOCKS_MAX};

/// A closed transaction.
#[derive(Clone)]
struct Transaction {
    value: u64,
    /// What it changed, and what stood there before.
    before: Vec<(BlockIndex, u64)>,
}

impl std::fmt::Debug for Transaction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} over (block, value) {:?}", self.value, self.before)
    }
}

/// What a life has done.
#[derive(Debug, Default)]
struct Log {
    closed: Vec<Transaction>,
    /// So many of them are known to be durable.
    durable: usize,
}

/// The metadata as everybody must see it.
#[derive(Debug)]
pub(crate) struct Model {
    /// The latest value of each block.
    values: Vec<u64>,
    /// The highest generation that ever was in place for good.
    floors: Vec<Generation>,
    lives: HashMap<Life, Log>,
    /// Lives that were recovered. A process of one that was stopped meanwhile may still work in its memory.
    over: HashSet<Life>,
    acknowledged: u64,
}

impl Model {
    pub(crate) fn new() -> Self {
        Self {
            values: vec![0; LOCKS_MAX * BLOCKS],
            floors: vec![Generation(0); LOCKS_MAX * BLOCKS],
            lives: HashMap::new(),
            over: HashSet::new(),
            acknowledged: 0,
        }
    }
    pub(crate) fn value(&self, block: BlockIndex) -> u64 {
        self.values.get(block).copied().unwrap_or_default()
    }
    /// Transactions that were acknowledged.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged
    }
    /// A transaction has been closed that set all of `blocks` to `value`.
    pub(crate) fn closed(&mut self, me: Life, blocks: &[BlockIndex], value: u64) {
        if self.over.contains(&me) {
            // It was stopped, and does not know yet that it is over: this is in its memory only.
            return;
        }
        let before = blocks.iter().map(|b| (*b, self.value(*b))).collect();
        for block in blocks {
            if let Some(latest) = self.values.get_mut(*block) {
                *latest = value;
            }
        }
        self.lives.entry(me).or_default().closed.push(Transaction { value, before });
    }
    /// How many transactions `me` has closed.
    pub(crate) fn closed_by(&self, me: Life) -> usize {
        self.lives.get(&me).map_or(0, |log| log.closed.len())
    }
    /// The number of the last transaction of `me` that changed something in `blocks`, from one.
    pub(crate) fn last_in(&self, me: Life, blocks: &std::ops::Range<BlockIndex>) -> usize {
        let Some(log) = self.lives.get(&me) else { return 0 };
        let touches = |t: &Transaction| t.before.iter().any(|(b, _)| blocks.contains(b));
        log.closed.iter().rposition(touches).map_or(0, |n| n + 1)
    }
    /// The first `count` transactions of `me` are durable.
    pub(crate) fn durable(&mut self, me: Life, count: usize) {
        if let Some(log) = self.lives.get_mut(&me)
            && count > log.durable
        {
            self.acknowledged += (count - log.durable) as u64;
            log.durable = count;
        }
    }
    /// A power cut has taken a lock from the dead life `me`: what it did to the blocks under it,
    /// and all that it did later, must not survive, for others may use them at once.
    pub(crate) fn revoked(&mut self, me: Life, blocks: &std::ops::Range<BlockIndex>) {
        let Some(log) = self.lives.get_mut(&me) else { return };
        let unsure = log.closed.get(log.durable..).unwrap_or_default();
        let touches = |t: &Transaction| t.before.iter().any(|(b, _)| blocks.contains(b));
        let Some(first) = unsure.iter().position(touches) else { return };
        for transaction in log.closed.split_off(log.durable + first).into_iter().rev() {
            for (block, before) in transaction.before {
                if let Some(value) = self.values.get_mut(block) {
                    *value = before;
                }
            }
        }
    }
    /// `me` is over and recovered: takes over what survived of it.
    ///
    /// # Errors
    /// What is wrong with what stands.
    pub(crate) fn recovered(
        &mut self,
        me: Life,
        stands: impl Fn(BlockIndex) -> Option<u64>,
    ) -> Result<(), String> {
        self.over.insert(me);
        let Some(log) = self.lives.remove(&me) else { return Ok(()) };
        let unsure = log.closed.get(log.durable..).unwrap_or_default();
        let mut touched: Vec<BlockIndex> =
            unsure.iter().flat_map(|t| t.before.iter().map(|(b, _)| *b)).collect();
        touched.sort_unstable();
        touched.dedup();
        let mut values = self.values.clone();
        // From "all survived" back to "only what had to".
        for transaction in unsure.iter().rev().map(Some).chain([None]) {
            let fits = |b: &BlockIndex| stands(*b) == values.get(*b).copied();
            if touched.iter().all(fits) {
                self.values = values;
                return Ok(());
            }
            for (block, before) in transaction.iter().flat_map(|t| &t.before) {
                if let Some(value) = values.get_mut(*block) {
                    *value = *before;
                }
            }
        }
        let found: Vec<_> = touched.iter().map(|b| (*b, stands(*b))).collect();
        Err(format!(
            "{me:?} is recovered; {} of its transactions were durable, after them came {unsure:?}; \
             no number of these leaves what stands: {found:?}",
            log.durable
        ))
    }
    /// Checks a block that no node may be changing: what is in its place on the disks (`stands`; `None`
    /// if it is damaged) must be its latest content.
    ///
    /// # Errors
    /// It is not.
    pub(crate) fn settled(
        &mut self,
        block: BlockIndex,
        stands: Option<(Generation, u64)>,
    ) -> Result<(), String> {
        let latest = self.value(block);
        let Some((generation, value)) = stands else {
            return Err(format!("block {block} is damaged, and nobody is at it"));
        };
        if value != latest {
            return Err(format!("block {block} holds {value}, and should hold {latest}"));
        }
        match self.floors.get_mut(block) {
            Some(floor) if generation < *floor => {
                Err(format!("block {block} went back from {floor:?} to {generation:?}"))
            }
            Some(floor) => {
                *floor = generation;
                Ok(())
            }
            None => Ok(()),
        }
    }
    /// Whether one of `lives` has changed the block without knowing that to be durable.
    pub(crate) fn unsure(&self, block: BlockIndex, lives: &[Life]) -> bool {
        lives.iter().filter_map(|me| self.lives.get(me)).any(|log| {
            let unsure = log.closed.get(log.durable..).unwrap_or_default();
            unsure.iter().any(|t| t.before.iter().any(|(b, _)| *b == block))
        })
    }
}

#[cfg(test)]
mod tests {
    use braid_format::{Incarnation, NodeId};

    use super::*;

    const ME: Life = Life { slot: NodeId(0), incarnation: Incarnation(1) };

    /// Three transactions, of which one is durable: {0, 1}, {1, 2}, {0, 2}.
    fn model() -> Model {
        let mut model = Model::new();
        model.closed(ME, &[0, 1], 10);
        model.closed(ME, &[1, 2], 11);
        model.closed(ME, &[0, 2], 12);
        model.durable(ME, 1);
        model
    }
    fn stands(values: [u64; 3]) -> impl Fn(BlockIndex) -> Option<u64> {
        move |block| values.get(block).copied()
    }

    #[test]
    fn any_number_of_whole_transactions_may_survive() {
        for values in [[10, 10, 0], [10, 11, 11], [12, 11, 12]] {
            let mut model = model();
            model.recovered(ME, stands(values)).unwrap();
            assert_eq!([0, 1, 2].map(|b| model.value(b)), values);
        }
    }
    #[test]
    fn halves_gaps_and_losses_are_found() {
        let (half, gap, loss) = ([10, 11, 0], [12, 10, 12], [0, 0, 0]);
        for values in [half, gap, loss] {
            assert!(model().recovered(ME, stands(values)).is_err(), "{values:?}");
        }
    }
    #[test]
    fn a_block_does_not_go_back() {
        let mut model = Model::new();
        model.settled(0, Some((Generation(3), 0))).unwrap();
        assert!(model.settled(0, Some((Generation(2), 0))).is_err());
        assert!(model.settled(0, Some((Generation(3), 1))).is_err());
        assert!(model.settled(0, None).is_err());
    }
}
