//! HTTP/1 as a plain origin reads it: enough to say which requests arrived, never used by the gateway itself.

/// A request that arrived in full, head and body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The method as sent.
    pub method: String,
    /// The request target as sent.
    pub target: String,
    /// The header fields in order, names as sent.
    pub headers: Vec<(String, String)>,
    /// The body without its framing.
    pub body: Vec<u8>,
    /// Fields that followed a chunked body.
    pub trailers: Vec<(String, String)>,
}

impl Request {
    /// Every value of the field `name`, in order.
    pub fn headers_named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.headers
            .iter()
            .filter(move |(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    /// The first value of the field `name`.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// Takes the first whole request off `bytes`: the request and the length it had. `None` while something is missing.
    ///
    /// It is as forgiving as the laxest origin (bare LF, odd chunk lines), so that a request that *some* origin would see
    /// is seen.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<(Request, usize)> {
        let mut at = Cursor { bytes, at: 0 };
        let mut start = at.line()?;
        while start.is_empty() {
            start = at.line()?;
        }
        let mut words = start.split(' ');
        let method = words.next().unwrap_or_default().to_owned();
        let target = words.next().unwrap_or_default().to_owned();
        let headers = at.fields()?;
        let mut request = Request { method, target, headers, body: Vec::new(), trailers: Vec::new() };
        let chunked = request
            .headers_named("transfer-encoding")
            .any(|coding| coding.to_ascii_lowercase().contains("chunked"));
        if chunked {
            loop {
                let line = at.line()?;
                let digits = line.split([';', ' ']).next().unwrap_or_default();
                let Ok(size) = usize::from_str_radix(digits, 16) else { return None };
                if size == 0 {
                    break;
                }
                request.body.extend_from_slice(at.take(size)?);
                at.line()?;
            }
            request.trailers = at.fields()?;
        } else if let Some(length) = request.header("content-length") {
            request.body = at.take(length.trim().parse().ok()?)?.to_vec();
        }
        Some((request, at.at))
    }

    /// Every whole request in `bytes`, one behind the other.
    #[must_use]
    pub fn read_all(mut bytes: &[u8]) -> Vec<Request> {
        let mut requests = Vec::new();
        while let Some((request, length)) = Request::read(bytes) {
            requests.push(request);
            bytes = bytes.get(length..).unwrap_or_default();
        }
        requests
    }
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn line(&mut self) -> Option<String> {
        let rest = self.bytes.get(self.at..)?;
        let end = rest.iter().position(|&byte| byte == b'\n')?;
        self.at += end + 1;
        let line = rest.get(..end)?;
        Some(String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line)).into_owned())
    }

    fn fields(&mut self) -> Option<Vec<(String, String)>> {
        let mut fields = Vec::new();
        loop {
            let line = self.line()?;
            if line.is_empty() {
                return Some(fields);
            }
            let (name, value) = line.split_once(':').unwrap_or((&line, ""));
            fields.push((name.trim().to_owned(), value.trim().to_owned()));
        }
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let taken = self.bytes.get(self.at..self.at.checked_add(length)?)?;
        self.at += length;
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNKED: &[u8] = b"POST /u HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: Chunked\r\n\r\n5;a=b\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n";

    #[test]
    fn a_chunked_request_is_whole_only_with_its_last_byte() {
        for end in 0..CHUNKED.len() {
            assert_eq!(Request::read(&CHUNKED[..end]), None, "{end}");
        }
        let (request, length) = Request::read(CHUNKED).unwrap();
        assert_eq!((request.body.as_slice(), length), (&b"hello"[..], CHUNKED.len()));
        assert_eq!(request.trailers, [("X-Sum".to_owned(), "1".to_owned())]);
    }

    #[test]
    fn requests_behind_one_another_are_told_apart() {
        let two = [CHUNKED, b"GET / HTTP/1.1\nHost: b.example\n\nGET"].concat();
        let requests = Request::read_all(&two);
        assert_eq!(
            requests.iter().map(|r| r.header("host").unwrap()).collect::<Vec<_>>(),
            ["a.example", "b.example"]
        );
    }
}
