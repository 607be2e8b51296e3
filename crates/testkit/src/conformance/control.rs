//! Control plane: opening, connecting, regions that come and go, ends.

use std::time::Duration;

use campanile_core::{
    Agent, Completion, ControlError, Fault, FaultKind, MemoryKind, Op, OpKind, OpenError, OpenOptions, PeerClass,
    PostError, QueueOptions, QueueTarget, Rank, Reach, RemoteAddress, Shutdown, SignalAction, SignalUpdate, Strength,
};

use super::case::{Case, Group};
use super::finding::{Expected, Proof, Stop, failed, names, refused, require, same, same_bytes};
use super::member::Member;
use super::need::Need;
use super::stage::Stage;
use super::window::{Window, pattern};

pub(super) const GROUP: Group = Group {
    name: "control",
    about: "opening, connecting, regions that come and go, ends",
    cases: &[
        Case::new(
            "probe_and_open_explain_themselves",
            "the device that is used is listed, one left out has a reason, an unknown one is refused by name",
            &[],
            probe_and_open,
        ),
        Case::new(
            "all_ranks_connect",
            "connecting gives an endpoint for every rank, this one is its own, and the nodes can be reached",
            &[],
            all_ranks_connect,
        ),
        Case::new(
            "a_missing_peer_is_named",
            "a connect to a rank that does not come ends in time and names it",
            &[Need::Ranks(2)],
            a_missing_peer,
        ),
        Case::new(
            "a_part_of_the_ranks_connects",
            "all ranks but one connect and signal; the one that was left out is unknown to them",
            &[Need::Ranks(3), Need::Op(OpKind::PutSignal), Need::Signals],
            a_part_connects,
        ),
        Case::new(
            "memory_is_zeroed",
            "allocated memory is zeroed, also where other memory was before, and two regions are two",
            &[],
            memory_is_zeroed,
        ),
        Case::new(
            "unknown_memory_is_refused",
            "memory of a kind that the caps do not list is an error",
            &[],
            unknown_memory,
        ),
        Case::new(
            "an_empty_region_is_legal",
            "a region of 0 bytes can be exported and imported; 0 bytes can be put there, 1 byte cannot",
            &[Need::Op(OpKind::Put)],
            an_empty_region,
        ),
        Case::new(
            "an_export_to_some_reaches_them",
            "a region that is exported to one peer can be imported and written by that one",
            &[Need::Ranks(2), Need::Op(OpKind::Put)],
            an_export_to_some,
        ),
        Case::new(
            "a_bad_key_blob_is_refused",
            "a key blob that is no blob, or cut short, is an error that names the peer",
            &[Need::Ranks(2)],
            a_bad_key_blob,
        ),
        Case::new(
            "a_key_blob_of_a_former_peer_is_refused",
            "a key blob that a peer gave before all opened their transports anew names nothing any more",
            &[],
            a_former_key_blob,
        ),
        Case::new(
            "unknown_peers_are_refused",
            "queues to, exports to and imports from a rank that is not connected are errors; asking after it is legal",
            &[],
            unknown_peers,
        ),
        Case::new(
            "a_dropped_request_is_cancelled",
            "a request that is dropped before it was tested leaves nothing that disturbs the next one",
            &[Need::Ranks(2), Need::Op(OpKind::Put)],
            a_dropped_request,
        ),
        Case::new(
            "recreated_regions_leave_nothing",
            "a region made, exported, imported and dropped 1000 times leaves no descriptor",
            &[Need::Ranks(2)],
            recreated_regions,
        ),
        Case::new(
            "transports_of_a_process_are_apart",
            "a transport can be opened any number of times in a process; a fault of one is none of another",
            &[Need::Ranks(2)],
            transports_are_apart,
        ),
        Case::new(
            "shutdown_is_idempotent",
            "a second shutdown is legal, whatever its mode, and so is dropping the transport after it",
            &[],
            shutdown_is_idempotent,
        ),
        Case::new(
            "a_device_view_is_given_or_refused",
            "a transport without device code says so; one with it gives a view of device memory that the code reads",
            &[],
            a_device_view,
        ),
    ],
};

/// A rank that no job has.
const NOBODY: Rank = Rank(1 << 20);

