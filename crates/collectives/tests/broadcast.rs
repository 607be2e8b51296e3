//! Broadcast on every path and team, of every size, from every root, in every form.

mod common;

use std::sync::Arc;
use std::time::Duration;

use campanile::{Broadcast, CommError, CommOptions, FaultKind, Path, Rank, Team, threads};
use common::{SIZES, all, dawdle, fill, message, options, ragged, schedule};
use rand_xoshiro::rand_core::Rng;

/// One call; the receivers' buffers are poisoned, and one byte longer at both ends than the message.
fn call(
    broadcast: &mut Broadcast,
    rank: usize,
    root: usize,
    bytes: usize,
    number: u64,
    form: u64,
) -> Result<(), CommError> {
    let expected = message(bytes, number, root);
    if rank == root {
        match form % 3 {
            0 => broadcast.send(&expected)?,
            1 => {
                fill(&mut broadcast.input()?[..bytes], number, root);
                broadcast.send_input(bytes)?;
            }
            _ => {
                let mut data = expected.clone();
                broadcast.run(root, &mut data)?;
                assert!(data == expected, "the root's own bytes are unchanged");
            }
        }
        return Ok(());
    }
    let mut buffer = vec![0xEE; bytes + 2];
    broadcast.run(root, &mut buffer[1..=bytes])?;
    assert!(buffer[1..=bytes] == expected, "call {number}: {bytes} bytes from {root} at {rank}");
    assert_eq!((buffer[0], buffer[bytes + 1]), (0xEE, 0xEE), "not a byte more");
    Ok(())
}

#[test]
fn every_size_root_and_form() {
    for path in [Path::Auto, Path::Queue] {
        for ranks in [1, 2, 3, 4, 8] {
            all(ranks, path, |comm| {
                let mut broadcast = Broadcast::new(&comm, (1 << 20) + 1)?;
                let mut number = 0;
                for bytes in SIZES {
                    for root in 0..ranks {
                        for form in 0..3 {
                            call(&mut broadcast, comm.rank(), root, bytes, number, form)?;
                            number += 1;
                        }
                    }
                }
                Ok(())
            });
        }
    }
}

#[test]
fn thousands_of_ragged_calls() {
    for (path, ranks, calls, most) in [
        (Path::Auto, 2, 4000, 40_000),
        (Path::Auto, 5, 2000, 40_000),
        (Path::Queue, 3, 1000, 40_000),
        (Path::Auto, 3, 200, 2_000_000),
        (Path::Queue, 3, 60, 2_000_000),
    ] {
        all(ranks, path, |comm| {
            let mut broadcast = Broadcast::new(&comm, most)?;
            let (mut shared, mut own) = (schedule(7), schedule(100 + comm.rank() as u64));
            for number in 0..calls {
                let (root, bytes) = (shared.next_u64() as usize % ranks, ragged(&mut shared, most));
                dawdle(&mut own);
                call(&mut broadcast, comm.rank(), root, bytes, number, shared.next_u64())?;
            }
            Ok(())
        });
    }
}

#[test]
fn across_the_wrap_of_its_words() {
    for path in [Path::Auto, Path::Queue] {
        all(3, path, |comm| {
            let mut broadcast = Broadcast::starting_at(&comm, 1000, u64::MAX - 20)?;
            (0..200).try_for_each(|n| call(&mut broadcast, comm.rank(), n as usize % 3, 5 * n as usize, n, n))
        });
    }
}

#[test]
fn objects_and_teams_side_by_side() {
    all(4, Path::Auto, |comm| {
        let teams = [[3, 0, 1], [2, 3, 1]].map(|ranks| Team::new(ranks.map(Rank)).expect("distinct ranks"));
        let mut two = [Broadcast::new(&comm, 5000)?, Broadcast::new(&comm, 70_000)?];
        let mut parts = Vec::new();
        for team in &teams {
            if let Some(part) = comm.split(team)? {
                let part = Arc::new(part);
                parts.push((Broadcast::new(&part, 9000)?, part));
            }
        }
        for n in 0..60 {
            for (index, broadcast) in two.iter_mut().enumerate() {
                call(broadcast, comm.rank(), (n as usize + index) % 4, 83 * n as usize, n, n)?;
            }
            for (broadcast, part) in &mut parts {
                call(broadcast, part.rank(), n as usize % 3, 150 * n as usize, n, n / 2)?;
            }
        }
        Ok(())
    });
}

#[test]
fn misuse_is_an_error_and_nothing_happens() {
    all(2, Path::Auto, |comm| {
        let mut broadcast = Broadcast::new(&comm, 100)?;
        let too_large = broadcast.run(0, &mut [0; 101]).unwrap_err().to_string();
        assert!(too_large.contains("101") && too_large.contains("100"), "{too_large}");
        let no_root = broadcast.run(2, &mut [0; 10]).unwrap_err().to_string();
        assert!(no_root.contains("root 2") && no_root.contains("0 to 1"), "{no_root}");
        let own = broadcast.receive(comm.rank(), &mut [0; 10]).unwrap_err().to_string();
        assert!(own.contains("root"), "{own}");
        assert!(matches!(broadcast.send_input(101), Err(CommError::Misuse { .. })));
        (0..20).try_for_each(|n| call(&mut broadcast, comm.rank(), 1, 100, n, n))
    });
}

#[test]
fn ranks_that_differ_are_named() {
    let ended = threads::<(), CommError>(3, &options(Path::Auto), |comm| {
        let mut broadcast = Broadcast::new(&comm, 100)?;
        let mut data = vec![0; if comm.rank() == 2 { 60 } else { 50 }];
        broadcast.run(0, &mut data)?;
        broadcast.run(2, &mut data)
    });
    let errors: Vec<_> = ended.into_iter().map(|rank| rank.err().map(|error| error.to_string())).collect();
    let of_2 = errors[2].as_ref().expect("rank 2 sees that its size is another");
    assert!(of_2.contains("bytes is 60 here and 50 on rank 0"), "{of_2}");
    assert!(errors[1].as_ref().is_some_and(|error| error.contains("rank 2")), "{errors:?}");

    let ended =
        threads::<(), CommError>(2, &options(Path::Auto), |comm| Broadcast::new(&comm, 100 + comm.rank()).map(|_| ()));
    assert!(ended.into_iter().all(|rank| rank.unwrap_err().to_string().contains("capacity")));
}

#[test]
fn a_dead_rank_is_named() {
    for path in [Path::Auto, Path::Queue] {
        for dead in [0, 1] {
            let timeout = Duration::from_secs(20);
            let options = CommOptions { timeout, ..options(path) };
            let ended = threads::<(), CommError>(3, &options, |comm| {
                let mut broadcast = Broadcast::new(&comm, 100)?;
                for n in 0..100_000 {
                    if comm.rank() == dead && n == 50 {
                        return Ok(());
                    }
                    broadcast.run(n % 3, &mut [0; 100])?;
                }
                Ok(())
            });
            for (rank, ended) in ended.into_iter().enumerate().filter(|(rank, _)| *rank != dead) {
                let fault = ended.expect_err("it needs the rank that left").fault().expect("a fault");
                assert_eq!((fault.culprit, fault.kind), (Rank::new(dead), FaultKind::Left), "at rank {rank}");
            }
        }
    }
}
