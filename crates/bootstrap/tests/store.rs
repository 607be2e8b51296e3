//! The store: waits with deadlines, threads of one rank, and clients and servers that die or speak nonsense.

use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use campanile_bootstrap::{Launch, MAX_ANSWER, MAX_KEY, MAX_VALUE, Output, StoreClient, StoreServer};
use campanile_core::{Bootstrap, BootstrapError, Rank, Team};

const LONG: Duration = Duration::from_secs(60);
const PROBE: &str = env!("CARGO_BIN_EXE_campanile-launch-probe");

fn client(store: &StoreServer, rank: u32) -> StoreClient {
    StoreClient::connect(store.address(), Rank(rank), 3, LONG).unwrap()
}

/// A connection without the client: bytes as they are, and a bound on reading.
fn raw(store: &StoreServer) -> UnixStream {
    let stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(store.address()).unwrap()).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream
}

const VALIDATE: [u8; 5] = [0, 0xce, 0xf7, 0x85, 0x3c];

fn string(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text].concat()
}

fn set(key: &[u8], value: &[u8]) -> Vec<u8> {
    [&[1][..], &string(key), &string(value)].concat()
}

#[test]
fn values_reach_the_others_and_waits_end_with_the_put() {
    let store = StoreServer::start().unwrap();
    let (one, other) = (client(&store, 0), client(&store, 1));
    assert_eq!((one.rank(), one.ranks()), (Rank(0), 3));
    assert_eq!(one.node(), other.node());
    one.put("early", b"1").unwrap();
    assert_eq!(other.get("early", LONG).unwrap().as_deref(), Some(&b"1"[..]));
    one.put("empty", b"").unwrap();
    assert_eq!(other.get("empty", LONG).unwrap(), Some(Vec::new()));
    thread::scope(|scope| {
        let waiting = scope.spawn(|| other.get("late", LONG));
        assert_eq!(one.get("late", Duration::from_millis(20)).unwrap(), None);
        let large = vec![7; MAX_VALUE];
        one.put("late", &large).unwrap();
        assert!(waiting.join().unwrap().unwrap() == Some(large));
    });
}

#[test]
fn a_get_that_timed_out_leaves_the_connection_in_order() {
    let store = StoreServer::start().unwrap();
    let client = client(&store, 0);
    for round in 0..20 {
        let key = format!("key {round}");
        assert_eq!(client.get(&key, Duration::from_micros(50 * round)).unwrap(), None);
        client.put(&key, &[round as u8]).unwrap();
        // Even without any time a value that is there is found.
        assert_eq!(client.get(&key, Duration::ZERO).unwrap(), Some(vec![round as u8]));
    }
}

#[test]
fn puts_that_race_with_the_deadline_are_seen_or_not_but_never_confused() {
    let store = StoreServer::start().unwrap();
    let (one, other) = (client(&store, 0), client(&store, 1));
    for round in 0..200_u64 {
        let key = format!("key {round}");
        thread::scope(|scope| {
            let got = scope.spawn(|| one.get(&key, Duration::from_micros(round)));
            other.put(&key, &round.to_le_bytes()).unwrap();
            let got = got.join().unwrap().unwrap();
            assert!(got.is_none() || got == Some(round.to_le_bytes().to_vec()));
        });
        assert_eq!(one.get(&key, LONG).unwrap(), Some(round.to_le_bytes().to_vec()));
    }
}

#[test]
fn a_thread_that_waits_does_not_hold_up_the_others_of_its_rank() {
    let store = StoreServer::start().unwrap();
    let client = client(&store, 0);
    thread::scope(|scope| {
        let waiting: Vec<_> = (0..4).map(|_| scope.spawn(|| client.get("last", LONG))).collect();
        for round in 0..50 {
            let key = format!("{round}");
            client.put(&key, b"x").unwrap();
            assert!(client.get(&key, LONG).unwrap().is_some());
        }
        client.put("last", b"now").unwrap();
        for thread in waiting {
            assert_eq!(thread.join().unwrap().unwrap().as_deref(), Some(&b"now"[..]));
        }
    });
}

