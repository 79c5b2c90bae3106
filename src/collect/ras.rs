//! Asks NCCL's RAS subsystem about a job. It knows the ranks on all hosts.
//!
//! NCCL answers on a port of the loopback interface. A question wakes a thread in every process of the job, so it is asked
//! only at the user's request. Jobs of one user share the port, and the kernel picks the one that answers: the question is
//! repeated until the answer is about the job of the process.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use gputop_explain::ranks::RasAnswer;
use gputop_model::ras::RasReport;
use gputop_model::{Millis, Missing, ProcessKey, Reason};
use gputop_peek::process::access::Access;

use super::process::setting_of;

const DEFAULT_PORT: u16 = 28_028;
/// Time between the two answers that are compared.
const APART: Duration = Duration::from_secs(5);
/// Maximum time until the right job has answered. NCCL waits up to 10 s for ranks that do not answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum number of questions until the right job answers.
const MAX_TRIES: u32 = 5;
/// Maximum size of one answer.
const MAX_ANSWER: u64 = 32 << 20;
const QUESTION: &[u8] = b"CLIENT PROTOCOL 2\nTIMEOUT 5\nSET FORMAT json\nSTATUS\n";

/// Asks twice, and compares the answers. Takes 5 s to 35 s.
pub fn ask(proc_root: &Path, process: ProcessKey) -> Result<RasReport, Missing> {
    let job = Job::of(proc_root, process)?;
    let first = job.answer()?;
    let asked = Instant::now();
    std::thread::sleep(APART);
    let later = job.answer()?;
    let apart = u64::try_from(asked.elapsed().as_millis()).unwrap_or(u64::MAX);
    Ok(first.compare(&later, Millis(apart)))
}

/// The port to ask, and a process by which the answer is recognized.
struct Job {
    address: SocketAddr,
    /// PID of the process in its own namespace.
    pid: u32,
}

impl Job {
    fn of(proc_root: &Path, process: ProcessKey) -> Result<Self, Missing> {
        let dir = proc_root.join(process.pid.to_string());
        let access = Access::new(proc_root);
        let denied = |error: io::Error| access.missing("its network", &error);
        let network = |dir: &Path| fs::read_link(dir.join("ns/net"));
        if network(&dir).map_err(denied)? != network(&proc_root.join("self")).map_err(denied)? {
            return unsupported("the job has a network of its own; run gputop in its container");
        }
        let setting = |name| setting_of(proc_root, process.pid, name);
        if setting("NCCL_RAS_ENABLE").as_deref() == Some("0") {
            return unsupported("NCCL_RAS_ENABLE=0 is set in the process");
        }
        let address = match setting("NCCL_RAS_ADDR") {
            None => SocketAddr::new(Ipv4Addr::LOCALHOST.into(), DEFAULT_PORT),
            Some(text) => local_address(&text).ok_or_else(|| {
                let why = format!("NCCL_RAS_ADDR={text} is not on the loopback interface");
                Missing::new(Reason::Unsupported, why)
            })?,
        };
        let status = fs::read_to_string(dir.join("status")).map_err(denied)?;
        let pids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
        let pid = pids.and_then(|pids| pids.split_whitespace().last()?.parse().ok());
        access.check(process, "its network")?;
        Ok(Self { address, pid: pid.unwrap_or(process.pid.0) })
    }

    /// Returns an answer about the job of the process.
    fn answer(&self) -> Result<RasAnswer, Missing> {
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        for _ in 0..MAX_TRIES {
            let text = self.converse(deadline).map_err(|error| {
                let why = format!("NCCL does not answer at {}: {error}", self.address);
                Missing::new(Reason::Unknown, why)
            })?;
            let answer = parse(&text)?;
            if answer.has_process(self.pid) {
                return Ok(answer);
            }
        }
        let why = format!("another job answers at {}", self.address);
        Err(Missing::new(Reason::Unknown, why))
    }

    fn converse(&self, deadline: Instant) -> io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect_timeout(&self.address, CONNECT_TIMEOUT)?;
        stream.set_write_timeout(Some(CONNECT_TIMEOUT))?;
        stream.write_all(QUESTION)?;
        let (mut text, mut buffer) = (Vec::new(), [0; 16 << 10]);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            stream.set_read_timeout(Some(left))?;
            match stream.read(&mut buffer) {
                Ok(0) => return Ok(text),
                Ok(count) => text.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                Err(error) => return Err(error),
            }
            if text.len() as u64 > MAX_ANSWER {
                return Err(io::Error::other("the answer is too long"));
            }
        }
    }
}

