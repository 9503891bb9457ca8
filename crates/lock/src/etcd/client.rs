//! etcd's own gateway: its version 3 interface as JSON over HTTP, blocking.
//!
//! A request that has no answer is sent again, to whichever member answers, for [`PATIENCE`]. All
//! that is sent may be: a transaction compares with what its first copy would have replaced.

use std::io::{BufRead, BufReader, Read};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use ureq::Agent;

use super::{EtcdAddress, EtcdError};

/// How long one operation waits for an answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// How long one member may take.
const ANSWER: Duration = Duration::from_secs(3);
const CONNECT: Duration = Duration::from_secs(1);
const PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(200));
/// Bytes of an answer: far more than the largest range asked for.
const ANSWER_MAX: u64 = 16 << 20;

/// Keys in one page.
const PAGE: usize = 500;

/// Codes of gRPC that say that the same request may succeed later: cancelled, deadline exceeded,
/// aborted, unavailable.
const PASSING: [u64; 4] = [1, 4, 10, 14];

/// A connection to the members of one etcd cluster.
pub(super) struct Client {
    urls: Vec<String>,
    agent: Agent,
    /// Who answered last, or is to be asked next.
    good: AtomicUsize,
    /// The highest revision seen: etcd's history never gets shorter.
    revision: AtomicU64,
}

/// What a condition of a transaction is about.
pub(super) enum Compare<'a> {
    Equals(&'a str, &'a [u8]),
    Absent(&'a str),
}

