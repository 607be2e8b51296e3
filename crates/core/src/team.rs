//! Teams: ordered sets of ranks.

use std::sync::Arc;

use crate::Rank;

/// An ordered set of world ranks. Position in the team is the rank that a collective over it uses.
///
/// ```
/// use campanile_core::{Rank, Team};
/// let odd = Team::new([Rank(1), Rank(3)]).unwrap();
/// assert_eq!(odd.position(Rank(3)), Some(1));
/// assert_eq!(odd.member(0), Rank(1));
/// assert!(Team::new([Rank(1), Rank(1)]).is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Team {
    members: Arc<[Rank]>,
}

/// A list of ranks that is no team.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TeamError {
    /// No member was given.
    #[error("a team needs at least one rank, none was given")]
    Empty,
    /// A member was given twice.
    #[error("{0} was given twice; a team lists each rank once")]
    Duplicate(Rank),
}

impl Team {
    /// The team of all ranks of a job of that size.
    ///
    /// # Panics
    /// If `ranks` is 0: there is no job without ranks.
    pub fn world(ranks: usize) -> Self {
        assert!(ranks > 0, "a job has at least one rank");
        Self { members: (0..ranks).map(Rank::new).collect() }
    }

    /// The team of these world ranks, in this order.
    ///
    /// # Errors
    /// [`TeamError`] if there is none or one is listed twice.
    pub fn new(members: impl IntoIterator<Item = Rank>) -> Result<Self, TeamError> {
        let members: Arc<[Rank]> = members.into_iter().collect();
        if members.is_empty() {
            return Err(TeamError::Empty);
        }
        let mut sorted = members.to_vec();
        sorted.sort_unstable();
        match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(TeamError::Duplicate(pair[0])),
            None => Ok(Self { members }),
        }
    }

    /// Number of members, at least 1.
    #[expect(clippy::len_without_is_empty, reason = "a team is never empty")]
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// World rank of the member at `position`.
    ///
    /// # Panics
    /// If `position` is not below [`len`](Self::len).
    pub fn member(&self, position: usize) -> Rank {
        self.members[position]
    }

    /// Position of a world rank in this team.
    pub fn position(&self, rank: Rank) -> Option<usize> {
        self.members.iter().position(|&member| member == rank)
    }

    /// The members in team order.
    pub fn members(&self) -> &[Rank] {
        &self.members
    }
}