fn probe_and_open(stage: &Stage) -> Proof {
    let plugin = stage.suite().plugin;
    let probed = plugin.probe();
    let usable = |device: &str| probed.iter().any(|probed| probed.device == device && probed.usable.is_ok());
    require(usable(stage.device()), "the device that is used in the list of probe", || format!("{probed:?}"))?;
    for probed in &probed {
        let words = probed.usable.as_ref().unwrap_or_else(|reason| reason);
        require(!words.is_empty(), "words for every device", || format!("none for {:?}", probed.device))?;
    }
    let info = plugin.info();
    require(!info.name.is_empty() && !info.version.is_empty(), "a name and a version", || format!("{info:?}"))?;
    let unknown = "no-such-device";
    let error = refused(plugin.open(unknown, stage.open_options(stage.timeout())), "an unknown device is refused")?;
    require(matches!(error, OpenError::NoDevice { .. }), "OpenError::NoDevice", || format!("{error:?}"))?;
    names(&error, unknown)
}

fn all_ranks_connect(stage: &Stage) -> Proof {
    let transport = stage.open()?;
    let opened_by = transport.info();
    same("the name of the transport", opened_by.name, stage.suite().plugin.info().name)?;
    let endpoints = stage.connect(&*transport)?;
    let ranks: Vec<_> = endpoints.iter().map(|endpoint| endpoint.peer).collect();
    same("the peers, in order", ranks, (0..stage.ranks()).map(Rank::new).collect())?;
    for endpoint in &endpoints {
        let own = endpoint.peer.index() == stage.rank();
        same(&format!("{} is this rank", endpoint.peer), endpoint.class == PeerClass::Own, own)?;
        same(&format!("why {} is gone", endpoint.peer), transport.gone(endpoint.peer), None)?;
    }
    same("the fault of the job", transport.fault(), None)?;
    same("the next event", transport.poll_event(), None)?;
    let OpenOptions { node, .. } = stage.open_options(stage.timeout());
    match transport.reach(Rank::new(stage.rank()), &node) {
        Reach::Yes(_) => stage.meet(),
        Reach::No(reason) => Err(failed("to reach the own node", reason)),
    }
}

fn a_missing_peer(stage: &Stage) -> Proof {
    let missing = stage.ranks() - 1;
    let transport = stage.open()?;
    let addresses = stage.exchange(&transport.address())?;
    if stage.rank() != missing {
        let peers: Vec<_> = addresses.into_iter().enumerate().map(|(peer, a)| (Rank::new(peer), a)).collect();
        let waited = transport.connect(&peers).wait(stage.timeout().min(Duration::from_millis(300)));
        let error = refused(waited, "a connect without one rank to end with an error")?;
        require(matches!(error, ControlError::Timeout { .. }), "ControlError::Timeout", || format!("{error:?}"))?;
        names(&error, &Rank::new(missing).to_string())?;
    }
    stage.meet()
}

fn a_part_connects(stage: &Stage) -> Proof {
    let out = 1;
    let members: Vec<_> = (0..stage.ranks()).filter(|rank| *rank != out).collect();
    let transport = stage.open()?;
    let addresses = stage.exchange(&transport.address())?;
    if stage.rank() != out {
        let peers: Vec<_> = members.iter().map(|&peer| (Rank::new(peer), addresses[peer].clone())).collect();
        let endpoints = transport.connect(&peers).wait(stage.timeout()).expected("a part of the ranks to connect")?;
        let ranks: Vec<_> = endpoints.iter().map(|endpoint| endpoint.peer.index()).collect();
        same("the peers, in order", &ranks, &members)?;
        let options = QueueOptions::default();
        let target = QueueTarget::Peer(Rank::new(out));
        refused(transport.queue(target, options), "a queue to the rank that was left out to be refused")?;

        // A word for each rank.
        let region = transport.allocate(8 * stage.ranks(), stage.memory()).wait(stage.timeout()).expected("memory")?;
        let caps = transport.caps(PeerClass::Own, stage.memory(), OpKind::PutSignal);
        let sets = caps.is_some_and(|caps| caps.signal.set);
        let audience: Vec<_> = members.iter().map(|&peer| Rank::new(peer)).collect();
        let blob = transport.export(&region, &audience).expected("an export")?;
        let blobs = stage.exchange_among(&members, &blob)?;
        let signal = |(&peer, blob): (&usize, &Vec<u8>)| -> Proof {
            let remote = transport.import(Rank::new(peer), blob).wait(stage.timeout()).expected("an import")?;
            let target = QueueTarget::Peer(Rank::new(peer));
            let queue = transport.queue(target, options).expected("a queue")?;
            let signal = SignalUpdate {
                target: RemoteAddress { region: remote.key(), offset: 8 * stage.rank() as u64 },
                action: if sets { SignalAction::Set } else { SignalAction::Add },
                value: 1,
                strength: Strength::Strong,
            };
            let ticket = queue.post(&[Op::Signal(signal)]).expected("a post")?;
            let level = Completion::Remote(Agent::Cpu);
            queue.wait(ticket, level, stage.timeout()).expected("remote completion")
        };
        members.iter().zip(&blobs).try_for_each(signal)?;
        stage.meet_among(&members)?;
        let window = Window::alone(stage, &*transport, region)?;
        for &member in &members {
            same(&format!("signals of rank {member}"), window.load(8 * member)?, 1)?;
        }
        stage.meet_among(&members)?;
    }
    Ok(())
}