#[test]
fn sums_are_atomic() {
    let store = StoreServer::start().unwrap();
    thread::scope(|scope| {
        for rank in 0..4 {
            let client = client(&store, rank);
            scope.spawn(move || {
                for _ in 0..100 {
                    client.add("sum", i64::from(rank) - 1).unwrap();
                }
            });
        }
    });
    let client = client(&store, 0);
    assert_eq!(client.add("sum", 0).unwrap(), 200);
    assert_eq!(client.get("sum", LONG).unwrap().as_deref(), Some(&b"200"[..]));
    client.put("text", b"no number").unwrap();
    assert!(client.add("text", 1).unwrap_err().to_string().contains("add to \"text\""));
    client.put("sum", i64::MAX.to_string().as_bytes()).unwrap();
    assert!(client.add("sum", 1).is_err());
    assert_eq!(client.add("other", 5).unwrap(), 5);
}

#[test]
fn every_request_works_over_tcp_and_unix_sockets() {
    for store in [StoreServer::start().unwrap(), StoreServer::listen("tcp://localhost:0").unwrap()] {
        let (one, other) = (client(&store, 0).with_prefix("/p/"), client(&store, 1));
        one.put("key", b"1").unwrap();
        assert_eq!(other.get("/p/key", LONG).unwrap().as_deref(), Some(&b"1"[..]));
        one.append("key", b"2").unwrap();
        assert_eq!(one.compare_set("key", b"12", b"13").unwrap(), b"13");
        assert_eq!(one.compare_set("key", b"12", b"14").unwrap(), b"13");
        assert_eq!(other.add("/p/key", 2).unwrap(), 15);
        assert_eq!((one.check("key").unwrap(), one.check("other").unwrap()), (true, false));
        assert_eq!(one.num_keys().unwrap(), 1);
        assert_eq!((one.delete("key").unwrap(), one.delete("key").unwrap()), (true, false));
        assert_eq!(one.pop("queue").unwrap(), None);
        thread::scope(|scope| {
            // A wait for a queue ends with a push, and its GET finds no value.
            let waiting = scope.spawn(|| one.get("queue", LONG));
            other.push("/p/queue", b"a").unwrap();
            other.push("/p/queue", b"b").unwrap();
            assert_eq!(waiting.join().unwrap().unwrap(), Some(Vec::new()));
        });
        assert_eq!(one.pop("queue").unwrap().as_deref(), Some(&b"a"[..]));
        assert!(one.check("queue").unwrap());
        assert_eq!(one.pop("queue").unwrap().as_deref(), Some(&b"b"[..]));
        assert_eq!((one.pop("queue").unwrap(), one.check("queue").unwrap()), (None, false));
    }
}

/// What torch's client sends that ours does not.
#[test]
fn lists_barriers_and_requests_for_many_keys() {
    let store = StoreServer::start().unwrap();
    let mut stream = raw(&store);
    let long = |number: u64| number.to_le_bytes();
    let pairs = [&[11][..], &long(2), &string(b"a"), &string(b"1"), &string(b"b"), &string(b"22")].concat();
    let keys = [&[10][..], &long(3), &string(b"b"), &string(b"none"), &string(b"a")].concat();
    stream.write_all(&[&VALIDATE[..], &pairs, &keys].concat()).unwrap();
    let mut answer = vec![0; 3 * 8 + 3];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer, [&long(2)[..], b"22", &long(0), &long(1), b"1"].concat());
    stream.write_all(&[7, 17]).unwrap();
    let mut answer = vec![0; 8 + 8 + 2 * 9];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer[..16], [long(2), long(2)].concat());
    let mut listed: Vec<u8> = [answer[24], answer[33]].to_vec();
    listed.sort_unstable();
    assert_eq!(listed, b"ab");
    // A barrier of two: the first is answered when the second has come, and not before.
    let barrier = [&[18][..], &string(b"all"), &2_i64.to_le_bytes()].concat();
    let mut second = raw(&store);
    stream.write_all(&barrier).unwrap();
    let counted = client(&store, 0);
    assert_eq!(counted.get("all", LONG).unwrap().as_deref(), Some(&b"1"[..]));
    stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    assert!(stream.read_exact(&mut [0]).is_err());
    stream.set_read_timeout(Some(LONG)).unwrap();
    second.write_all(&[&VALIDATE[..], &barrier].concat()).unwrap();
    for stream in [&mut stream, &mut second] {
        let mut answer = [9];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer, [0]);
    }
}

