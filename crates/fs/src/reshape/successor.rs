//! Somebody for the place of a member that holds what the pool was made with.
//!
//! That never leaves the pool, but another member may hold it: one that holds nothing, or one that
//! came with a part of the pool that can leave.

use braid_format::MemberIndex;
use braid_pool::MemberSelector;
use uuid::Uuid;

use super::leave::Leaving;
use crate::Fs;
use crate::error::{Error, Result};

/// The member that takes another one's place, and what leaves the pool for that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Successor {
    /// Its place in the pool.
    pub member: MemberIndex,
    /// Its identity.
    pub uuid: Uuid,
    /// What leaves the pool first; `None`: it holds nothing.
    pub leaving: Option<Leaving>,
}

impl Fs {
    /// The member that can take the place of another one: one that holds nothing, or else one of a
    /// part that can leave the pool, the one with the least to move. Nothing is changed.
    ///
    /// # Errors
    /// [`Error::NoSuccessor`]; the pool's, where the member cannot be moved.
    pub fn plan_successor(&self, member: impl Into<MemberSelector>) -> Result<Successor> {
        self.core().check_alive()?;
        let (pool, member) = (self.pool(), member.into());
        if let Some((member, uuid)) = pool.successors(member, &[])?.into_iter().next() {
            return Ok(Successor { member, uuid, leaving: None });
        }
        let (mut best, mut why): (Option<Successor>, Vec<String>) = (None, Vec::new());
        for (parts, planned) in self.plans()? {
            let leaving = match planned {
                Ok(leaving) => leaving,
                Err(error) => {
                    why.push(format!("part {parts} cannot leave: {error}"));
                    continue;
                }
            };
            let Some((member, uuid)) =
                pool.successors(member, &leaving.members)?.into_iter().next()
            else {
                why.push(format!("no device of part {parts} is large enough"));
                continue;
            };
            let fewer =
                |b: &Successor| b.leaving.as_ref().is_none_or(|l| leaving.blocks < l.blocks);
            if best.as_ref().is_none_or(fewer) {
                best = Some(Successor { member, uuid, leaving: Some(leaving) });
            }
        }
        if why.is_empty() {
            why.push("nothing was added to it".to_owned());
        }
        best.ok_or_else(|| Error::NoSuccessor { why: why.join("; ") })
    }

    /// As [`Fs::plan_successor`], and what the successor held has left the pool when this returns.
    /// Blocks that were moved; `None`: it was told to stop ([`Fs::stop_leaving`]), all is in use
    /// again.
    ///
    /// # Errors
    /// As [`Fs::plan_successor`], [`Fs::leave`].
    pub fn make_successor(
        &self,
        member: impl Into<MemberSelector>,
    ) -> Result<Option<(Successor, u64)>> {
        let successor = self.plan_successor(member)?;
        if successor.leaving.is_none() {
            return Ok(Some((successor, 0)));
        }
        let left = self.leave(successor.uuid)?;
        Ok(left.finished.then_some((successor, left.moved)))
    }
}
