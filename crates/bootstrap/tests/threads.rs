//! Ranks as threads.

use std::thread;
use std::time::{Duration, Instant};

use campanile_bootstrap::ThreadBootstrap;
use campanile_core::{Bootstrap, BootstrapError, Rank, Team};

const LONG: Duration = Duration::from_secs(60);

/// Runs `body` as every rank of a world and returns what each returned.
fn world<T: Send>(ranks: usize, body: impl Fn(&dyn Bootstrap) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let threads: Vec<_> = ThreadBootstrap::world(ranks)
            .into_iter()
            .map(|bootstrap| {
                let body = &body;
                scope.spawn(move || body(&bootstrap))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank panicked")).collect()
    })
}

#[test]
fn every_rank_gets_what_every_rank_put_in_team_order() {
    let team = Team::new([Rank(4), Rank(0), Rank(2)]).unwrap();
    let results = world(5, |bootstrap| {
        assert_eq!(bootstrap.ranks(), 5);
        let rank = bootstrap.rank();
        team.position(rank).map(|_| {
            let round = |key| bootstrap.all_gather(&team, key, &[rank.0 as u8; 3], LONG).unwrap();
            assert_eq!(round("first"), round("second"));
            round("third")
        })
    });
    let expected = vec![vec![4; 3], vec![0; 3], vec![2; 3]];
    for (rank, result) in results.into_iter().enumerate() {
        assert_eq!(result, [0, 2, 4].contains(&rank).then(|| expected.clone()));
    }
}

#[test]
fn all_ranks_are_on_one_node_and_worlds_share_nothing() {
    let nodes = world(3, |bootstrap| bootstrap.node());
    assert!(nodes.iter().all(|node| *node == nodes[0]));
    let (one, other) = (ThreadBootstrap::world(1), ThreadBootstrap::world(1));
    one[0].put("key", b"value").unwrap();
    assert_eq!(other[0].get("key", Duration::ZERO).unwrap(), None);
    assert_eq!(one[0].get("key", Duration::ZERO).unwrap().as_deref(), Some(&b"value"[..]));
    assert!(ThreadBootstrap::world(0).is_empty());
}

#[test]
fn missing_ranks_are_named_after_the_deadline_on_every_other_rank() {
    let timeout = Duration::from_millis(200);
    let results = world(5, |bootstrap| {
        if [1, 3].contains(&bootstrap.rank().0) {
            return None;
        }
        let start = Instant::now();
        let error = bootstrap.all_gather(&Team::world(5), "hello", b"", timeout).unwrap_err();
        Some((error, start.elapsed()))
    });
    for (error, waited) in results.into_iter().flatten() {
        let BootstrapError::Missing { what, missing, .. } = error else { panic!("{error}") };
        assert_eq!((what.as_str(), missing.as_str()), ("hello", "ranks 1, 3"));
        assert!(waited >= timeout);
    }
}

#[test]
fn a_waiting_get_ends_with_the_put() {
    let start = Instant::now();
    let results = world(2, |bootstrap| match bootstrap.rank() {
        Rank(0) => {
            let value = bootstrap.get("answer", LONG).unwrap();
            bootstrap.put("question", b"").unwrap();
            value
        }
        _ => {
            assert_eq!(bootstrap.get("question", Duration::from_millis(1)).unwrap(), None);
            bootstrap.put("answer", b"42").unwrap();
            bootstrap.get("question", LONG).unwrap()
        }
    });
    assert_eq!(results, [Some(b"42".to_vec()), Some(Vec::new())]);
    // The put woke them, not the deadline.
    assert!(start.elapsed() < LONG);
}