/// Reads `HOST:PORT` or `:PORT` on the loopback interface. Other hosts are not asked: any user can set the variable.
fn local_address(text: &str) -> Option<SocketAddr> {
    let (host, port) = text.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let address: IpAddr = match host {
        "" | "localhost" => Ipv4Addr::LOCALHOST.into(),
        host => host.parse().ok()?,
    };
    address.is_loopback().then_some(SocketAddr::new(address, port.parse().ok()?))
}

/// Skips the lines that acknowledge the settings.
fn parse(text: &[u8]) -> Result<RasAnswer, Missing> {
    let Some(start) = memchr::memchr(b'{', text) else {
        return unsupported("NCCL 2.28.7 or later is needed, which torch has from 2.11 on");
    };
    RasAnswer::read(&text[start..]).map_err(|error| {
        Missing::new(Reason::Unknown, format!("the answer of NCCL cannot be read: {error}"))
    })
}

fn unsupported<T>(why: &str) -> Result<T, Missing> {
    Err(Missing::new(Reason::Unsupported, why))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::net::TcpListener;

    use super::*;

    /// Answers each of these texts once, after the four lines of the question.
    fn server(answers: Vec<String>) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        std::thread::spawn(move || {
            for answer in answers {
                let (mut stream, _) = listener.accept().expect("a client");
                let lines =
                    BufReader::new(&stream).lines().take(4).map(|line| line.expect("a line"));
                assert_eq!(lines.last().as_deref(), Some("STATUS"));
                stream.write_all(answer.as_bytes()).expect("an answer");
            }
        });
        address
    }

    fn answer_of(pid: u32) -> String {
        format!(
            "SERVER PROTOCOL 2\nOK\nOK\n{{\"nccl_version\": \"2.28.9\", \"communicators\": [{{\"hash\": \"0x1\", \
             \"size\": 2, \"ranks\": [{{\"rank\": 0, \"host\": \"10.0.0.1\", \"pid\": {pid}}}]}}]}}\n"
        )
    }

    fn job(answers: Vec<String>) -> Job {
        Job { address: server(answers), pid: 418 }
    }

    #[test]
    fn asks_until_the_job_of_the_process_answers() {
        let found = job([1, 2, 418].map(answer_of).to_vec()).answer();
        assert!(found.is_ok_and(|answer| answer.has_process(418)));
        let why = job([1; 5].map(answer_of).to_vec()).answer().expect_err("another job");
        assert!(why.to_string().contains("another job answers"), "{why}");
    }

    #[test]
    fn an_older_nccl_is_recognized_by_its_answer() {
        let old =
            "SERVER PROTOCOL 2\nOK\nERROR: Unknown command SET FORMAT json\nNCCL version 2.26.2\n";
        let why = job(vec![old.to_owned()]).answer().expect_err("no JSON");
        assert!(why.to_string().contains("2.28.7"), "{why}");
        let why =
            job(vec!["OK\n{\"communicators\": 3}".to_owned()]).answer().expect_err("no answer");
        assert!(why.to_string().contains("cannot be read"), "{why}");
    }

    #[test]
    fn only_the_loopback_interface_is_asked() {
        let port = |text| local_address(text).map(|address| address.to_string());
        assert_eq!(port("localhost:12345").as_deref(), Some("127.0.0.1:12345"));
        assert_eq!(port(":12345").as_deref(), Some("127.0.0.1:12345"));
        assert_eq!(port("[::1]:12345").as_deref(), Some("[::1]:12345"));
        for text in ["10.0.0.1:80", "example.org:80", "localhost", "localhost:99999"] {
            assert_eq!(port(text), None);
        }
    }

    #[test]
    fn a_process_of_this_host_is_asked_at_the_default_port() {
        let own = gputop_peek::process::stat::start_time("/proc".as_ref(), pid()).expect("own");
        let job = Job::of("/proc".as_ref(), ProcessKey { pid: pid(), start: own }).expect("a job");
        assert_eq!((job.address.port(), job.pid), (DEFAULT_PORT, pid().0));
    }

    fn pid() -> gputop_model::Pid {
        gputop_model::Pid(std::process::id())
    }
}