/// What a transaction does.
pub(super) enum Act<'a> {
    Put(&'a str, &'a [u8]),
    PutLeased(&'a str, &'a [u8], u64),
    Get(&'a str),
    /// All keys that begin so.
    GetAll(&'a str),
    /// Whether there is any: at most one key, without its value.
    GetAny(&'a str),
    /// The next of those that begin so, from a key on.
    GetPage(&'a str, &'a str),
    DeleteAll(&'a str),
}

/// A key and its value.
pub(super) type Pair = (String, Vec<u8>);

/// What a transaction did.
pub(super) struct Done {
    pub succeeded: bool,
    /// What each act found.
    pub found: Vec<Vec<Pair>>,
    /// It was sent more than once: an earlier copy may have done it.
    pub resent: bool,
}

/// gRPC's code for a database that has reached its bound.
const EXHAUSTED: u64 = 8;

enum Trouble {
    Passing(String),
    Final(EtcdError),
}

impl Client {
    pub fn new(address: &EtcdAddress) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .proxy(None)
            .timeout_connect(Some(CONNECT))
            .timeout_per_call(Some(ANSWER))
            .max_idle_connections_per_host(16)
            .max_idle_connections(64);
        Self {
            urls: address.hosts().iter().map(|h| format!("http://{h}")).collect(),
            agent: config.build().new_agent(),
            good: AtomicUsize::new(0),
            revision: AtomicU64::new(0),
        }
    }

    /// The members, for people.
    pub fn members(&self) -> String {
        self.urls.join(", ")
    }

    pub fn txn(
        &self,
        compare: &[Compare<'_>],
        success: &[Act<'_>],
        failure: &[Act<'_>],
    ) -> Result<Done, EtcdError> {
        let all = |acts: &[Act<'_>]| acts.iter().map(Act::json).collect::<Vec<_>>();
        let compare: Vec<Value> = compare.iter().map(Compare::json).collect();
        let body = json!({"compare": compare, "success": all(success), "failure": all(failure)});
        let before = self.revision.load(Ordering::Acquire);
        let (answer, resent) = self.call("/v3/kv/txn", &body)?;
        let revision = number(&answer["header"]["revision"]);
        let revision = revision.ok_or_else(|| self.malformed("a revision"))?;
        // Transactions see all that was done before them, whoever answers.
        if revision < before {
            let members = self.members();
            return Err(EtcdError::WentBack { members, from: before, to: revision });
        }
        self.revision.fetch_max(revision, Ordering::AcqRel);
        let succeeded = answer["succeeded"].as_bool().unwrap_or(false);
        let responses = answer["responses"].as_array().map_or(&[][..], Vec::as_slice);
        let found = responses.iter().map(found).collect::<Option<_>>();
        let found: Vec<Vec<Pair>> = found.ok_or_else(|| self.malformed("keys and values"))?;
        let acts = if succeeded { success } else { failure };
        if found.len() != acts.len() {
            return Err(self.malformed("one response for each request"));
        }
        Ok(Done { succeeded, found, resent })
    }

    /// A new lease, and its identity.
    pub fn grant(&self, ttl: Duration) -> Result<u64, EtcdError> {
        let body = json!({"TTL": ttl.as_secs().to_string(), "ID": "0"});
        let (answer, _) = self.call("/v3/lease/grant", &body)?;
        number(&answer["ID"]).filter(|id| *id != 0).ok_or_else(|| self.malformed("a lease"))
    }

    /// Whether the lease is still there, and lasts for its whole time again.
    pub fn keep_alive(&self, lease: u64) -> Result<bool, EtcdError> {
        let (answer, _) = self.call("/v3/lease/keepalive", &json!({"ID": lease.to_string()}))?;
        // One that has run out is answered too, with no time left.
        Ok(number(&answer["result"]["TTL"]).unwrap_or(0) > 0)
    }

    /// Ends a lease, once, if anybody answers.
    pub fn revoke(&self, lease: u64) {
        let body = json!({"ID": lease.to_string()}).to_string();
        let good = self.good.load(Ordering::Relaxed);
        if let Some(url) = self.urls.get(good % self.urls.len().max(1)) {
            let _ = self.once(url, "/v3/lease/revoke", &body);
        }
    }

    fn malformed(&self, what: &'static str) -> EtcdError {
        EtcdError::Malformed { members: self.members(), what }
    }

    /// Asks one member after the other until somebody answers. Whether it was asked more than once.
    fn call(&self, path: &str, body: &Value) -> Result<(Value, bool), EtcdError> {
        let body = body.to_string();
        let until = Instant::now() + PATIENCE;
        let mut pause = PAUSES.0;
        let mut tries = 0;
        loop {
            let n = self.good.load(Ordering::Relaxed) % self.urls.len().max(1);
            let asked = self.urls.get(n).map(|url| self.once(url, path, &body));
            let why = match asked {
                Some(Ok(answer)) => return Ok((answer, tries > 0)),
                Some(Err(Trouble::Final(e))) => return Err(e),
                Some(Err(Trouble::Passing(why))) => why,
                None => String::new(),
            };
            if Instant::now() >= until {
                return Err(EtcdError::Unreachable { members: self.members(), why });
            }
            // Whoever asks next does not begin with this one either.
            let next = (n + 1) % self.urls.len().max(1);
            let order = Ordering::Relaxed;
            let _ = self.good.compare_exchange(n, next, order, order);
            tries += 1;
            if tries % self.urls.len().max(1) == 0 {
                std::thread::sleep(pause);
                pause = (pause * 2).min(PAUSES.1);
            }
        }
    }

    fn once(&self, url: &str, path: &str, body: &str) -> Result<Value, Trouble> {
        let passing = |e: ureq::Error| Trouble::Passing(format!("{url}: {e}"));
        let sent = self.agent.post(format!("{url}{path}"));
        let sent = sent.header("Content-Type", "application/json").send(body);
        let mut response = sent.map_err(passing)?;
        let bytes = response.body_mut().with_config().limit(ANSWER_MAX).read_to_vec();
        let bytes = bytes.map_err(passing)?;
        let status = response.status().as_u16();
        // Streams answer in lines, of which one was asked for.
        let line = bytes.split(|b| *b == b'\n').next().unwrap_or_default();
        let answer: Result<Value, _> = serde_json::from_slice(line);
        let Ok(answer) = answer else {
            // Of something between: a proxy, a gateway that has no member yet.
            return Err(Trouble::Passing(format!("{url}: HTTP status {status}")));
        };
        if status != 200 {
            let code = number(&answer["code"]).unwrap_or(14);
            let said = answer["error"].as_str().or(answer["message"].as_str());
            let why = format!("{url}: {}", said.unwrap_or("an error without a word"));
            if PASSING.contains(&code) {
                return Err(Trouble::Passing(why));
            }
            let why = why.into();
            return Err(Trouble::Final(if code == EXHAUSTED {
                EtcdError::Full { why }
            } else {
                EtcdError::Refused { why }
            }));
        }
        Ok(answer)
    }

    /// Watches `key` from revision `from` on (0: from now): `each` gets its values as they change,
    /// and says whether to go on. Returns the revision to go on from when the stream ended, whatever
    /// ended it; at the latest after [`Self::WATCH`] without news.
    pub fn watch(&self, key: &str, from: u64, each: &mut dyn FnMut(&[u8]) -> bool) -> u64 {
        let good = self.good.load(Ordering::Relaxed);
        let Some(url) = self.urls.get(good % self.urls.len().max(1)) else { return from };
        let create = json!({"key": STANDARD.encode(key), "start_revision": from.to_string()});
        let body = json!({"create_request": create}).to_string();
        let request = self.agent.post(format!("{url}/v3/watch"));
        let config = request.config().timeout_per_call(None).timeout_per_read(Some(Self::WATCH));
        let sent = config.build().header("Content-Type", "application/json").send(body);
        let Ok(response) = sent else {
            // Another member may be better; the next call says whether.
            self.good.store(good.wrapping_add(1) % self.urls.len().max(1), Ordering::Relaxed);
            return from;
        };
        let mut from = from;
        let mut lines = BufReader::new(response.into_body().into_reader());
        while let Some(line) = next_line(&mut lines) {
            let Ok(answer) = serde_json::from_slice::<Value>(&line) else { return from };
            let result = &answer["result"];
            if result["canceled"].as_bool().unwrap_or(false) {
                // What was missed is compacted: hints may be lost.
                return 0;
            }
            let events = result["events"].as_array().map_or(&[][..], Vec::as_slice);
            // When the watch is made there may be older events to come.
            if let Some(revision) = number(&result["header"]["revision"])
                && (from == 0 || !events.is_empty())
            {
                from = from.max(revision + 1);
            }
            for event in events {
                let value = event["kv"]["value"].as_str().and_then(|v| STANDARD.decode(v).ok());
                if let Some(value) = value
                    && !each(&value)
                {
                    return from;
                }
            }
            if !each(&[]) {
                return from;
            }
        }
        from
    }
    /// A watch without news is begun again.
    const WATCH: Duration = Duration::from_secs(5);
}

impl Compare<'_> {
    fn json(&self) -> Value {
        match self {
            Self::Equals(key, value) => json!({
                "key": STANDARD.encode(key), "target": "VALUE", "result": "EQUAL",
                "value": STANDARD.encode(value),
            }),
            Self::Absent(key) => json!({
                "key": STANDARD.encode(key), "target": "CREATE", "result": "EQUAL",
                "create_revision": "0",
            }),
        }
    }
}

impl Act<'_> {
    fn json(&self) -> Value {
        let put = |key, value, lease: u64| {
            let (key, value) = (STANDARD.encode::<&str>(key), STANDARD.encode::<&[u8]>(value));
            json!({"requestPut": {"key": key, "value": value, "lease": lease.to_string()}})
        };
        match self {
            Self::Put(key, value) => put(key, value, 0),
            Self::PutLeased(key, value, lease) => put(key, value, *lease),
            Self::Get(key) => json!({"requestRange": {"key": STANDARD.encode(key)}}),
            Self::GetAll(prefix) => json!({"requestRange": span(prefix)}),
            Self::GetAny(prefix) => {
                let mut range = span(prefix);
                (range["limit"], range["keys_only"]) = ("1".into(), true.into());
                json!({"requestRange": range})
            }
            Self::GetPage(prefix, from) => {
                let mut range = span(prefix);
                (range["limit"], range["key"]) =
                    (PAGE.to_string().into(), STANDARD.encode(from).into());
                json!({"requestRange": range})
            }
            Self::DeleteAll(prefix) => json!({"requestDeleteRange": span(prefix)}),
        }
    }
}

/// All keys that begin with `prefix`, which ends in a slash.
fn span(prefix: &str) -> Value {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    json!({"key": STANDARD.encode(prefix), "range_end": STANDARD.encode(end)})
}

/// One that is longer than any answer ends the stream, as an error does.
fn next_line(lines: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut line = Vec::new();
    lines.take(ANSWER_MAX).read_until(b'\n', &mut line).ok()?;
    let whole = line.last() == Some(&b'\n');
    let fits = whole || u64::try_from(line.len()).is_ok_and(|len| len < ANSWER_MAX);
    (fits && !line.is_empty()).then_some(line)
}

/// Numbers of 64 bits come as text.
fn number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}

/// Keys and values in one response of a transaction; none in one that is not of a range.
fn found(response: &Value) -> Option<Vec<Pair>> {
    let range = response.get("response_range").or_else(|| response.get("responseRange"));
    let pairs = range.and_then(|r| r["kvs"].as_array()).map_or(&[][..], Vec::as_slice);
    let text = |v: &Value| match v {
        Value::Null => Some(Vec::new()),
        v => STANDARD.decode(v.as_str()?).ok(),
    };
    let pair = |kv: &Value| Some((String::from_utf8(text(&kv["key"])?).ok()?, text(&kv["value"])?));
    pairs.iter().map(pair).collect()
}

#[cfg(test)]
pub(super) use tests::Script;

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{SocketAddr, TcpListener, TcpStream};
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    /// Path and body of each request.
    type Asked = Arc<Mutex<Vec<(String, String)>>>;

    /// A member that answers as it is told: status and body by a path and how often it was asked
    /// for before.
    pub struct Script {
        pub at: SocketAddr,
        asked: Asked,
    }

    impl Script {
        pub fn run(answer: impl Fn(&str, usize) -> (u16, String) + Send + 'static) -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let at = listener.local_addr().unwrap();
            let asked = Asked::default();
            let noted = asked.clone();
            // It ends with the tests.
            std::thread::spawn(move || {
                for stream in listener.incoming() {
                    let _ = Self::one(&mut stream.unwrap(), &noted, &answer);
                }
            });
            Self { at, asked }
        }
        fn one(
            stream: &mut TcpStream,
            asked: &Asked,
            answer: &impl Fn(&str, usize) -> (u16, String),
        ) -> std::io::Result<()> {
            let mut reader = BufReader::new(stream.try_clone()?);
            let (mut lines, mut len) = (Vec::new(), 0);
            loop {
                let mut line = String::new();
                reader.read_line(&mut line)?;
                let line = line.trim().to_ascii_lowercase();
                if let Some(bytes) = line.strip_prefix("content-length:") {
                    len = bytes.trim().parse().unwrap();
                }
                if line.is_empty() {
                    break;
                }
                lines.push(line);
            }
            let mut body = vec![0; len];
            reader.read_exact(&mut body)?;
            let path = lines[0].split(' ').nth(1).unwrap().to_owned();
            let times = asked.lock().iter().filter(|a| a.0 == path).count();
            asked.lock().push((path.clone(), String::from_utf8(body).unwrap()));
            let (status, text) = answer(&path, times);
            write!(
                stream,
                "HTTP/1.1 {status} x\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{text}",
                text.len()
            )
        }
        /// What was asked of a path.
        pub fn bodies(&self, path: &str) -> Vec<String> {
            self.asked.lock().iter().filter(|a| a.0 == path).map(|a| a.1.clone()).collect()
        }
    }

    #[test]
    fn a_line_without_end_is_none() {
        let bound = usize::try_from(ANSWER_MAX).unwrap();
        let mut long = BufReader::new(std::io::repeat(b'x'));
        assert_eq!(next_line(&mut long), None);
        let mut lines = std::io::Cursor::new(b"a\n\nb".to_vec());
        let next = [(); 4].map(|()| next_line(&mut lines));
        assert_eq!(next, [Some(b"a\n".to_vec()), Some(b"\n".to_vec()), Some(b"b".to_vec()), None]);
        let mut most = vec![b'x'; bound];
        most[bound - 1] = b'\n';
        assert_eq!(next_line(&mut &most[..]).map(|l| l.len()), Some(bound));
    }

    #[test]
    fn responses_of_both_spellings_are_read() {
        for name in ["response_range", "responseRange"] {
            let response =
                json!({name: {"kvs": [{"key": "YQ==", "value": "Mg=="}, {"key": "Yg=="}]}});
            let expected = vec![("a".to_owned(), b"2".to_vec()), ("b".to_owned(), Vec::new())];
            assert_eq!(found(&response), Some(expected));
        }
        assert_eq!(found(&json!({"response_put": {}})), Some(Vec::new()));
        assert_eq!(found(&json!({"response_range": {"kvs": [{"key": "!"}]}})), None);
    }

    #[test]
    fn a_prefix_spans_what_begins_with_it() {
        let span = span("/a/");
        assert_eq!(STANDARD.decode(span["range_end"].as_str().unwrap()).unwrap(), b"/a0");
    }

    #[test]
    fn who_does_not_answer_is_named() {
        let address: EtcdAddress = "etcd://127.0.0.1:1/p".parse().unwrap();
        let error = Client::new(&address).grant(Duration::from_secs(5)).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("http://127.0.0.1:1"), "{text}");
    }
}