#[test]
fn tcp_addresses_that_cannot_be_had_are_errors() {
    let store = StoreServer::listen("tcp://127.0.0.1:0").unwrap();
    assert!(StoreServer::listen(store.address()).unwrap_err().to_string().contains(store.address()));
    let connect = |address: &str| StoreClient::connect(address, Rank(0), 1, LONG).unwrap_err().to_string();
    let gone = store.address().to_owned();
    drop(store);
    assert!(connect(&gone).contains("nobody listens at 127.0.0.1"), "{}", connect(&gone));
    assert!(connect("tcp://no-such-host.invalid:1").contains("looking up \"no-such-host.invalid\""));
    assert!(connect("tcp://host").contains("give tcp://HOST:PORT"));
    // An address of somebody else's machine.
    assert!(StoreServer::listen("tcp://192.0.2.77:0").is_err());
}

#[test]
fn missing_ranks_are_named() {
    let store = StoreServer::start().unwrap();
    let (one, other) = (client(&store, 0), client(&store, 2));
    let gather = |client: &StoreClient, timeout| {
        let client: &dyn Bootstrap = client;
        client.all_gather(&Team::world(3), "hello", b"", timeout)
    };
    thread::scope(|scope| {
        let waits = [
            scope.spawn(|| gather(&one, Duration::from_millis(200))),
            scope.spawn(|| gather(&other, Duration::from_millis(200))),
        ];
        for wait in waits {
            let error = wait.join().unwrap().unwrap_err();
            assert!(matches!(&error, BootstrapError::Missing { missing, .. } if missing == "rank 1"), "{error}");
        }
    });
}

