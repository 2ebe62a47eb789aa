//! The API server: in-cluster configuration, and one request under one time limit. No policy.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{Method, Request, Response, Uri};
use futures_util::StreamExt as _;
use kube::{Client, Config};
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;
use tokio::sync::watch;
use tokio_rustls::rustls;

use crate::kubernetes::failure::Failure;
use crate::kubernetes::target::Code;

/// How long one request may take, from looking for a connection to the last byte of the answer.
pub(super) const LIMIT: Duration = Duration::from_secs(5);

/// Bytes of one answer or one line of a watch. An object has 1.5 MiB at most.
const BYTES_MOST: usize = 4 << 20;

/// Why the API server cannot be asked at all from here.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// This is no pod, or one without a service account's token.
    #[error(
        "--kube-*: cannot reach the Kubernetes API from here: {0} (in a pod, KUBERNETES_SERVICE_HOST is set, and \
         automountServiceAccountToken must not be false)"
    )]
    InCluster(#[source] kube::config::InClusterError),
    /// The authority, the token or the proxy cannot be used.
    #[error("--kube-*: cannot use the service account's files or --kube-proxy: {0}")]
    Client(#[source] Box<kube::Error>),
    /// The process may open no more files.
    #[error("--kube-*: the system refuses a timer: {0}")]
    Timer(#[source] std::io::Error),
}

/// The form of a request's body.
#[derive(Clone, Copy, Debug)]
pub(super) enum Content {
    /// A new object.
    Object,
    /// Fields to be set, null to remove them.
    Merge,
    /// The same, where lists are merged by their key.
    Strategic,
}

impl Content {
    const fn media_type(self) -> &'static str {
        match self {
            Self::Object => "application/json",
            Self::Merge => "application/merge-patch+json",
            Self::Strategic => "application/strategic-merge-patch+json",
        }
    }
}

/// The API server. It is asked with the token that the service account's file has now: kube reads it again every
/// minute, and we at once when the one we have is refused.
pub struct Api {
    config: Config,
    proxy: Option<String>,
    client: Mutex<Client>,
    renewals: watch::Sender<u64>,
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Api").field("url", &self.config.cluster_url).finish_non_exhaustive()
    }
}

impl Api {
    /// From what Kubernetes puts into every pod. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// When this is no pod, or its files cannot be read.
    pub fn connect(proxy: Option<&Uri>) -> Result<Self, ConnectError> {
        // With two providers in the tree rustls would panic at the first dial; an error says that one is installed.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut config = Config::incluster().map_err(ConnectError::InCluster)?;
        // What it would send again for minutes is no longer true by then.
        config.default_retry = false;
        config.connect_timeout = Some(LIMIT);
        config.write_timeout = Some(LIMIT);
        config.proxy_url = proxy.cloned();
        let client = Client::try_from(config.clone()).map_err(|why| ConnectError::Client(Box::new(why)))?;
        let (renewals, _) = watch::channel(0);
        Ok(Self { config, proxy: proxy.map(ToString::to_string), client: Mutex::new(client), renewals })
    }

