//! The HTTP client below the stores of `object_store`, without TLS.

use async_trait::async_trait;
use hyper::body::Incoming;
use hyper_util::client::legacy::connect::HttpConnector as TcpConnector;
use hyper_util::client::legacy::{Client, Error};
use hyper_util::rt::TokioExecutor;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody,
    HttpResponse, HttpResponseBody, HttpService,
};
use std::error::Error as StdError;

/// Connects a store by plain HTTP/1.1, with a pool of connections.
#[derive(Clone, Copy, Debug, Default)]
pub struct PlainHttp;

impl HttpConnector for PlainHttp {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = Client::builder(TokioExecutor::new()).build_http();
        Ok(HttpClient::new(PlainHttpClient(client)))
    }
}

/// A pool of connections.
#[derive(Debug)]
struct PlainHttpClient(Client<TcpConnector, HttpRequestBody>);

#[async_trait]
impl HttpService for PlainHttpClient {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let response = self.0.request(request).await.map_err(request_error)?;
        Ok(response.map(|body| HttpResponseBody::new(Body(body))))
    }
}

/// A body with the errors of `object_store`.
struct Body(Incoming);

impl hyper::body::Body for Body {
    type Data = bytes::Bytes;
    type Error = HttpError;

    /// Returns the next part of the body. A body that breaks off counts as interrupted.
    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<hyper::body::Frame<Self::Data>, HttpError>>> {
        let frame = std::pin::Pin::new(&mut self.0).poll_frame(context);
        frame.map_err(|error| HttpError::new(HttpErrorKind::Interrupted, error))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        self.0.size_hint()
    }
}

/// The error of a request without an answer. A connection that ends before the answer, or has an
/// I/O error, counts as interrupted, so the store repeats the request. A connection that cannot be
/// opened has a kind of its own.
fn request_error(error: Error) -> HttpError {
    let is_connect = error.is_connect();
    let mut sources = std::iter::successors(error.source(), |&source| source.source());
    let is_end = sources.any(|source| {
        let of_hyper = source.downcast_ref::<hyper::Error>();
        of_hyper.is_some_and(|error| error.is_incomplete_message() || error.is_canceled())
            || source.downcast_ref::<std::io::Error>().is_some()
    });
    let kind = match (is_connect, is_end) {
        (true, _) => HttpErrorKind::Connect,
        (false, true) => HttpErrorKind::Interrupted,
        (false, false) => HttpErrorKind::Unknown,
    };
    HttpError::new(kind, error)
}
