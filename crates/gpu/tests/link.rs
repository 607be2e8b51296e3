//! The measurement of links, in the emulator: that the bytes are moved which a rate is taken of, and that all arms run.

mod emulated;

use std::time::Duration;

use campanile_gpu::link::{ARMS, Arm, LinkError, LinkLayout, LinkOptions, LinkRank, Pattern, measure};
use campanile_gpu::{Device, DeviceCommunicator, Emulation};

use emulated::{cache, emulate};

const OPTIONS: LinkOptions = LinkOptions { bytes: 128 << 10, iterations: 2, warmup: 1, round_trips: 5, sms: None };

fn devices(ranks: u32, wave: u32) -> Option<Vec<Device>> {
    emulate(Emulation { devices: ranks, wave, multiprocessors: 1, ..Emulation::default() })
}

/// Byte `at` of what a rank sends.
fn byte(rank: usize, at: usize) -> u8 {
    (at / 16 * 7 + at / 4096 + rank * 31 + at % 16) as u8
}

/// Runs an arm on all ranks and returns what each has received.
fn received(devices: &[Device], arm: Arm, pattern: Pattern) -> (LinkLayout, Vec<Vec<u8>>) {
    let layout = LinkLayout::new(devices.len(), &OPTIONS).unwrap();
    let comms = DeviceCommunicator::in_process(devices, &layout.arena, 1, Duration::from_secs(20)).unwrap();
    let ranks: Vec<_> =
        comms.into_iter().map(|comm| LinkRank::new(comm, &layout, &OPTIONS, &cache()).unwrap()).collect();
    let streams: Vec<_> = devices.iter().map(|device| device.stream().unwrap()).collect();
    for (rank, (link, stream)) in ranks.iter().zip(&streams).enumerate() {
        let bytes: Vec<u8> = (0..layout.send.bytes()).map(|at| byte(rank, at)).collect();
        stream.upload(&link.comm().part(&layout.send).unwrap(), 0, &bytes).unwrap();
    }
    for (rank, link) in ranks.iter().enumerate() {
        let took = link.run(arm, pattern).unwrap();
        assert_eq!(took.is_some(), pattern.includes(arm, rank));
    }
    let read = |(link, stream): (&LinkRank, &campanile_gpu::Stream)| {
        let mut bytes = vec![0; layout.receive.bytes()];
        stream.download(&link.comm().part(&layout.receive).unwrap(), 0, &mut bytes).unwrap();
        bytes
    };
    let all = ranks.iter().zip(&streams).map(read).collect();
    (layout, all)
}

/// Every rank has a slice from every other, and nothing from itself.
#[test]
fn all_to_all_moves_every_slice() {
    for (wave, arm) in [(32, Arm::PeerStores), (64, Arm::PeerStores), (32, Arm::CopyEngines)] {
        let Some(devices) = devices(3, wave) else { return };
        let (layout, received) = received(&devices, arm, Pattern::AllToAll);
        let slice = layout.send.stride;
        for (rank, bytes) in received.iter().enumerate() {
            for (source, got) in bytes.chunks_exact(slice).enumerate() {
                let number = (rank + 3 - source - 1) % 3;
                let sent = |at| if source == rank { 0 } else { byte(source, number * slice + at) };
                let wrong = (0..slice).find(|&at| got[at] != sent(at));
                assert_eq!(wrong, None, "{arm:?}: rank {rank} from {source}");
            }
        }
    }
}

/// Rank 1 has all that rank 0 sends; the others have nothing. In own memory every rank has its own.
#[test]
fn a_pair_and_each_by_itself() {
    let cases = [
        (Arm::PeerStores, Pattern::Pair),
        (Arm::CopyEngines, Pattern::Pair),
        (Arm::HbmCopy, Pattern::Own),
        (Arm::HbmCopyCall, Pattern::Own),
    ];
    for (arm, pattern) in cases {
        let Some(devices) = devices(3, 32) else { return };
        let (layout, received) = received(&devices, arm, pattern);
        for (rank, bytes) in received.iter().enumerate() {
            let source = match pattern {
                Pattern::Own => Some(rank),
                _ => (rank == 1).then_some(0),
            };
            let all = layout.send.bytes();
            let sent = |at| source.filter(|_| at < all).map_or(0, |source| byte(source, at));
            assert_eq!((0..bytes.len()).find(|&at| bytes[at] != sent(at)), None, "{arm:?}: rank {rank}");
        }
    }
}

#[test]
fn every_arm_runs() {
    for (ranks, wave) in [(2, 64), (3, 32)] {
        let Some(devices) = devices(ranks, wave) else { return };
        let report = measure(&devices, &OPTIONS, &cache()).unwrap();
        let arms: Vec<_> = report.rows.iter().map(|row| (row.arm, row.pattern)).collect();
        assert_eq!(arms, ARMS);
        assert!(!report.shared && report.left_out.is_empty());
        for row in &report.rows {
            assert!(row.median_us > 0.0 && row.p99_us >= row.median_us, "{row:?}");
            assert_eq!(row.gbps.is_some(), !row.arm.is_latency());
        }
    }
    let Some(devices) = devices(1, 32) else { return };
    let one = [devices[0].clone(), devices[0].clone()];
    assert!(measure(&one, &OPTIONS, &cache()).unwrap().shared);
}

#[test]
fn too_little_is_refused() {
    let Some(devices) = devices(2, 32) else { return };
    assert!(matches!(measure(&devices[..1], &OPTIONS, &cache()), Err(LinkError::Options { given: 1, .. })));
    let none = LinkOptions { iterations: 0, ..OPTIONS };
    let error = measure(&devices, &none, &cache()).unwrap_err().to_string();
    assert_eq!(error, "iterations: 0; at least 1 is needed");
}
