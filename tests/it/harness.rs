//! The harness is tested as what it is: the thing that everything else is believed by.

use std::time::Duration;

use crate::support::{
    Answer, Certificates, Data, Direction, Fake, Flavour, Mode, Proxy, Replica, ReplicaOptions, Server, ServerOptions,
    Servers, TempDir, boot_ms, eventually, let_time_pass, resp::Client, run,
};

const SOON: Duration = Duration::from_secs(5);

#[test]
fn a_server_of_each_flavour_starts_hangs_dies_and_comes_back_empty_or_with_its_data() {
    for flavour in Flavour::ALL {
        let mut server = Server::start(flavour, ServerOptions::new());
        let address = server.address();
        assert_eq!(server.cli(&["SET", "k", "v"]).text(), "OK");
        server.stop();
        let mut client = Client::tcp(&address, Duration::from_millis(200)).expect("the kernel accepts");
        assert!(client.call(&["PING"]).is_err(), "a stopped server answers");
        server.cont();
        assert_eq!(client.read().expect("the late answer").text(), "PONG");
        server.cli(&["SAVE"]);
        server.restart(Data::Kept);
        assert_eq!(server.cli(&["GET", "k"]).text(), "v", "{}", flavour.as_str());
        server.kill();
        assert!(Client::tcp(&address, SOON).is_err());
        server.start_again(Data::Lost);
        assert!(server.cli(&["GET", "k"]).is_nil());
        assert_eq!(server.address(), address);
    }
}

#[test]
fn a_server_with_a_password_and_tls_speaks_both() {
    let certificates = Certificates::generate();
    let server = Server::start(Flavour::Redis70, ServerOptions::new().password("pa ss").tls(&certificates).ipv6());
    assert_eq!(server.cli(&["PING"]).text(), "PONG");
    let mut client = std::process::Command::new("openssl");
    client.args(["s_client", "-brief", "-verify_return_error", "-servername", "localhost", "-CAfile"]);
    client.arg(certificates.ca()).args(["-connect", &server.address()]);
    client.arg("-no_ign_eof");
    let process = crate::support::Process::start("s_client", client);
    eventually("the certificate verifies", SOON, || {
        process.stderr().iter().any(|line| line.text.contains("Verification: OK")).then_some(())
    });
}

#[test]
fn monitor_tells_requests_from_what_scripts_run() {
    let server = Server::start(Flavour::Redis70, ServerOptions::new());
    let monitor = server.monitor();
    let mut client = Client::tcp(&server.address(), SOON).unwrap();
    client.call(&["EVAL", "return redis.call('SET', KEYS[1], 'a \"b\"')", "1", "k"]).unwrap();
    eventually("both lines are seen", SOON, || (monitor.lines().len() >= 2).then_some(()));
    assert_eq!(monitor.requests().len(), 1);
    assert_eq!(monitor.requests()[0].name, "EVAL");
    let inner = monitor.lines().into_iter().find(|line| line.is_script()).expect("what the script ran");
    assert_eq!((inner.name.as_str(), inner.args.join("|").as_str()), ("SET", "k|a \"b\""));
}

