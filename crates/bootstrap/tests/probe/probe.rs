//! A launcher and a rank, as small as they can be: the tests start it, kill it and read what it writes.
//!
//! - `launch [ranks=N] [timeout=T] [grace=T] [captured] [signals] -- COMMAND ARGUMENTS...`: a launcher. Prints
//!   `probe: ` and the outcome to stderr; exits with 0, 1 or 2, and with 99 if it has a child left.
//! - `whoami`: what [`from_env`] says.
//! - `gather TIMEOUT [STAY]`: joins, gathers from all ranks, stays for a while, prints what came.
//! - `gather-again TIMEOUT`: joins twice at once, gathers from all ranks in both jobs, prints what came.
//! - `put-and-leave`: joins, puts a value, is done.
//! - `read-late`: joins, and reads that value when rank 0 is about to leave.
//! - `serve ADDRESS`: a store, until standard input ends; prints its address.
//! - `exercise ADDRESS [queues]`: does what a client can to a store that nobody else uses now, and checks every answer.
//! - `connect ADDRESS`: connects to a store.
//! - `connect-blindly ADDRESS`: the same without looking who listens there; prints how many bytes of an answer came.

use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::process::ExitCode;
use std::time::Duration;

use campanile_bootstrap::{Launch, MAX_VALUE, Output, StoreClient, StoreServer, from_env};
use campanile_core::{Bootstrap, BootstrapError, Rank, Team, parse_duration};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match arguments.as_slice() {
        ["launch", options @ ..] => return launch(options),
        ["whoami"] => whoami(),
        ["gather", timeout] => gather(parse_duration(timeout).expect("a time"), Duration::ZERO),
        ["gather", timeout, stay] => {
            gather(parse_duration(timeout).expect("a time"), parse_duration(stay).expect("a time"))
        }
        ["gather-again", timeout] => gather_again(parse_duration(timeout).expect("a time")),
        ["put-and-leave"] => put_and_leave(),
        ["read-late"] => read_late(),
        ["serve", address] => serve(address).map_err(|error| error.to_string()),
        ["exercise", address, queues @ ..] => exercise(address, !queues.is_empty()).map_err(|error| error.to_string()),
        ["connect", address] => connect(address),
        ["connect-blindly", address] => connect_blindly(address).map_err(|error| error.to_string()),
        other => Err(format!("what is {other:?}?")),
    };
    match result {
        Ok(text) => println!("{text}"),
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn launch(arguments: &[&str]) -> ExitCode {
    let split = arguments.iter().position(|argument| *argument == "--").expect("a -- before the command");
    let (options, command) = (&arguments[..split], &arguments[split + 1..]);
    let value = |name: &str| options.iter().find_map(|option| option.strip_prefix(name)?.strip_prefix('='));
    let time = |name: &str| value(name).map(|text| parse_duration(text).expect("a time"));
    let ranks = value("ranks").map_or(1, |ranks| ranks.parse().expect("a number"));
    let captured = options.contains(&"captured");
    let outcome = Launch::new(command[0], &command[1..], ranks)
        .timeout(time("timeout"))
        .grace(time("grace").unwrap_or(Duration::from_secs(2)))
        .output(if captured { Output::Captured } else { Output::Prefixed })
        .forward_signals(options.contains(&"signals"))
        .run();
    let code = match outcome {
        Ok(outcome) => {
            eprintln!("probe: {outcome}");
            u8::from(outcome.failure.is_some())
        }
        Err(error) => {
            eprintln!("probe: {error}");
            if error.is_usage() { 2 } else { 1 }
        }
    };
    // Not even the guardian, and no zombie.
    match rustix::process::waitpid(None, rustix::process::WaitOptions::NOHANG) {
        Err(rustix::io::Errno::CHILD) => ExitCode::from(code),
        _ => ExitCode::from(99),
    }
}

fn whoami() -> Result<String, String> {
    let bootstrap = from_env().map_err(|error| error.to_string())?;
    Ok(format!("{} of {}", bootstrap.rank(), bootstrap.ranks()))
}

fn gather(timeout: Duration, stay: Duration) -> Result<String, String> {
    let bootstrap = from_env().map_err(|error| error.to_string())?;
    let (rank, ranks) = (bootstrap.rank(), bootstrap.ranks());
    let all = bootstrap.all_gather(&Team::world(ranks), "numbers", &[10 * rank.0 as u8], timeout);
    let all = all.map_err(|error| error.to_string())?;
    std::thread::sleep(stay);
    Ok(format!("{rank}: {:?} on one node", all.concat()))
}

fn gather_again(timeout: Duration) -> Result<String, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let first = from_env().map_err(|error| text(&error))?;
    let second = from_env().map_err(|error| text(&error))?;
    let (rank, team) = (first.rank(), Team::world(first.ranks()));
    let value = 10 * rank.0 as u8;
    let one = first.all_gather(&team, "numbers", &[value], timeout).map_err(|error| text(&error))?;
    // The first job may end before the second one is used.
    drop(first);
    let other = second.all_gather(&team, "numbers", &[value + 1], timeout).map_err(|error| text(&error))?;
    Ok(format!("{rank}: {:?}, then {:?}", one.concat(), other.concat()))
}