fn memory_is_zeroed(stage: &Stage) -> Proof {
    let transport = stage.open()?;
    stage.connect(&*transport)?;
    for bytes in [1, 4096, 12345, 100_000] {
        // Twice: the second may get the pages of the first.
        for _ in 0..2 {
            let window = Window::new(stage, &*transport, bytes)?;
            let other = transport.allocate(bytes, stage.memory()).wait(stage.timeout()).expected("memory")?;
            same("bytes of the region", window.region.bytes(), bytes)?;
            same("its kind", window.region.kind(), stage.memory())?;
            let sizes: Vec<_> = window.remotes.iter().map(|remote| (remote.peer(), remote.bytes())).collect();
            same("what was imported", sizes, (0..stage.ranks()).map(|rank| (Rank::new(rank), bytes)).collect())?;
            require(other.key() != window.region.key(), "two keys", || format!("{:?} twice", other.key()))?;
            require(window.read(0, bytes)?.iter().all(|byte| *byte == 0), "zeroes", || "other bytes".to_owned())?;
            window.write(0, &vec![0xff; bytes])?;
            stage.meet()?;
        }
    }
    Ok(())
}

fn unknown_memory(stage: &Stage) -> Proof {
    let transport = stage.open()?;
    stage.connect(&*transport)?;
    let kind = MemoryKind::Device(u32::MAX);
    if transport.caps(PeerClass::Own, kind, OpKind::Put).is_some() {
        return Err(Stop::Skipped { reason: format!("the transport claims {kind} memory") });
    }
    let error = refused(transport.allocate(64, kind).wait(stage.timeout()), "memory of no kind to be refused")?;
    require(matches!(error, ControlError::Memory { .. }), "ControlError::Memory", || format!("{error:?}"))?;
    stage.meet()
}

fn an_empty_region(stage: &Stage) -> Proof {
    let me = Member::join(stage)?;
    let peer = stage.next();
    let empty = Window::new(stage, &*me.transport, 0)?;
    let queue = me.queue(peer, 4)?;
    let put = |bytes| Op::Put { source: me.window.local(0), target: empty.remote(peer, 0), bytes };
    me.execute(&*queue, &[put(0)])?;
    match queue.post(&[put(1)]) {
        Err(PostError::Invalid { index: 0, .. }) => me.end(),
        other => Err(failed("PostError::Invalid for a byte in a region of none", format!("{other:?}"))),
    }
}

fn an_export_to_some(stage: &Stage) -> Proof {
    let me = Member::join(stage)?;
    let region = me.transport.allocate(4096, stage.memory()).wait(stage.timeout()).expected("memory")?;
    let blob = match stage.rank() {
        0 => me.transport.export(&region, &[Rank(1)]).expected("an export to one peer")?,
        _ => Vec::new(),
    };
    let blob = stage.exchange(&blob)?.swap_remove(0);
    let bytes = pattern(7, 1000);
    if stage.rank() == 1 {
        let remote = me.transport.import(Rank(0), &blob).wait(stage.timeout()).expected("an import")?;
        me.window.write(0, &bytes)?;
        let target = RemoteAddress { region: remote.key(), offset: 96 };
        let queue = me.queue(0, 4)?;
        me.execute(&*queue, &[Op::Put { source: me.window.local(0), target, bytes: 1000 }])?;
    } else if stage.rank() > 1 {
        // It may be reachable without; then that is legal, too.
        let imported = me.transport.import(Rank(0), &blob).wait(stage.timeout().min(Duration::from_millis(100)));
        imported.map_or_else(|error| names(&error, &Rank(0).to_string()), |_| Ok(()))?;
    }
    stage.meet()?;
    if stage.rank() == 0 {
        let seen = Window::alone(stage, &*me.transport, region)?.read(96, 1000)?;
        same_bytes("what the peer wrote", &seen, &bytes)?;
    }
    me.end()
}