#[test]
fn a_proxy_passes_swallows_refuses_and_resets() {
    let servers = Servers::start(1);
    let proxy = Proxy::start(&servers[0].address());
    let connect = || Client::tcp(&proxy.address(), Duration::from_millis(300));
    let mut client = connect().unwrap();
    assert_eq!(client.call(&["PING"]).unwrap().text(), "PONG");
    proxy.set(Mode::DropReplies);
    assert!(client.call(&["SET", "k", "executed"]).is_err());
    assert_eq!(servers[0].cli(&["GET", "k"]).text(), "executed");
    proxy.set(Mode::Blackhole);
    let mut second = connect().unwrap();
    assert!(second.call(&["SET", "k", "swallowed"]).is_err());
    assert_eq!(servers[0].cli(&["GET", "k"]).text(), "executed");
    proxy.set(Mode::Pass);
    assert!(second.call(&["PING"]).is_err(), "a stream that lost its middle lives on");
    proxy.set(Mode::Refuse);
    assert!(connect().is_err());
    proxy.set(Mode::Pass);
    let mut third = connect().unwrap();
    assert_eq!(third.call(&["PING"]).unwrap().text(), "PONG");
    proxy.reset();
    assert_eq!(third.call(&["PING"]).unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    let names: Vec<String> =
        proxy.seen().into_iter().map(|seen| format!("{} {}", seen.connection, seen.name)).collect();
    assert_eq!(names, ["1 PING", "1 SET", "2 SET", "2 PING", "3 PING"]);
}

#[test]
fn a_proxy_delays_stalls_truncates_and_closes_half() {
    let servers = Servers::start(1);
    let proxy = Proxy::start(&servers[0].address());
    let mut client = Client::tcp(&proxy.address(), SOON).unwrap();
    proxy.delay(Duration::from_millis(60));
    let began = boot_ms();
    assert_eq!(client.call(&["PING"]).unwrap().text(), "PONG");
    let took = boot_ms() - began;
    assert!((119..250).contains(&took), "60 ms each way took {took} ms");
    proxy.delay(Duration::ZERO);
    proxy.set(Mode::Stall);
    client.send(&crate::support::resp::command(&["SET", "k", "late"])).unwrap();
    eventually("the request is read", SOON, || (proxy.count("SET") == 1).then_some(()));
    assert!(servers[0].cli(&["GET", "k"]).is_nil());
    proxy.set(Mode::Pass);
    assert_eq!(client.read().unwrap().text(), "OK");
    proxy.truncate_next_reply(3);
    assert_eq!(client.call(&["GET", "k"]).unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
    let mut second = Client::tcp(&proxy.address(), SOON).unwrap();
    second.call(&["PING"]).unwrap();
    proxy.half_close();
    assert_eq!(second.read().unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
}

#[test]
fn a_held_request_arrives_late_even_if_its_client_has_left() {
    let servers = Servers::start(1);
    let proxy = Proxy::start(&servers[0].address());
    let hold = proxy.hold(Direction::Request, b"held-value");
    let mut client = Client::tcp(&proxy.address(), SOON).unwrap();
    client.send(&crate::support::resp::command(&["SET", "k", "held-value"])).unwrap();
    assert_eq!(hold.caught(SOON), 1);
    drop(client);
    let mut second = Client::tcp(&proxy.address(), SOON).unwrap();
    assert_eq!(second.call(&["SET", "k", "overtakes"]).unwrap().text(), "OK");
    hold.release();
    eventually("the late request is executed", SOON, || {
        (servers[0].cli(&["GET", "k"]).text() == "held-value").then_some(())
    });
    let hold = proxy.hold(Direction::Reply, b"held-value");
    second.send(&crate::support::resp::command(&["GET", "k"])).unwrap();
    assert_eq!(hold.caught(SOON), 2);
    hold.release();
    assert_eq!(second.read().unwrap().text(), "held-value");
}

#[test]
fn a_fake_says_what_no_server_says() {
    let fake = Fake::start(|call| match call.name.as_str() {
        "PING" => Answer::error("LOADING for ever"),
        "GET" => Answer::BytesThenClose(b"$5\r\nab".to_vec()),
        _ => Answer::info("4.0.1", "aa", "slave"),
    });
    let mut client = Client::tcp(&fake.address(), SOON).unwrap();
    assert!(client.call(&["ping"]).unwrap().is_error());
    assert!(client.call(&["INFO"]).unwrap().text().contains("redis_version:4.0.1"));
    assert!(client.call(&["GET", "k"]).is_err());
    assert_eq!(fake.calls().len(), 3);
    assert_eq!(fake.calls()[2].word(1), "k");
}

#[test]
fn the_track_of_a_replica_ends_with_its_word_or_its_death() {
    let directory = TempDir::new();
    let script = "#!/bin/sh\n\
        say() { echo \"{\\\"message\\\":\\\"$1\\\",\\\"token\\\":$2,\\\"boot_ms\\\":$3}\" >&2; }\n\
        say elected 7 100; say 'stepping down' 7 140; say 'stepped down' 7 150; say elected 9 200\n\
        exec sleep 60\n";
    let stand_in = directory.write("stand-in", script);
    std::fs::set_permissions(&stand_in, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let replica = ReplicaOptions::new("lock", "a", &["redis://127.0.0.1:1"]).binary(stand_in).start();
    assert_eq!(replica.wait_elected(2, SOON).number("token"), Some(9));
    let ends = |replica: &Replica| replica.track().terms.iter().map(|term| term.end).collect::<Vec<_>>();
    assert_eq!(ends(&replica), [Some(150), None]);
    assert_eq!(replica.readyz().0, 0);
    let before = boot_ms();
    replica.stop();
    let stopped = boot_ms();
    let_time_pass("a stopped process believes nothing", Duration::from_millis(30));
    assert!(replica.kill9() >= stopped + 30);
    assert!((before..=stopped).contains(&ends(&replica)[1].expect("it is dead")));
    assert_eq!(replica.wait_exit(SOON), 137);
}

#[test]
fn a_command_is_run_with_its_output_and_code() {
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "echo out; echo err >&2; exit 3"]);
    let output = run("sh", command, SOON);
    assert_eq!((output.code, output.stdout.as_str(), output.stderr.as_str()), (3, "out\n", "err\n"));
}
