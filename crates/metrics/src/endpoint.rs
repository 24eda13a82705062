//! `GET /metrics`, in a thread of its own.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot};

use crate::samples::Samples;

const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// At a time; others wait to be accepted.
const CONNECTIONS_MAX: usize = 16;
/// For a request to come, and for one to be answered.
const PATIENCE: Duration = Duration::from_secs(10);
/// After the system has refused a connection, as when there are too many open files.
const PAUSE: Duration = Duration::from_millis(100);

/// Who is asked for what there is to tell.
type Source = Arc<dyn Fn(&mut Samples) + Send + Sync>;

/// An endpoint. Dropping it ends it.
#[derive(Debug)]
pub struct Endpoint {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Endpoint {
    /// Answers at the address from now on; `source` is asked each time, by the endpoint's thread. Whoever reaches the address can read it.
    ///
    /// # Errors
    /// If the address cannot be listened at, or the system refuses a thread.
    pub fn start(
        address: SocketAddr,
        source: impl Fn(&mut Samples) + Send + Sync + 'static,
    ) -> anyhow::Result<Endpoint> {
        let shown = || format!("metrics: {address} cannot be listened at");
        let listener = std::net::TcpListener::bind(address).with_context(shown)?;
        listener.set_nonblocking(true).with_context(shown)?;
        let address = listener.local_addr().with_context(shown)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no event loop")?;
        let (stop, stopped) = oneshot::channel();
        let source: Source = Arc::new(source);
        let work = move || {
            runtime.block_on(async {
                match TcpListener::from_std(listener) {
                    Ok(listener) => {
                        tokio::select! {
                            () = accept(&listener, &source) => {}
                            _ = stopped => {}
                        }
                    }
                    Err(error) => tracing::warn!("there are no metrics at {address}: {error}"),
                }
            });
        };
        let thread = std::thread::Builder::new().name("sluice-metrics".into()).spawn(work);
        Ok(Endpoint { address, stop: Some(stop), thread: Some(thread.context("no thread for metrics")?) })
    }

    /// Where it is.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // That is the sign.
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It cannot have panicked without having said so.
            let _ = thread.join();
        }
    }
}

async fn accept(listener: &TcpListener, source: &Source) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        // It is never closed.
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let source = source.clone();
                tokio::spawn(async move {
                    let _ = tokio::time::timeout(PATIENCE, talk(stream, source)).await;
                    drop(permit);
                });
            }
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

async fn talk(stream: TcpStream, source: Source) {
    let service = service_fn(move |request| {
        let answer = answer(&request, &source);
        async { Ok::<_, Infallible>(answer) }
    });
    // Whoever breaks off has his reasons.
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

fn answer(request: &Request<Incoming>, source: &Source) -> Response<Full<Bytes>> {
    let plain = |status: StatusCode, text: &'static str| {
        let mut response = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
        *response.status_mut() = status;
        response
    };
    if request.uri().path() != "/metrics" {
        return plain(StatusCode::NOT_FOUND, "there is /metrics\n");
    }
    if request.method() != Method::GET && request.method() != Method::HEAD {
        return plain(StatusCode::METHOD_NOT_ALLOWED, "GET it\n");
    }
    let mut samples = Samples::default();
    source(&mut samples);
    match samples.text() {
        Ok(text) => {
            let mut response = Response::new(Full::new(text.into()));
            response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(OPENMETRICS));
            response
        }
        Err(_) => plain(StatusCode::INTERNAL_SERVER_ERROR, "no text could be made\n"),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use super::*;

    #[test]
    fn it_answers_who_asks_for_metrics_and_nobody_else() {
        let source = |samples: &mut Samples| samples.set("sluice_queued", &[], 5.0);
        let endpoint = Endpoint::start(([127, 0, 0, 1], 0).into(), source).unwrap();
        let address = endpoint.address();
        let ask = |line: &str| {
            let mut stream = std::net::TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            write!(stream, "{line} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            text
        };
        let text = ask("GET /metrics");
        assert!(text.starts_with("HTTP/1.1 200") && text.contains("sluice_queued 5.0\n"), "{text}");
        assert!(ask("GET /").starts_with("HTTP/1.1 404"));
        assert!(ask("POST /metrics").starts_with("HTTP/1.1 405"));
        assert!(Endpoint::start(address, source).is_err(), "somebody listens there");
        drop(endpoint);
        Endpoint::start(address, source).unwrap();
    }
}