fn a_bad_key_blob(stage: &Stage) -> Proof {
    let me = Member::join(stage)?;
    let peer = Rank::new(stage.next());
    let blobs = [Vec::new(), b"nonsense".to_vec(), vec![0xff; 1000]];
    for blob in blobs {
        let imported = me.transport.import(peer, &blob).wait(stage.timeout().min(Duration::from_millis(500)));
        let error = refused(imported, "a key blob that is none to be refused")?;
        names(&error, &peer.to_string())?;
    }
    me.end()
}

fn a_former_key_blob(stage: &Stage) -> Proof {
    let everyone: Vec<_> = (0..stage.ranks()).map(Rank::new).collect();
    let world = || -> Proof<_> {
        let transport = stage.open()?;
        stage.connect(&*transport)?;
        let region = transport.allocate(4096, stage.memory()).wait(stage.timeout()).expected("memory")?;
        let blobs = stage.exchange(&transport.export(&region, &everyone).expected("an export")?)?;
        Ok((transport, region, blobs))
    };
    let (transport, region, former) = world()?;
    transport.shutdown(Shutdown::Drain).expected("a shutdown")?;
    drop((transport, region));
    let (transport, _region, blobs) = world()?;
    for (peer, blob) in former.iter().enumerate() {
        let who = Rank::new(peer);
        let imported = transport.import(who, blob).wait(stage.timeout().min(Duration::from_millis(100)));
        names(&refused(imported, "a key blob of a former transport to be refused")?, &who.to_string())?;
    }
    for (peer, blob) in blobs.iter().enumerate() {
        transport.import(Rank::new(peer), blob).wait(stage.timeout()).expected("the import of what is there now")?;
    }
    stage.meet()
}

fn unknown_peers(stage: &Stage) -> Proof {
    let me = Member::join(stage)?;
    let transport = &*me.transport;
    let target = QueueTarget::Peer(NOBODY);
    refused(transport.queue(target, QueueOptions::default()), "a queue to nobody to be refused")?;
    refused(transport.export(&me.window.region, &[NOBODY]), "an export to nobody to be refused")?;
    let imported = transport.import(NOBODY, &[0; 24]).wait(stage.timeout().min(Duration::from_millis(500)));
    names(&refused(imported, "an import from nobody to be refused")?, &NOBODY.to_string())?;
    same("why nobody is gone", transport.gone(NOBODY), None)?;
    transport.notify(NOBODY);
    transport.mask(NOBODY);
    same("the fault of the job", transport.fault(), None)?;
    me.end()
}

fn a_dropped_request(stage: &Stage) -> Proof {
    let transport = stage.open()?;
    let addresses = stage.exchange(&transport.address())?;
    let peers: Vec<_> = addresses.into_iter().enumerate().map(|(peer, a)| (Rank::new(peer), a)).collect();
    drop(transport.connect(&peers));
    stage.connect(&*transport)?;
    drop(transport.allocate(4096, stage.memory()));
    let region = transport.allocate(4096, stage.memory()).wait(stage.timeout()).expected("memory")?;
    let everyone: Vec<_> = (0..stage.ranks()).map(Rank::new).collect();
    let blobs = stage.exchange(&transport.export(&region, &everyone).expected("an export")?)?;
    for (peer, blob) in blobs.iter().enumerate() {
        drop(transport.import(Rank::new(peer), blob));
        let remote = transport.import(Rank::new(peer), blob).wait(stage.timeout()).expected("the import after it")?;
        same("bytes of what was imported", remote.bytes(), 4096)?;
    }
    stage.meet()
}