    /// Reads an object; `None`: it is not there.
    pub(super) async fn find<T: DeserializeOwned>(&self, path: &str) -> Result<Option<T>, Failure> {
        match self.ask(Method::GET, path, None).await {
            Ok(object) => Ok(Some(object)),
            Err(Failure { code: Code::NotFound, .. }) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Changes an object, and gives what has become of it.
    pub(super) async fn patch<T: DeserializeOwned>(
        &self,
        path: &str,
        content: Content,
        patch: &impl Serialize,
    ) -> Result<T, Failure> {
        self.ask(Method::PATCH, path, Some((content, encode(patch)))).await
    }

    /// Makes an object, and gives it as it is.
    pub(super) async fn create<T: DeserializeOwned>(&self, path: &str, object: &impl Serialize) -> Result<T, Failure> {
        self.ask(Method::POST, path, Some((Content::Object, encode(object)))).await
    }

    /// Watches: each line of the answer is one event, until the server ends it.
    pub(super) async fn watch(&self, path: &str) -> Result<Lines, Failure> {
        let request = format!("watch {path}");
        let response = limited(&request, self.send(&request, Method::GET, path, None)).await?;
        Ok(Lines { stream: Body::new(response.into_body()).into_data_stream(), rest: Vec::new(), request })
    }

    /// Changes whenever connections are given up: whoever waits for an answer on one waits in vain.
    pub(super) fn renewals(&self) -> watch::Receiver<u64> {
        self.renewals.subscribe()
    }

    async fn ask<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<(Content, Vec<u8>)>,
    ) -> Result<T, Failure> {
        let request = format!("{} {path}", method.as_str().to_lowercase());
        // The server gives up when we do, so that nothing old is done late.
        let path = format!("{path}{}timeout={}s", if path.contains('?') { '&' } else { '?' }, LIMIT.as_secs());
        let generation = *self.renewals.borrow();
        let asked = async {
            let response = self.send(&request, method, &path, body).await?;
            let bytes = to_bytes(Body::new(response.into_body()), BYTES_MOST).await;
            let bytes = bytes.map_err(|why| Failure::of_connection(&request, self.proxy.as_deref(), &why))?;
            serde_json::from_slice(&bytes).map_err(|why| {
                Failure::new(Code::Other, format!("{request}: not the object that was asked for: {why}"))
            })
        };
        let answer = limited(&request, asked).await;
        if let Err(Failure { code: Code::Unauthorized | Code::Timeout, .. }) = &answer {
            self.renew(generation);
        }
        answer
    }

    async fn send(
        &self,
        request: &str,
        method: Method,
        path: &str,
        body: Option<(Content, Vec<u8>)>,
    ) -> Result<Response<kube::client::Body>, Failure> {
        let mut message = Request::builder().method(method).uri(path).header(ACCEPT, "application/json");
        let bytes = match body {
            Some((content, bytes)) => {
                message = message.header(CONTENT_TYPE, content.media_type());
                bytes
            }
            None => Vec::new(),
        };
        let message = message
            .body(kube::client::Body::from(bytes))
            .map_err(|why| Failure::new(Code::Other, format!("{request}: {why}")))?;
        let client = self.client.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let by = self.proxy.as_deref();
        let response = client.send(message).await.map_err(|why| Failure::of_connection(request, by, &why))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let (parts, body) = response.into_parts();
        // Only for the words in it: a body that does not come is an empty one.
        let body = to_bytes(Body::new(body), BYTES_MOST).await.unwrap_or_default();
        Err(Failure::of_answer(request, parts.status, &parts.headers, &body))
    }

    /// Gives up all connections, and reads token and authority anew, unless that has happened since `generation`.
    fn renew(&self, generation: u64) {
        if *self.renewals.borrow() != generation {
            return;
        }
        // Files that cannot be read just now leave us with what we have.
        if let Ok(client) = Client::try_from(self.config.clone()) {
            *self.client.lock().unwrap_or_else(PoisonError::into_inner) = client;
        }
        self.renewals.send_modify(|count| *count += 1);
    }
}

fn encode(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("objects with text keys are always JSON")
}

async fn limited<T>(request: &str, asked: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    match tokio::time::timeout(LIMIT, asked).await {
        Ok(answer) => answer,
        Err(_) => Err(Failure::timeout(request, LIMIT)),
    }
}

/// The lines of a watch.
pub(super) struct Lines {
    stream: axum::body::BodyDataStream,
    rest: Vec<u8>,
    request: String,
}

impl Lines {
    /// The next line; `None`: the server has ended the watch.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line = self.rest.drain(..=end).collect();
                return Ok(Some(line));
            }
            if self.rest.len() > BYTES_MOST {
                return Err(Failure::new(Code::Other, format!("{}: a line has no end", self.request)));
            }
            match self.stream.next().await {
                Some(Ok(bytes)) => self.rest.extend_from_slice(&bytes),
                Some(Err(why)) => return Err(Failure::of_connection(&self.request, None, &why)),
                None => return Ok(None),
            }
        }
    }
}
