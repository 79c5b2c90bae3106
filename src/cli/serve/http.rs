//! The HTTP server: one request per connection, with limits on connections, request size and time.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use color_eyre::Result;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::page::Page;
use crate::export::metrics::Format;

/// Maximum number of open connections. Further connections wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 128;
/// Maximum size of a request's header. The body is not read.
const MAX_HEADER_BYTES: usize = 16 << 10;
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum duration of an HTTP connection, even if the client reads slowly.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// Delay after a failed `accept`, for example because no file descriptors are free.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Serves the metrics page until an error occurs. Without a listener, never returns.
pub async fn serve(listener: Option<TcpListener>, page: Arc<Page>) -> Result<()> {
    let Some(listener) = listener else { return std::future::pending().await };
    let slots = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let slot = Arc::clone(&slots).acquire_owned().await?;
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(RETRY_INTERVAL).await;
            continue;
        };
        let page = Arc::clone(&page);
        tokio::spawn(async move {
            let _ = tokio::time::timeout(CONNECTION_TIMEOUT, answer(stream, page)).await;
            drop(slot);
        });
    }
}

/// Answers one HTTP request. Ignores connection errors, which affect only the client.
async fn answer(stream: TcpStream, page: Arc<Page>) {
    let service = service_fn(|request| {
        let response = respond(&request, &page);
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

fn respond(request: &Request<Incoming>, page: &Page) -> Response<Full<Bytes>> {
    let plain = |status: StatusCode, text: &'static str| {
        let mut response = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
        *response.status_mut() = status;
        response
    };
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