/// Open descriptors of this process.
fn descriptors() -> Proof<usize> {
    let entries = std::fs::read_dir("/proc/self/fd");
    entries.map(Iterator::count).map_err(|error| Stop::Skipped { reason: format!("/proc/self/fd: {error}") })
}

fn recreated_regions(stage: &Stage) -> Proof {
    const ROUNDS: usize = 20;
    const EACH: usize = 50;
    let me = Member::join(stage)?;
    let everyone: Vec<_> = (0..stage.ranks()).map(Rank::new).collect();
    let mut before = None;
    for round in 0..=ROUNDS {
        let made = (0..EACH).map(|_| me.transport.allocate(4096, stage.memory()).wait(stage.timeout()));
        let regions = made.collect::<Result<Vec<_>, _>>().expected("memory")?;
        let mut blobs = Vec::new();
        for region in &regions {
            let blob = me.transport.export(region, &everyone).expected("an export")?;
            blobs.extend((blob.len() as u32).to_le_bytes());
            blobs.extend(blob);
        }
        let mut remotes = Vec::new();
        for (peer, mut blobs) in stage.exchange(&blobs)?.into_iter().enumerate() {
            while let Some((length, rest)) = blobs.split_first_chunk::<4>() {
                let (blob, rest) = rest.split_at(u32::from_le_bytes(*length) as usize);
                let remote = me.transport.import(Rank::new(peer), blob).wait(stage.timeout());
                remotes.push(remote.expected("an import")?);
                blobs = rest.to_vec();
            }
        }
        same("regions imported", remotes.len(), EACH * stage.ranks())?;
        drop((regions, remotes));
        stage.meet()?;
        // The first round may have made what stays.
        let now = descriptors()?;
        stage.meet()?;
        let before = *before.get_or_insert(now);
        let most = before + EACH / 2;
        if round == ROUNDS {
            require(now <= most, &format!("about the {before} descriptors that were open after one round"), || {
                format!("{now} after {ROUNDS} more, of {EACH} regions each")
            })?;
        }
    }
    me.end()
}

fn transports_are_apart(stage: &Stage) -> Proof {
    let one = Member::join(stage)?;
    let two = Member::join(stage)?;
    if stage.rank() == 0 {
        let fault = Fault { culprit: Rank(0), kind: FaultKind::Aborted, reporter: Rank(0) };
        one.transport.report(fault);
    }
    stage.meet()?;
    require(one.transport.fault().is_some(), "the fault in the transport that has it", || "none".to_owned())?;
    same("the fault of the other transport", two.transport.fault(), None)?;
    drop(one);
    stage.meet()?;
    for peer in 0..stage.ranks() {
        same("whether a peer of the other transport is gone", two.transport.gone(Rank::new(peer)), None)?;
    }
    two.end()
}

fn shutdown_is_idempotent(stage: &Stage) -> Proof {
    // Before it was connected, too.
    let lonely = stage.open()?;
    lonely.shutdown(Shutdown::Drain).expected("a shutdown before any connect")?;
    let me = Member::join(stage)?;
    stage.meet()?;
    for mode in [Shutdown::Drain, Shutdown::Drain, Shutdown::Abort] {
        me.transport.shutdown(mode).expected("a shutdown")?;
    }
    stage.meet()?;
    same("the fault of the job", me.transport.fault(), None)
}

fn a_device_view(stage: &Stage) -> Proof {
    let me = Member::join(stage)?;
    let code = me.transport.info().device_code;
    let given = me.transport.device_view(&me.window.region, &me.window.remotes);
    match (code, given) {
        (Some(code), Ok(view)) => {
            code.check().expected("device code that this host compiles")?;
            view.check(code, stage.ranks(), stage.rank()).expected("a view that the device code reads")?;
            require(stage.memory().is_device(), "no view of host memory", || format!("{view:?}"))?;
        }
        (None, Ok(view)) => return Err(failed("no view without device code", format!("{view:?}"))),
        (Some(_), Err(error)) if stage.memory().is_device() => return Err(failed("a view", error)),
        (_, Err(ControlError::Unsupported { reason, .. })) => {
            require(!reason.is_empty(), "a reason", || "an empty one".to_owned())?;
        }
        (_, Err(other)) => return Err(failed("ControlError::Unsupported", other)),
    }
    me.end()
}
