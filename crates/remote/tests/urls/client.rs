//! A connection for the clients of `object_store`: plain HTTP/1.1, one request each.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use async_trait::async_trait;
use bytes::Bytes;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
};

/// Headers of answers that the clients read.
const HEADERS: [&str; 7] = [
    "content-encoding",
    "content-length",
    "content-range",
    "content-type",
    "etag",
    "last-modified",
    "retry-after",
];

#[derive(Clone, Copy, Debug)]
pub struct Plain;

impl HttpConnector for Plain {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Plain))
    }
}

#[async_trait]
impl HttpService for Plain {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (parts, _) = request.into_parts();
        let host = parts.uri.authority().expect("an absolute URL").to_string();
        let target = parts.uri.path_and_query().expect("a path").to_string();
        let is_head = parts.method.as_str() == "HEAD";
        let mut text = format!("{} {target} HTTP/1.1\r\nHost: {host}\r\n", parts.method);
        for (name, value) in &parts.headers {
            text += &format!("{name}: {}\r\n", value.to_str().expect("a text"));
        }
        let asked = tokio::task::spawn_blocking(move || ask(&host, &(text + "\r\n"), is_head));
        let (status, headers, body) = asked
            .await
            .expect("the thread does not panic")
            .map_err(|error| HttpError::new(HttpErrorKind::Interrupted, error))?;
        let mut response = HttpResponse::new(Bytes::from(body).into());
        *response.status_mut() = status.try_into().expect("a status");
        for name in HEADERS {
            if let Some((_, value)) = headers.iter().find(|(other, _)| other == name) {
                response.headers_mut().insert(name, value.parse().expect("a text"));
            }
        }
        Ok(response)
    }
}

type Answer = (u16, Vec<(String, String)>, Vec<u8>);

/// Sends a request by a connection of its own, and reads the answer.
fn ask(host: &str, request: &str, is_head: bool) -> std::io::Result<Answer> {
    let mut stream = TcpStream::connect(host)?;
    stream.write_all(request.as_bytes())?;
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    let mut headers = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let declared = headers.iter().find(|(name, _)| name == "content-length");
    let length = declared.map_or(0, |(_, value)| value.parse().expect("a number"));
    let mut body = Vec::new();
    if !is_head {
        reader.take(length).read_to_end(&mut body)?;
        if (body.len() as u64) < length {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok((status, headers, body))
}
