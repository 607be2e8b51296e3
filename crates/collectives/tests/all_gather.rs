//! All-gather on every path and team, of every size, in every form.

mod common;

use std::sync::Arc;
use std::time::Duration;

use campanile::{AllGather, CommError, CommOptions, Communicator, FaultKind, Path, Rank, Team, threads};
use common::{SIZES, all, dawdle, fill, message, options, ragged, schedule};
use rand_xoshiro::rand_core::Rng;

/// One call into a poisoned buffer, which is one byte longer at both ends.
fn call(
    all_gather: &mut AllGather,
    comm: &Communicator,
    bytes: usize,
    number: u64,
    form: u64,
) -> Result<(), CommError> {
    let (rank, ranks) = (comm.rank(), comm.ranks());
    let own = message(bytes, number, rank);
    let mut buffer = vec![0xEE; ranks * bytes + 2];
    let end = ranks * bytes;
    match form % 3 {
        0 => all_gather.run(&own, &mut buffer[1..=end])?,
        1 => {
            fill(&mut all_gather.input()?[..bytes], number, rank);
            all_gather.run_input(bytes, &mut buffer[1..=end])?;
        }
        _ => {
            buffer[1 + rank * bytes..][..bytes].copy_from_slice(&own);
            all_gather.run_in_place(&mut buffer[1..=end])?;
        }
    }
    for peer in 0..ranks {
        let expected = message(bytes, number, peer);
        assert!(buffer[1 + peer * bytes..][..bytes] == expected, "call {number}: {bytes} bytes of {peer} at {rank}");
    }
    assert_eq!((buffer[0], buffer[end + 1]), (0xEE, 0xEE), "not a byte more");
    Ok(())
}

#[test]
fn every_size_and_form() {
    for path in [Path::Auto, Path::Queue] {
        for ranks in [1, 2, 3, 4, 8] {
            all(ranks, path, |comm| {
                let mut all_gather = AllGather::new(&comm, (1 << 20) + 1)?;
                let mut number = 0;
                for bytes in SIZES {
                    for form in 0..3 {
                        // Each rank its own form.
                        call(&mut all_gather, &comm, bytes, number, form + comm.rank() as u64)?;
                        number += 1;
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
        (Path::Auto, 5, 1000, 40_000),
        (Path::Queue, 3, 500, 40_000),
        (Path::Auto, 3, 100, 2_000_000),
        (Path::Queue, 3, 30, 2_000_000),
    ] {
        all(ranks, path, |comm| {
            let mut all_gather = AllGather::new(&comm, most)?;
            let (mut shared, mut own) = (schedule(7), schedule(100 + comm.rank() as u64));
            for number in 0..calls {
                dawdle(&mut own);
                call(&mut all_gather, &comm, ragged(&mut shared, most), number, own.next_u64())?;
            }
            Ok(())
        });
    }
}

#[test]
fn across_the_wrap_of_its_words() {
    for path in [Path::Auto, Path::Queue] {
        all(3, path, |comm| {
            let mut all_gather = AllGather::starting_at(&comm, 1000, u64::MAX - 20)?;
            (0..200).try_for_each(|n| call(&mut all_gather, &comm, 5 * n as usize, n, n))
        });
    }
}

#[test]
fn objects_and_teams_side_by_side() {
    all(4, Path::Auto, |comm| {
        let teams = [[3, 0, 1], [2, 3, 1]].map(|ranks| Team::new(ranks.map(Rank)).expect("distinct ranks"));
        let mut two = [AllGather::new(&comm, 5000)?, AllGather::new(&comm, 70_000)?];
        let mut parts = Vec::new();
        for team in &teams {
            if let Some(part) = comm.split(team)? {
                let part = Arc::new(part);
                parts.push((AllGather::new(&part, 9000)?, part));
            }
        }
        for n in 0..60 {
            for all_gather in &mut two {
                call(all_gather, &comm, 83 * n as usize, n, n)?;
            }
            for (all_gather, part) in &mut parts {
                call(all_gather, part, 150 * n as usize, n, n / 2)?;
            }
        }
        Ok(())
    });
}

#[test]
fn misuse_is_an_error_and_nothing_happens() {
    all(2, Path::Auto, |comm| {
        let mut all_gather = AllGather::new(&comm, 100)?;
        let too_large = all_gather.run(&[0; 101], &mut [0; 202]).unwrap_err().to_string();
        assert!(too_large.contains("101") && too_large.contains("100"), "{too_large}");
        let too_short = all_gather.run(&[0; 10], &mut [0; 19]).unwrap_err().to_string();
        assert!(too_short.contains("19 bytes") && too_short.contains("2 blocks of 10"), "{too_short}");
        assert!(matches!(all_gather.run_in_place(&mut [0; 21]), Err(CommError::Misuse { .. })));
        assert!(matches!(all_gather.run_input(101, &mut [0; 202]), Err(CommError::Misuse { .. })));
        (0..20).try_for_each(|n| call(&mut all_gather, &comm, 100, n, n))
    });
}

#[test]
fn ranks_that_differ_are_named() {
    let ended = threads::<(), CommError>(3, &options(Path::Auto), |comm| {
        let mut all_gather = AllGather::new(&comm, 100)?;
        let bytes = if comm.rank() == 2 { 60 } else { 50 };
        (0..10).try_for_each(|_| all_gather.run(&vec![0; bytes], &mut vec![0; 3 * bytes]))
    });
    for (rank, ended) in ended.into_iter().enumerate() {
        let error = ended.expect_err("its blocks are not those of all").to_string();
        assert!(error.contains("bytes is") || error.contains("failed"), "rank {rank}: {error}");
    }
}

#[test]
fn a_dead_rank_is_named() {
    for path in [Path::Auto, Path::Queue] {
        let options = CommOptions { timeout: Duration::from_secs(20), ..options(path) };
        let ended = threads::<(), CommError>(3, &options, |comm| {
            let mut all_gather = AllGather::new(&comm, 100)?;
            for n in 0..100_000 {
                if comm.rank() == 1 && n == 50 {
                    return Ok(());
                }
                all_gather.run_in_place(&mut [0; 300])?;
            }
            Ok(())
        });
        for (rank, ended) in ended.into_iter().enumerate().filter(|(rank, _)| *rank != 1) {
            let fault = ended.expect_err("it needs the rank that left").fault().expect("a fault");
            assert_eq!((fault.culprit, fault.kind), (Rank(1), FaultKind::Left), "at rank {rank}");
        }
    }
}
