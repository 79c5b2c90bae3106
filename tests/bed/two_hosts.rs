//! A job on two hosts, each a network namespace with a name of its own, a real sshd and one rank. gputop is on a third.

use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::fake_machine::{Guarded, wait_until};
use crate::fake_nvml::FakeNvml;
use crate::harness::Harness;
use crate::namespace;
use crate::ranks::{Job, SCRIPT, variants};
use crate::sshd::{self, Sshd};

const PORT: &str = "29500";

/// A host that ends with its first process.
struct Node {
    process: Guarded,
    name: String,
    address: String,
}

impl Node {
    /// Starts the host with this number, and connects it to the bridge.
    fn start(number: usize) -> Self {
        let name = format!("node{number}");
        let mut first = Command::new("unshare");
        first.args(["--net", "--uts", "sh", "-c", &format!("hostname {name} && exec cat")]);
        let first: Child = first.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let address = format!("10.88.0.{}", number + 1);
        let node = Self { process: Guarded(first), name, address };
        let has_name = || node.output(&["hostname"]).trim() == node.name;
        wait_until("the name of the host", has_name);
        let (link, pid) = (format!("veth{number}"), node.process.0.id().to_string());
        ip(&["link", "add", &link, "type", "veth", "peer", "name", "eth0", "netns", &pid]);
        ip(&["link", "set", &link, "master", BRIDGE, "up"]);
        for line in ["link set lo up", "link set eth0 up"] {
            node.output(&["ip"].into_iter().chain(line.split(' ')).collect::<Vec<_>>());
        }
        node.output(&["ip", "address", "add", &format!("{}/24", node.address), "dev", "eth0"]);
        node
    }

    /// Returns a command that runs the one that follows on this host.
    fn enter(&self) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.process.0.id().to_string(), "--net", "--uts"]);
        command
    }

    fn output(&self, command: &[&str]) -> String {
        let output = self.enter().args(command).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }
}

const BRIDGE: &str = "bridge";
const BRIDGE_ARGUMENTS: [&str; 6] = ["ip", "link", "add", BRIDGE, "type", "bridge"];

fn ip(arguments: &[&str]) {
    assert!(Command::new("ip").args(arguments).status().unwrap().success(), "{arguments:?}");
}

#[test]
fn the_stuck_rank_of_a_job_on_two_hosts_is_named_with_its_host() {
    let test = "two_hosts::the_stuck_rank_of_a_job_on_two_hosts_is_named_with_its_host";
    if !sshd::is_available() || !namespace::is_own("--net", &BRIDGE_ARGUMENTS, test) {
        return;
    }
    ip(&["link", "set", "lo", "up"]);
    ip(&BRIDGE_ARGUMENTS[1..]);
    ip(&["address", "add", "10.88.0.1/24", "dev", BRIDGE]);
    ip(&["link", "set", BRIDGE, "up"]);
    let nodes = [Node::start(1), Node::start(2)];

    let variant = variants().pop().unwrap();
    let meeting = tempfile::tempdir().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join(SCRIPT);
    let start = |(rank, node): (usize, &Node)| -> Harness {
        let mut command = node.enter();
        command.arg(&variant.release.python).arg(&script);
        command.args([&rank.to_string(), "2", PORT, "item"]);
        let launch = variant.nccl(variant.release.environment(command), meeting.path());
        launch.env("MASTER_ADDR", &nodes[0].address).start()
    };
    let ranks = nodes.iter().enumerate().map(start).collect();
    let mut job = Job { ranks, mode: "item", _meeting: meeting };
    job.wait();

    let fakes = job
        .ranks
        .iter()
        .map(|rank| FakeNvml::new(&format!("[[gpu]]\n[[process]]\npid = {}\ngpu = 0\n", rank.pid)));
    let fakes: Vec<_> = fakes.collect();
    let servers = nodes.iter().zip(&fakes).map(|(node, fake)| {
        let server = Sshd::start_on(&node.address, node.enter(), fake, "");
        server.install();
        server
    });
    let servers: Vec<_> = servers.collect();
    let hosts = nodes.iter().zip(&servers).map(|(node, server)| server.client_of(&node.name));
    servers[0].write_client(&hosts.collect::<String>());

    let terminal = servers[0].dashboard().args(["node1", "node2"]).start();
    // No rank waits on the second host, which reads the stack nevertheless.
    let is_named = |screen: &vt100::Screen| {
        let text = screen.contents();
        text.contains("rank 1 on node2 holds up rank 0 for") && text.contains("it is in sleep (")
    };
    terminal.wait_for(is_named, "the rank that is stuck, its host and what it does");
    // The screen of ranks shows both.
    terminal.send("\rr");
    terminal.wait_text("waits for rank 1");
    let is_whole = |screen: &vt100::Screen| {
        let text = screen.contents();
        let has_row = |host: &str, state: &str| {
            text.lines().any(|line| line.contains(host) && line.contains(state))
        };
        has_row("node1", "waits for rank 1") && has_row("node2", "holds up others")
    };
    terminal.wait_for(is_whole, "a row for each rank with its host");
    // After a minute, the wait is an incident of the second host, although no host has two of the ranks.
    terminal.send("Hj\r");
    terminal.wait_for(|screen| screen.contents().starts_with(" node2"), "the second host");
    terminal.send("i");
    terminal.wait_text("COLLECTIVE STALL");
}