#[test]
fn what_is_too_large_is_refused_and_harms_nothing() {
    let store = StoreServer::start().unwrap();
    let client = client(&store, 0);
    let error = client.put("key", &vec![0; MAX_VALUE + 1]).unwrap_err().to_string();
    assert!(error.contains(&(MAX_VALUE + 1).to_string()) && error.contains(&MAX_VALUE.to_string()), "{error}");
    let long = "k".repeat(MAX_KEY + 1);
    for error in [client.put(&long, b"").unwrap_err(), client.get(&long, LONG).unwrap_err()] {
        assert!(error.to_string().contains(&MAX_KEY.to_string()), "{error}");
    }
    client.put(&long[..MAX_KEY], &vec![1; MAX_VALUE]).unwrap();
    assert!(client.get(&long[..MAX_KEY], LONG).unwrap() == Some(vec![1; MAX_VALUE]));
    // An answer that is many times the request: one key, over and over.
    let most = MAX_ANSWER / (MAX_VALUE + 8);
    for (times, expected) in [(most, most * (MAX_VALUE + 8)), (most + 1, 0)] {
        let mut stream = raw(&store);
        let keys = string(&long.as_bytes()[..MAX_KEY]).repeat(times);
        stream.write_all(&[&VALIDATE[..], &[10], &(times as u64).to_le_bytes(), &keys].concat()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(std::io::copy(&mut stream, &mut std::io::sink()).unwrap(), expected as u64);
    }
}

#[test]
fn a_client_that_dies_at_any_byte_harms_nobody() {
    let store = StoreServer::start().unwrap();
    let client = client(&store, 0);
    let message = [&VALIDATE[..], &set(b"key", b"value"), &[6], &1_u64.to_le_bytes(), &string(b"never")].concat();
    for cut in 0..=message.len() {
        let mut dying = raw(&store);
        dying.write_all(&message[..cut]).unwrap();
        drop(dying);
        assert_eq!(client.add("alive", 1).unwrap(), cut as i64 + 1);
    }
    // What was whole counts, even of the dead.
    assert_eq!(client.get("key", LONG).unwrap().as_deref(), Some(&b"value"[..]));
    client.put("never", b"").unwrap();
}

#[test]
fn a_request_may_come_byte_by_byte_and_many_at_once() {
    let store = StoreServer::start().unwrap();
    let mut slow = raw(&store);
    let get = [&[3][..], &string(b"a")].concat();
    let requests =
        [&VALIDATE[..], &set(b"a", b"xyz"), &get, &[5], &1_u64.to_le_bytes(), &string(b"b"), &[13, 1, 2, 3, 4]];
    for byte in requests.concat() {
        slow.write_all(&[byte]).unwrap();
    }
    let mut answers = [0; 8 + 3 + 1 + 4];
    slow.read_exact(&mut answers).unwrap();
    assert_eq!(answers, [3, 0, 0, 0, 0, 0, 0, 0, b'x', b'y', b'z', 1, 1, 2, 3, 4]);
    let mut hasty = raw(&store);
    hasty.write_all(&[&VALIDATE[..], &get.repeat(1000)].concat()).unwrap();
    let mut answers = vec![0; 1000 * 11];
    hasty.read_exact(&mut answers).unwrap();
    assert!(answers.chunks(11).all(|answer| answer.ends_with(b"xyz")));
}

#[test]
fn nonsense_loses_its_connection_and_nothing_else() {
    let store = StoreServer::start().unwrap();
    let bad: [(&str, Vec<u8>); 6] = [
        ("wrong magic", vec![0, 1, 2, 3, 4]),
        ("no VALIDATE", set(b"key", b"value")),
        ("unknown opcode", [&VALIDATE[..], &[200]].concat()),
        ("long key", [&VALIDATE[..], &[3], &(MAX_KEY as u64 + 1).to_le_bytes()].concat()),
        ("long value", [&VALIDATE[..], &[1], &string(b"k"), &u64::MAX.to_le_bytes()].concat()),
        ("long list", [&VALIDATE[..], &[6], &u64::MAX.to_le_bytes()].concat()),
    ];
    for (what, bytes) in bad {
        let mut stream = raw(&store);
        stream.write_all(&bytes).unwrap();
        let mut rest = Vec::new();
        match stream.read_to_end(&mut rest) {
            Ok(_) => {}
            // The server had not read all.
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{what}: {error}"),
        }
        assert!(rest.is_empty(), "{what}: {rest:?}");
    }
    assert_eq!(client(&store, 0).get("key", Duration::ZERO).unwrap(), None);
}

#[test]
fn a_client_that_does_not_read_holds_up_nobody_and_loses_nothing() {
    let store = StoreServer::start().unwrap();
    let client = client(&store, 0);
    let value: Vec<u8> = (0..1_u32 << 18).flat_map(u32::to_le_bytes).collect();
    client.put("large", &value).unwrap();
    // A put is not answered; what comes over another connection may overtake it.
    assert!(client.get("large", LONG).unwrap().is_some());
    let mut lazy = raw(&store);
    let get = [&[3][..], &string(b"large")].concat();
    lazy.write_all(&[&VALIDATE[..], &get.repeat(16), &set(b"after", b"1")].concat()).unwrap();
    // The server is stuck in its first answers, and does not come to its SET.
    assert_eq!(client.get("after", Duration::from_millis(50)).unwrap(), None);
    assert_eq!(client.add("alive", 1).unwrap(), 1);
    let mut answer = vec![0; 8 + value.len()];
    for _ in 0..16 {
        lazy.read_exact(&mut answer).unwrap();
        assert!(answer[8..] == value);
    }
    assert!(client.get("after", LONG).unwrap().is_some());
}

#[test]
fn a_store_that_is_gone_is_an_error_at_once() {
    let store = StoreServer::start().unwrap();
    let (client, address) = (client(&store, 0), store.address().to_owned());
    thread::scope(|scope| {
        let start = Instant::now();
        let waiting = scope.spawn(|| client.get("never", LONG));
        // It waits when this comes back as not there, or is about to; both must end.
        assert_eq!(client.get("other", Duration::from_millis(50)).unwrap(), None);
        drop(store);
        let error = waiting.join().unwrap().unwrap_err();
        assert!(matches!(&error, BootstrapError::Store { what, .. } if what == "get \"never\""), "{error}");
        assert!(error.to_string().contains("gone"), "{error}");
        assert!(start.elapsed() < LONG / 2);
    });
    assert!(matches!(client.put("key", b""), Err(BootstrapError::Store { .. })));
    assert!(matches!(client.get("key", LONG), Err(BootstrapError::Store { .. })));
    let error = StoreClient::connect(&address, Rank(0), 1, LONG).unwrap_err().to_string();
    assert!(error.contains(&address) && error.contains("nobody listens"), "{error}");
}

/// Something that listens, but is no store: it does not accept, does not answer, or answers something else.
#[test]
fn impostors_are_told_from_stores() {
    let address = format!("campanile-test-{}", std::process::id());
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&address).unwrap()).unwrap();
    let connect = |timeout| StoreClient::connect(&address, Rank(0), 1, timeout).unwrap_err().to_string();
    let error = connect(Duration::from_millis(50));
    assert!(error.contains("did not answer within 50.0ms"), "{error}");
    drop(listener.accept().unwrap());
    thread::scope(|scope| {
        let liar = scope.spawn(|| {
            let mut stream = listener.accept().unwrap().0;
            stream.read_exact(&mut [0; 10]).unwrap();
            stream
                .write_all(
                    b"HTTP/1.1 400 Bad Request
",
                )
                .unwrap();
        });
        let error = connect(LONG);
        assert!(error.contains("does not speak"), "{error}");
        liar.join().unwrap();
    });
    // One connection fits into the shortest backlog.
    rustix::net::listen(&listener, 0).unwrap();
    let _queued = UnixStream::connect_addr(&SocketAddr::from_abstract_name(&address).unwrap()).unwrap();
    let error = connect(Duration::from_millis(50));
    assert!(error.contains("did not accept within 50.0ms"), "{error}");
    assert!(StoreClient::connect("", Rank(0), 1, LONG).is_err());
    assert!(StoreClient::connect(&"a".repeat(200), Rank(0), 1, LONG).unwrap_err().to_string().contains("1 to 107"));
}

