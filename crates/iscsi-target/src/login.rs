//! The login phase: who is there, proof of it, and what both sides can do (RFC 7143, section 6.3).
//!
//! ```text
//! security (0) --AuthMethod--> None ------------------------> operational (1) --> full feature (3)
//!                    \--> CHAP_A, I, C --> CHAP_N, CHAP_R --/
//! ```

use std::time::{Duration, Instant};

use crate::chap::{self, Challenge, Chap};
use crate::negotiate::Params;
use crate::pdu::{FINAL, Header, Reader, Writer, op};
use crate::text::{self, Pairs, TEXT_MAX};
use crate::{Broken, Refused, nexus};

/// The request is continued.
const CONTINUED: u8 = 0x40;
const SECURITY: u8 = 0;
const OPERATIONAL: u8 = 1;
const FULL: u8 = 3;

/// From the first request to the end of a login.
const LOGIN_TIME: Duration = Duration::from_secs(15);
/// Most requests of one login.
const REQUESTS_MAX: usize = 64;

/// Who logged in, and what was agreed on.
#[derive(Debug, Clone)]
pub struct Login {
    /// The initiator's name.
    pub initiator: String,
    /// Its session identifier.
    pub isid: [u8; 6],
    /// A session that may only ask which targets there are.
    pub discovery: bool,
    /// What was agreed on.
    pub params: Params,
    /// The next command's number.
    pub cmd_sn: u32,
    /// The next response's number.
    pub stat_sn: u32,
}

/// The proof that is under way.
#[derive(Debug)]
enum Proof {
    /// No method yet.
    Open,
    /// CHAP was chosen; its algorithm comes.
    Chosen,
    /// The challenge was sent.
    Sent(Challenge),
    /// Nothing more to prove.
    Done,
}

/// A login under way.
pub struct Phase<'a> {
    /// The target's name.
    pub target: &'a str,
    /// What must be proven.
    pub chap: &'a Chap,
    /// Reads the connection.
    pub reader: &'a mut Reader,
    /// Writes it.
    pub writer: &'a mut Writer,
    /// Called at each request, with the initiator's name as far as it is known.
    pub on_request: &'a dyn Fn(&str),
}

struct State {
    login: Login,
    proof: Proof,
    named: bool,
    declared: bool,
    text: Vec<u8>,
}

impl Phase<'_> {
    /// Runs the phase to its end. `admit` is called when nothing more is to be said: it makes the
    /// session, and returns its handle.
    ///
    /// # Errors
    /// The connection's; [`Broken::Login`] after the initiator was told why.
    pub fn run(
        mut self,
        mut admit: impl FnMut(&Login) -> Result<u16, Refused>,
    ) -> Result<Login, Broken> {
        let mut state: Option<State> = None;
        for n in 0..REQUESTS_MAX {
            let request = self.reader.header()?;
            if request.opcode() != op::LOGIN {
                return Err(Broken::Protocol("not a login request"));
            }
            let data = self.reader.data(&request)?;
            let state = state.get_or_insert_with(|| State::new(&request));
            state.login.stat_sn = u32::try_from(n).unwrap_or(0);
            if n == 0 {
                self.reader.read_until(Some(Instant::now() + LOGIN_TIME))?;
            }
            let step = state.step(&request, &data, self.target, self.chap);
            (self.on_request)(&state.login.initiator);
            let last = matches!(&step, Ok((_, stage)) if *stage == Some(FULL));
            let answered = step.and_then(|(pairs, stage)| {
                let tsih = if last { admit(&state.login)? } else { 0 };
                Ok((pairs, stage, tsih))
            });
            match answered {
                Ok((pairs, stage, tsih)) => {
                    let flags = request.flags() & 0x0c | stage.map_or(0, |next| FINAL | next);
                    let mut h = state.response(&request, flags);
                    h.0[14..16].copy_from_slice(&tsih.to_be_bytes());
                    self.send(h, &text::encode(&pairs))?;
                }
                Err(why) => {
                    let (class, detail) = why.code();
                    let mut h = state.response(&request, 0);
                    h.0[36..38].copy_from_slice(&[class, detail]);
                    self.send(h, &[])?;
                    return Err(Broken::Login { why, initiator: state.login.initiator.clone() });
                }
            }
            if last {
                state.login.stat_sn += 1;
                return Ok(state.login.clone());
            }
        }
        Err(Broken::Protocol("a login without end"))
    }
    fn send(&mut self, header: Header, data: &[u8]) -> Result<(), Broken> {
        let out = [self.writer.ready(header, data)];
        Ok(self.writer.send(&out)?)
    }
}

