//! The HTTP server: one request per connection, with limits on connections, request size and time.
//!
//! A website that makes its own name resolve to this host's address could read the metrics with the browser of a user
//! on this network (DNS rebinding). The browser still names the website in the `Host` header, so only requests for an
//! address or a name of this host are answered.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use color_eyre::Result;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HOST, HeaderValue};
use hyper::http::uri::Authority;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;

use super::page::Page;
use crate::export::metrics::Format;

/// Maximum number of open connections. A further connection replaces the oldest one that has not sent a request, or
/// waits if there is none.
const MAX_CONNECTIONS: usize = 128;
/// Maximum size of a request's header. The body is not read.
const MAX_HEADER_BYTES: usize = 16 << 10;
/// Time that a new connection has to send its request before it can be dropped in favour of another.
const MIN_IDLE: Duration = Duration::from_millis(50);
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum duration of an HTTP connection, even if the client reads slowly.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// Delay after a failed `accept`, for example because no file descriptors are free.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// A listener, and the names under which clients may request its metrics, besides addresses and `localhost`.
pub struct NamedListener {
    pub listener: TcpListener,
    pub names: Vec<String>,
}

/// Serves the metrics page until an error occurs. Without a listener, never returns.
pub async fn serve(listener: Option<NamedListener>, page: Arc<Page>) -> Result<()> {
    let Some(NamedListener { listener, names }) = listener else {
        return std::future::pending().await;
    };
    let names: Arc<[String]> = names.into();
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let idle = Arc::new(IdleConnections::default());
    for number in 0_u64.. {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(RETRY_INTERVAL).await;
            continue;
        };
        let slot = free_slot(&slots, &idle).await?;
        let (page, names) = (Arc::clone(&page), Arc::clone(&names));
        let of_connection = Idle { number, all: Arc::clone(&idle) };
        let task = tokio::spawn(async move {
            let answer = answer(stream, page, names, of_connection);
            let _ = tokio::time::timeout(CONNECTION_TIMEOUT, answer).await;
            drop(slot);
        });
        idle.list().insert(number, (Instant::now(), task.abort_handle()));
    }
    Ok(())
}

/// Waits for a free slot. If there is none, drops the oldest idle connection.
async fn free_slot(slots: &Arc<Semaphore>, idle: &IdleConnections) -> Result<OwnedSemaphorePermit> {
    loop {
        if slots.available_permits() == 0 {
            idle.drop_oldest();
        }
        let slot = Arc::clone(slots).acquire_owned();
        if let Ok(slot) = tokio::time::timeout(MIN_IDLE, slot).await {
            return Ok(slot?);
        }
    }
}

/// Connections that have not sent a request, by number, with the time since which they are open. A scrape must not wait
/// because of them.
#[derive(Default)]
struct IdleConnections(Mutex<BTreeMap<u64, (Instant, AbortHandle)>>);

impl IdleConnections {
    fn list(&self) -> MutexGuard<'_, BTreeMap<u64, (Instant, AbortHandle)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn drop_oldest(&self) {
        let mut list = self.list();
        let oldest = list.first_entry();
        if let Some(oldest) = oldest.filter(|oldest| oldest.get().0.elapsed() >= MIN_IDLE) {
            oldest.remove().1.abort();
        }
    }
}

/// Membership of a connection in the list. Removed when the connection sends a request or closes.
struct Idle {
    number: u64,
    all: Arc<IdleConnections>,
}

impl Idle {
    fn end(&self) {
        self.all.list().remove(&self.number);
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        self.end();
    }
}

/// Answers one HTTP request. Ignores connection errors, which affect only the client.
async fn answer(stream: TcpStream, page: Arc<Page>, names: Arc<[String]>, idle: Idle) {
    let service = service_fn(|request| {
        idle.end();
        let response = respond(&request, &page, &names);
        async { Ok::<_, Infallible>(response) }
    });
    let connection = http1::Builder::new()
        .keep_alive(false)
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(MAX_HEADER_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    let _ = connection.await;
}

fn respond(request: &Request<Incoming>, page: &Page, names: &[String]) -> Response<Full<Bytes>> {
    let plain = |status: StatusCode, text: &'static str| {
        let mut response = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
        *response.status_mut() = status;
        response
    };
    if !is_for_this_host(request, names) {
        return plain(
            StatusCode::MISDIRECTED_REQUEST,
            "this is not a name of this host; use its address, or pass the name to gputop with --listen NAME:PORT\n",
        );
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "use GET\n");
        let methods = HeaderValue::from_static("GET, HEAD");
        response.headers_mut().insert(ALLOW, methods);
        return response;
    }
    match request.uri().path() {
        "/metrics" => {
            let format = format(request);
            let mut response = Response::new(Full::new(page.text(format)));
            let content_type = HeaderValue::from_static(format.content_type());
            response.headers_mut().insert(CONTENT_TYPE, content_type);
            response
        }
        "/" => plain(StatusCode::OK, "gputop serves its metrics at /metrics\n"),
        _ => plain(StatusCode::NOT_FOUND, "not found; see /metrics\n"),
    }
}

/// Returns true if a request names this host by an address, as `localhost` or by one of `names`, or does not name it, as
/// HTTP/1.0 allows. Browsers always name a host, and never with a user.
fn is_for_this_host(request: &Request<Incoming>, names: &[String]) -> bool {
    let headers = request.headers().get_all(HOST).iter();
    let mut named = headers.map(|value| value.to_str().unwrap_or_default().parse().ok());
    let target = request.uri().authority();
    target.is_none_or(|target| is_own(target, names))
        && named.all(|host| host.is_some_and(|host: Authority| is_own(&host, names)))
}

fn is_own(host: &Authority, names: &[String]) -> bool {
    // `host()` omits the user, and any text between an address in brackets and the port.
    let rest = host.as_str().strip_prefix(host.host());
    let port = rest.map(|rest| rest.strip_prefix(':').unwrap_or(rest));
    if port.is_none_or(|port| port.bytes().any(|byte| !byte.is_ascii_digit())) {
        return false;
    }
    let name = without_dot(host.host());
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    address.parse::<IpAddr>().is_ok()
        || name.eq_ignore_ascii_case("localhost")
        || names.iter().any(|own| name.eq_ignore_ascii_case(without_dot(own)))
}

/// Returns a name without the dot that ends a complete domain name.
fn without_dot(name: &str) -> &str {
    name.strip_suffix('.').unwrap_or(name)
}

/// Returns the format that the client accepts. Prometheus requests OpenMetrics; other clients get the older format.
fn format(request: &Request<Incoming>) -> Format {
    let accepted = request.headers().get_all(ACCEPT).iter();
    let mut accepted = accepted.filter_map(|value| value.to_str().ok());
    if accepted.any(|value| value.contains("application/openmetrics-text")) {
        Format::OpenMetrics
    } else {
        Format::Text
    }
}