fn put_and_leave() -> Result<String, String> {
    let bootstrap = from_env().map_err(|error| error.to_string())?;
    // Until the other one is there.
    bootstrap.get("ready", Duration::from_secs(60)).map_err(|error| error.to_string())?;
    bootstrap.put("key", b"value").map_err(|error| error.to_string())?;
    drop(bootstrap);
    Ok("left".to_owned())
}

fn read_late() -> Result<String, String> {
    let bootstrap = from_env().map_err(|error| error.to_string())?;
    bootstrap.put("ready", b"").map_err(|error| error.to_string())?;
    // So that the other one wants to leave before; sooner would be right, too.
    std::thread::sleep(Duration::from_millis(300));
    let value = bootstrap.get("key", Duration::from_secs(60)).map_err(|error| error.to_string())?;
    Ok(String::from_utf8_lossy(&value.unwrap_or_default()).into_owned())
}

fn serve(address: &str) -> Result<String, Box<dyn std::error::Error>> {
    let server = StoreServer::listen(address)?;
    println!("{}", server.address());
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    Ok("served".to_owned())
}

fn exercise(address: &str, queues: bool) -> Result<String, BootstrapError> {
    let (long, short) = (Duration::from_secs(20), Duration::from_millis(50));
    let client = StoreClient::connect(address, Rank(0), 1, long)?.with_prefix("/exercise/");
    let other = StoreClient::connect(address, Rank(0), 1, long)?;
    client.put("key", b"value")?;
    assert_eq!(other.get("/exercise/key", long)?.as_deref(), Some(&b"value"[..]));
    // A wait that is cancelled, at all times around the put; what comes after is in order.
    for round in 0..200 {
        let key = format!("late {round}");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| client.get(&key, Duration::from_micros(10 * round)));
            other.put(&format!("/exercise/{key}"), b"now")?;
            let got = waiting.join().expect("no panic")?;
            assert!(got.is_none_or(|value| value == b"now"));
            assert_eq!(client.get(&key, long)?.as_deref(), Some(&b"now"[..]));
            Ok(())
        })?;
    }
    assert_eq!(client.get("never", short)?, None);
    let large = vec![7; MAX_VALUE];
    client.put("large", &large)?;
    assert!(client.get("large", long)? == Some(large));
    client.append("key", b", more")?;
    assert_eq!(client.compare_set("key", b"value, more", b"new")?, b"new");
    assert_eq!(client.compare_set("key", b"value", b"newer")?, b"new");
    assert_eq!(client.compare_set("absent", b"value", b"newer")?, b"value");
    assert_eq!(client.compare_set("fresh", b"", b"first")?, b"first");
    assert_eq!((client.add("sum", 5)?, client.add("sum", -7)?), (5, -2));
    assert_eq!(client.get("sum", long)?.as_deref(), Some(&b"-2"[..]));
    assert_eq!((client.check("sum")?, client.check("never")?), (true, false));
    let keys = client.num_keys()?;
    assert_eq!((client.delete("sum")?, client.delete("sum")?), (true, false));
    assert_eq!(client.num_keys()?, keys - 1);
    if queues {
        assert_eq!(client.pop("queue")?, None);
        client.push("queue", b"a")?;
        client.push("queue", b"")?;
        assert!(client.check("queue")?);
        assert_eq!(client.pop("queue")?.as_deref(), Some(&b"a"[..]));
        assert_eq!(client.pop("queue")?.as_deref(), Some(&b""[..]));
        assert_eq!(client.pop("queue")?, None);
    }
    Ok("exercised".to_owned())
}

fn connect(address: &str) -> Result<String, String> {
    let client =
        StoreClient::connect(address, Rank(0), 1, Duration::from_secs(10)).map_err(|error| error.to_string())?;
    client.add("connections", 1).map(|count| count.to_string()).map_err(|error| error.to_string())
}

fn connect_blindly(address: &str) -> std::io::Result<String> {
    let mut stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(address)?)?;
    // VALIDATE and PING, which is answered with 4 bytes. It fails if the other end was closed already.
    let _ = stream.write_all(&[0, 0xce, 0xf7, 0x85, 0x3c, 13, 1, 2, 3, 4]);
    let mut answer = Vec::new();
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    // Reset, as the server had not read all.
    let _ = stream.read_to_end(&mut answer);
    Ok(format!("{} bytes", answer.len()))
}
