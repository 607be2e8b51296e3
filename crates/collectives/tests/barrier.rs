//! The barrier on every path and team: nobody leaves before everybody has entered.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use campanile::{Barrier, CommError, CommOptions, Communicator, Path, Rank, Team, threads};

/// Passes `rounds` barriers; after each, every rank must have entered as many.
fn pass(barrier: &mut Barrier, entered: &[AtomicU64], me: usize, rounds: u64) -> Result<(), CommError> {
    for round in 1..=rounds {
        entered[me].fetch_add(1, Ordering::Relaxed);
        barrier.wait()?;
        for (rank, count) in entered.iter().enumerate() {
            // A faster rank may be one ahead.
            let count = count.load(Ordering::Relaxed);
            assert!((round..=round + 1).contains(&count), "round {round}: rank {rank} has entered {count}");
        }
    }
    Ok(())
}

fn all(ranks: usize, path: Path, make: impl Fn(&Arc<Communicator>) -> Result<Barrier, CommError> + Sync) {
    let entered: Vec<_> = (0..ranks).map(|_| AtomicU64::new(0)).collect();
    let options = CommOptions { path, ..CommOptions::default() };
    let ended = threads::<_, CommError>(ranks, &options, |comm| pass(&mut make(&comm)?, &entered, comm.rank(), 50));
    ended.into_iter().for_each(|rank| rank.expect("no rank fails"));
}

#[test]
fn by_stores() {
    // Up to 16 ranks signal all others, more disseminate.
    for ranks in [1, 2, 3, 5, 8, 16, 17, 20] {
        all(ranks, Path::Auto, Barrier::new);
    }
}

#[test]
fn by_queues() {
    for ranks in [1, 2, 3, 6] {
        all(ranks, Path::Queue, Barrier::new);
    }
}

#[test]
fn across_the_wrap_of_its_words() {
    for path in [Path::Auto, Path::Queue] {
        all(3, path, |comm| Barrier::starting_at(comm, u64::MAX - 20));
    }
}

#[test]
fn of_teams_that_overlap() {
    let entered: [Vec<AtomicU64>; 2] = std::array::from_fn(|_| (0..3).map(|_| AtomicU64::new(0)).collect());
    let ended = threads::<_, CommError>(4, &CommOptions::default(), |comm| {
        // In an order of their own: position is not rank.
        let teams = [[3, 0, 1], [2, 3, 1]].map(|ranks| Team::new(ranks.map(Rank)).expect("distinct ranks"));
        for (team, entered) in teams.iter().zip(&entered) {
            if let Some(part) = comm.split(team)? {
                let part = Arc::new(part);
                assert_eq!(team.member(part.rank()), comm.team().member(comm.rank()));
                pass(&mut Barrier::new(&part)?, entered, part.rank(), 20)?;
            }
        }
        let stranger = Team::new([Rank(9)]).expect("one rank");
        assert!(matches!(comm.split(&stranger), Err(CommError::Misuse { .. })));
        assert_eq!(comm.local_team().len(), 4);
        Barrier::new(&comm)?.wait()
    });
    ended.into_iter().for_each(|rank| rank.expect("no rank fails"));
}