impl State {
    fn new(first: &Header) -> Self {
        let mut isid = [0; 6];
        isid.copy_from_slice(&first.0[8..14]);
        let login = Login {
            initiator: String::new(),
            isid,
            discovery: false,
            params: Params::default(),
            cmd_sn: first.word(24),
            stat_sn: 0,
        };
        Self { login, proof: Proof::Open, named: false, declared: false, text: Vec::new() }
    }
    fn response(&self, request: &Header, flags: u8) -> Header {
        let mut h = Header::new(op::LOGIN_RESPONSE, flags)
            .with(16, request.tag())
            .with(24, self.login.stat_sn)
            .with(28, self.login.cmd_sn)
            .with(32, self.login.cmd_sn);
        h.0[8..14].copy_from_slice(&self.login.isid);
        h
    }
    /// One request: what to answer, and the stage to go to.
    fn step(
        &mut self,
        request: &Header,
        data: &[u8],
        target: &str,
        chap: &Chap,
    ) -> Result<(Pairs, Option<u8>), Refused> {
        if request.0[3] != 0 {
            return Err(Refused::Version);
        }
        if request.0[14..16] != [0, 0] {
            return Err(Refused::TooManyConnections);
        }
        self.text.extend_from_slice(data);
        if self.text.len() > TEXT_MAX {
            return Err(Refused::Initiator);
        }
        if request.flags() & CONTINUED != 0 {
            return Ok((Vec::new(), None));
        }
        let text = std::mem::take(&mut self.text);
        let pairs = text::parse(&text).map_err(|_| Refused::Initiator)?;
        if !self.named {
            self.names(&pairs, target)?;
        }
        let (stage, next) = (request.flags() >> 2 & 3, request.flags() & 3);
        let mut answers = Vec::new();
        let settled = match stage {
            SECURITY => self.prove(&pairs, chap, &mut answers)?,
            OPERATIONAL if self.proven(chap) => {
                self.agree(&pairs, &mut answers);
                true
            }
            OPERATIONAL => return Err(Refused::Authentication),
            _ => return Err(Refused::Initiator),
        };
        let wants = request.flags() & FINAL != 0 && settled;
        if wants && (next <= stage || next == 2 || next == FULL && !self.proven(chap)) {
            return Err(Refused::Initiator);
        }
        Ok((answers, wants.then_some(next)))
    }
    fn proven(&self, chap: &Chap) -> bool {
        chap.initiator.is_none() || matches!(self.proof, Proof::Done)
    }
    fn names(&mut self, pairs: &Pairs, target: &str) -> Result<(), Refused> {
        let find = |key: &str| pairs.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str());
        let name = find("InitiatorName").ok_or(Refused::MissingParameter)?;
        if !nexus::is_initiator_name(name) {
            return Err(Refused::Initiator);
        }
        name.clone_into(&mut self.login.initiator);
        self.login.discovery = find("SessionType") == Some("Discovery");
        if !self.login.discovery {
            let wanted = find("TargetName").ok_or(Refused::MissingParameter)?;
            if !wanted.eq_ignore_ascii_case(target) {
                return Err(Refused::NoSuchTarget);
            }
        }
        self.named = true;
        Ok(())
    }
    /// Operational keys.
    fn agree(&mut self, pairs: &Pairs, answers: &mut Pairs) {
        for (key, value) in pairs {
            if let Some(answer) = self.login.params.take(key, value) {
                answers.push((key.clone(), answer));
            }
        }
        if !self.declared {
            self.declared = true;
            answers.push(Params::declared());
            answers.push(("TargetPortalGroupTag".to_owned(), "1".to_owned()));
        }
    }
    /// Security keys; whether nothing more is to be proven.
    fn prove(&mut self, pairs: &Pairs, chap: &Chap, answers: &mut Pairs) -> Result<bool, Refused> {
        let find = |key: &str| pairs.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str());
        match (&self.proof, &chap.initiator) {
            (Proof::Open, None) => {
                if let Some(methods) = find("AuthMethod") {
                    if !methods.split(',').any(|m| m == "None") {
                        return Err(Refused::Authentication);
                    }
                    answers.push(("AuthMethod".to_owned(), "None".to_owned()));
                }
                self.proof = Proof::Done;
            }
            (Proof::Open, Some(_)) => {
                let methods = find("AuthMethod").unwrap_or("None");
                if !methods.split(',').any(|m| m == "CHAP") {
                    return Err(Refused::Authentication);
                }
                answers.push(("AuthMethod".to_owned(), "CHAP".to_owned()));
                self.proof = Proof::Chosen;
            }
            (Proof::Chosen, _) => {
                let known = find("CHAP_A").unwrap_or_default();
                if !known.split(',').any(|a| a == chap::ALGORITHM) {
                    return Err(Refused::Authentication);
                }
                let challenge = Challenge::new();
                answers.extend(challenge.pairs());
                self.proof = Proof::Sent(challenge);
            }
            (Proof::Sent(challenge), Some(secret)) => {
                let response = find("CHAP_R").and_then(text::binary).unwrap_or_default();
                let named = find("CHAP_N") == Some(secret.name.as_str());
                if !challenge.proven(&secret.secret, &response) || !named {
                    return Err(Refused::Authentication);
                }
                if let Some(asked) = find("CHAP_C") {
                    let asked = text::binary(asked).filter(|c| !challenge.is(c));
                    let id = find("CHAP_I").and_then(|id| id.parse::<u8>().ok());
                    let (Some(asked), Some(id), Some(own)) = (asked, id, &chap.target) else {
                        return Err(Refused::Authentication);
                    };
                    let response = chap::answer(id, &own.secret, &asked);
                    answers.push(("CHAP_N".to_owned(), own.name.clone()));
                    answers.push(("CHAP_R".to_owned(), text::hex(&response)));
                }
                self.proof = Proof::Done;
            }
            (Proof::Sent(_), None) => return Err(Refused::Authentication),
            (Proof::Done, _) => {}
        }
        Ok(matches!(self.proof, Proof::Done))
    }
}