#[test]
fn another_user_is_turned_away() {
    if !rustix::process::geteuid().is_root() {
        println!("not run: only root can start a process as another user");
        return;
    }
    let store = StoreServer::start().unwrap();
    // Where another user may not look, it cannot start a program.
    let copy = std::env::temp_dir().join(format!("campanile-probe-{}", std::process::id()));
    std::fs::copy(PROBE, &copy).unwrap();
    std::fs::set_permissions(&copy, PermissionsExt::from_mode(0o755)).unwrap();
    let probe = |what, uid| Command::new(&copy).args([what, store.address()]).current_dir("/").uid(uid).output();
    let (ours, theirs, strange) = (probe("connect", 0), probe("connect", 65534), probe("connect-blindly", 65534));
    std::fs::remove_file(&copy).unwrap();
    assert_eq!(ours.unwrap().stdout, b"1\n");
    let theirs = theirs.unwrap();
    let error = String::from_utf8_lossy(&theirs.stderr).into_owned();
    assert!(!theirs.status.success() && error.contains("runs as uid 0, not 65534"), "{error}");
    // The server refuses, too, where the client does not check.
    assert_eq!(strange.unwrap().stdout, b"0 bytes\n");
}

#[test]
fn processes_gather_through_the_launchers_store() {
    let outcome = Launch::new(PROBE, ["gather", "60s"], 5).output(Output::Captured).run().unwrap();
    assert_eq!(outcome.failure, None);
    for (rank, outcome) in outcome.ranks.iter().enumerate() {
        let expected = format!("rank {rank}: [0, 10, 20, 30, 40] on one node\n");
        assert_eq!(String::from_utf8_lossy(&outcome.stdout), expected);
    }
}

#[test]
fn a_process_that_does_not_join_is_named() {
    let script = format!("[ $CAMPANILE_RANK = 1 ] || {PROBE} gather 2s 2>&1");
    let outcome = Launch::new("sh", ["-c", &script], 3).output(Output::Captured).run().unwrap();
    assert!(outcome.failure.is_some());
    for rank in [0, 2] {
        let said = String::from_utf8_lossy(&outcome.ranks[rank].stdout);
        assert!(said.contains("numbers: missing rank 1 after 2"), "{said}");
    }
}
